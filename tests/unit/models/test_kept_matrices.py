"""Packed matrices are made once, and again when what they were made from is another file."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from blockdraft.models.base import Segment
from blockdraft.models.load import load_target
from blockdraft.models.packed_decoder import PackedDecoder
from blockdraft.models.weights import kept
from blockdraft.models.weights.kept import KeptMatrices
from blockdraft.runtime.quantized import Quantized, quantize, quantize_to_nibbles
from blockdraft.testing.tiny_models import write_tiny_model

WIDTHS = {"hidden_size": 64, "intermediate_size": 96, "head_dim": 32}


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(kept, "cache_folder", lambda: tmp_path / "cache")
    path = tmp_path / "weights"
    path.write_bytes(b"some weights")
    return path


def made(seed: int, rounding: Callable[..., Quantized] = quantize) -> Quantized:
    return rounding(np.random.default_rng(seed).standard_normal((40, 64)).astype(np.float32))


def never() -> Quantized:
    raise AssertionError("it is kept already")


@pytest.mark.parametrize("rounding", [quantize, quantize_to_nibbles])
def test_the_second_process_reads_what_the_first_one_made(
    source: Path, rounding: Callable[..., Quantized], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept, "_TOLD_BYTES", 100)
    told: list[str] = []
    first = KeptMatrices((source,), "a model", told.append)
    matrix = first.matrix("qkv", lambda: made(0, rounding))
    first.keep()
    assert "packed the weights of a model" in told.pop()
    again = KeptMatrices((source,), "a model", told.append).matrix("qkv", never)
    assert (again.format, again.num_rows, again.padded_rows) == (matrix.format, 40, 64)
    np.testing.assert_array_equal(again.data, matrix.data)
    assert (matrix.is_placed, again.is_placed) == (False, True)
    assert not told


def change_content(path: Path) -> None:
    about = path.stat()
    path.write_bytes(b"same weights")
    os.utime(path, ns=(about.st_atime_ns, about.st_mtime_ns))


def change_version(_path: Path) -> None:
    kept.VERSION += 1


@pytest.mark.parametrize(
    "change",
    [
        lambda path: path.write_bytes(b"some other weights"),
        lambda path: os.utime(path, (1, 1)),
        change_content,
        change_version,
    ],
    ids=["size", "time", "content", "version"],
)
def test_another_file_or_version_is_packed_again(
    source: Path, change: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept, "VERSION", kept.VERSION)
    first = KeptMatrices((source,), "a model", pytest.fail)
    first.notify = lambda _: None
    first.matrix("qkv", lambda: made(0))
    first.keep()
    change(source)
    second = KeptMatrices((source,), "a model", lambda _: None)
    expected = made(1)
    np.testing.assert_array_equal(second.matrix("qkv", lambda: expected).unpack().values, expected.values)
    second.keep()
    assert len(list(first.path.parent.iterdir())) == 1  # in the place of the old one


def test_a_damaged_file_is_told_and_made_again(source: Path) -> None:
    told: list[str] = []
    first = KeptMatrices((source,), "a model", told.append)
    first.matrix("qkv", lambda: made(0))
    first.keep()
    first.path.write_bytes(first.path.read_bytes()[:-200])
    second = KeptMatrices((source,), "a model", told.append)
    assert "cannot be read" in told[-1]
    second.matrix("qkv", lambda: made(0))
    second.keep()
    KeptMatrices((source,), "a model", pytest.fail).matrix("qkv", never)


def test_what_cannot_be_kept_is_used_and_said(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "_SPARE_BYTES", 1 << 62)
    told: list[str] = []
    matrices = KeptMatrices((source,), "a model", told.append)
    matrices.matrix("qkv", lambda: made(0))
    matrices.keep()
    assert "not kept" in told[0]
    assert "no room" in told[0]
    assert not matrices.path.exists()


def test_matrices_from_no_file_are_not_kept(source: Path) -> None:
    matrices = KeptMatrices((), "a model", pytest.fail)
    matrices.matrix("qkv", lambda: made(0))
    matrices.keep()
    assert not (source.parent / "cache").exists()


@pytest.mark.native
def test_a_model_from_kept_matrices_computes_the_same_bits(source: Path) -> None:
    folder = write_tiny_model(source.parent / "model", "qwen3", **WIDTHS)

    def logits() -> torch.Tensor:
        target = load_target(folder, runtime="native", notify=lambda _: None)
        assert isinstance(target, PackedDecoder)
        return target.forward([Segment(token_ids=range(20), cache=target.new_cache(), num_logits=20)]).logits

    first = logits()
    assert list((source.parent / "cache" / "packed").iterdir())
    assert torch.equal(first, logits())
