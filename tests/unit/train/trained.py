"""What tests read in the folder of a run."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import load_file

NUM_CONVERSATIONS, ANSWER_TOKENS = 24, 32
"""Of the data folder that runs learn from."""


def losses(folder: Path) -> list[float]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if "loss" in line]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "drafter" / "model.safetensors")


def assert_equal_weights(left: Path, right: Path) -> None:
    mine, theirs = weights(left), weights(right)
    assert mine.keys() == theirs.keys()
    for name, tensor in mine.items():
        assert torch.equal(tensor, theirs[name]), name
