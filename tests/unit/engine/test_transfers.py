"""How often a round asks a device for something does not grow with the block: one transfer each way for all slots."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from blockdraft.core.sampling import SamplingParams
from blockdraft.drafters.base import Drafter
from blockdraft.drafters.dflash import DFlashDrafter
from blockdraft.drafters.dspark import DSparkDrafter
from blockdraft.engine import Engine, Request
from blockdraft.testing.tiny_drafters import TinyDrafter, write_tiny_drafter
from blockdraft.testing.tiny_models import tiny_target

TARGET = tiny_target("llama", vocab_size=12)


def dflash(folder: Path, block_size: int) -> Drafter:
    return DFlashDrafter.load(write_tiny_drafter(folder, TARGET.info, TinyDrafter(block_size=block_size)), TARGET)


def dspark(folder: Path, block_size: int) -> Drafter:
    drafter = TinyDrafter(method="dspark", packaging="deepspec", block_size=block_size)
    folder = write_tiny_drafter(folder, TARGET.info, drafter)
    return DSparkDrafter.load(folder, TARGET, with_confidence=True)


def transfers_per_round(drafter: Drafter, sampling: SamplingParams, monkeypatch: pytest.MonkeyPatch) -> int:
    """Count how often host data become tensors and tensors become host data in one round of two sequences."""
    engine = Engine(TARGET, drafter=drafter)
    sequences = [
        engine.submit(Request(prompt_ids=prompt, max_tokens=60, sampling=sampling, logprobs=True))
        for prompt in ((1, 2), (3,))
    ]
    engine.step()
    calls = 0

    def counting(function: Callable[..., object]) -> Callable[..., object]:
        def call(*args: object, **options: object) -> object:
            nonlocal calls
            calls += 1
            return function(*args, **options)

        return call

    with monkeypatch.context() as patch:
        for owner, names in (
            (torch, ("tensor", "as_tensor", "from_numpy")),
            (torch.Tensor, ("item", "tolist", "__bool__", "__float__", "__int__", "nonzero")),
        ):
            for name in names:
                patch.setattr(owner, name, counting(getattr(owner, name)))
        engine.step()
    for sequence in sequences:
        engine.cancel(sequence)
    return calls


@pytest.mark.parametrize("build", [dflash, dspark], ids=lambda build: build.__name__)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_longer_blocks_need_no_more_transfers(build, temperature, tmp_path, monkeypatch):
    sampling = SamplingParams(temperature=temperature, top_k=8, top_p=0.9)
    counts = {transfers_per_round(build(tmp_path / str(size), size), sampling, monkeypatch) for size in (4, 12)}
    assert len(counts) == 1, counts
    assert 0 < counts.pop() < 40
