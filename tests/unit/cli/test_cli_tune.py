"""`blockdraft tune`: the command around tests/unit/bench/test_tune.py."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    lines = [
        json.dumps({"id": str(n), "category": kind, "turns": [f"{kind} {n} {n}"]}) for n, kind in enumerate(("a", "b"))
    ]
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


@pytest.fixture
def tune(run, checkpoints, prompts):
    def tune(*arguments: str):
        common = ("-m", checkpoints.target, "--dtype", "float32", "--max-tokens", "12", "--repeats", "1")
        return run("tune", *common, "--finalists", "1", "--prompts", str(prompts), *arguments)

    return tune


def test_it_shows_costs_acceptance_and_what_to_use(tune, checkpoints) -> None:
    result = tune("-d", checkpoints.dflash)
    assert result.exit_code == 0, result.output
    for text in ("a pass over so many rows", "a draft of draft-dflash:", "times as fast as plain decoding", "adaptive"):
        assert text in result.stdout
    assert "recommendation: " in result.stdout
    assert "measured in" in result.stderr


def test_json_holds_everything_and_nothing_else_is_printed(tune, checkpoints) -> None:
    record = json.loads(tune("-d", checkpoints.dflash, "--json").stdout)
    assert record["model"] == checkpoints.target
    assert record["spec"]["types"] == ["auto"]
    assert record["costs"]["num_rows"][0] == 1
    assert {one["method"] for one in record["checked"]} == {"draft-dflash", "adaptive"}
    assert record["predicted"]
    assert record["best"]["method"] in {"plain", "draft-dflash", "adaptive"}


def test_a_plot_is_drawn(tune, checkpoints, tmp_path: Path) -> None:
    picture = tmp_path / "tune.png"
    assert tune("-d", checkpoints.dflash, "--plot", str(picture)).exit_code == 0
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_a_plot_that_cannot_be_drawn_is_refused(tune, checkpoints, tmp_path: Path, monkeypatch) -> None:
    result = tune("-d", checkpoints.dflash, "--plot", str(tmp_path / "nowhere" / "tune.png"))
    assert result.exit_code == 2
    assert "cannot be written" in result.stderr
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = tune("-d", checkpoints.dflash, "--plot", str(tmp_path / "tune.png"))
    assert result.exit_code == 2
    assert "blockdraft[plots]" in result.stderr


def test_plain_decoding_cannot_be_tuned(tune) -> None:
    result = tune("-d", "none")
    assert result.exit_code == 2
    assert "there is nothing to tune" in result.stderr
