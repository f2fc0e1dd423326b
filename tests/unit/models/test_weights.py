"""Strict filling, safetensors folders and damaged GGUF headers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from blockdraft.errors import CheckpointError, UnsupportedModelError
from blockdraft.models.weights import fill as fill_module
from blockdraft.models.weights.fill import StoredTensor, fill
from blockdraft.models.weights.gguf_header import read_gguf_header
from blockdraft.models.weights.hf_folder import stored_hf_tensors, weight_files
from blockdraft.testing.tiny_gguf import write_tiny_gguf
from blockdraft.testing.tiny_models import write_tiny_model


def stored(name: str, tensor: Tensor) -> StoredTensor:
    return StoredTensor(
        name=name, shape=tuple(tensor.shape), type_name="f32", read_rows=lambda start, end: tensor[start:end]
    )


def test_tensors_are_copied_a_few_rows_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fill_module, "_CHUNK_ELEMENTS", 20)
    source = torch.randn(11, 7)
    asked: list[tuple[int, int]] = []

    def read_rows(start: int, end: int) -> Tensor:
        asked.append((start, end))
        return source[start:end]

    destination = torch.empty(7, 11, dtype=torch.bfloat16).T
    StoredTensor(name="a", shape=(11, 7), type_name="f32", read_rows=read_rows).copy_into(destination)
    assert asked == [(0, 2), (2, 4), (4, 6), (6, 8), (8, 10), (10, 11)]
    assert torch.equal(destination, source.bfloat16())


def test_everything_that_does_not_fit_is_named_at_once() -> None:
    destinations = {f"lost.{i}": torch.empty(2) for i in range(6)} | {"odd": torch.empty(2, 3)}
    with pytest.raises(CheckpointError) as caught:
        fill(destinations, [stored("odd", torch.zeros(3, 2)), stored("extra", torch.zeros(1))], source="model.bin")
    message = str(caught.value)
    assert message.startswith("model.bin does not fit")
    assert "lacks lost.0, lost.1, lost.2, lost.3 and 2 more" in message
    assert "does not use: extra" in message
    assert "odd [3, 2] instead of [2, 3]" in message


def test_nothing_is_copied_from_a_checkpoint_that_does_not_fit() -> None:
    destination = torch.zeros(2)
    with pytest.raises(CheckpointError):
        fill({"a": destination, "b": torch.zeros(1)}, [stored("a", torch.ones(2))], source="it")
    assert destination.sum() == 0


def test_shards_are_read_as_one(tmp_path: Path) -> None:
    write_tiny_model(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    (tmp_path / "model.safetensors").unlink()
    names = sorted(tensors)
    shards = {"one.safetensors": names[::2], "two.safetensors": names[1::2]}
    for shard, members in shards.items():
        save_file({name: tensors[name] for name in members}, tmp_path / shard)
    weight_map = {name: shard for shard, members in shards.items() for name in members}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    read = {tensor.name: tensor.read_rows(0, tensor.shape[0]) for tensor in stored_hf_tensors(tmp_path)}
    assert sorted(read) == names
    assert all(torch.equal(read[name], tensors[name]) for name in names)

    (tmp_path / "two.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"lacks two\.safetensors"):
        weight_files(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(CheckpointError, match="damaged"):
        weight_files(tmp_path)


def test_a_cut_safetensors_file_is_an_error(tmp_path: Path) -> None:
    path = write_tiny_model(tmp_path) / "model.safetensors"
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(CheckpointError, match="cannot be read"):
        stored_hf_tensors(tmp_path)


@pytest.mark.parametrize(
    ("damage", "error", "message"),
    [
        (lambda data: b"GGML" + data[4:], CheckpointError, "not a GGUF file"),
        (lambda data: data[:10], CheckpointError, "too short"),
        (lambda data: data[:400], CheckpointError, "damaged"),
        (lambda data: data[:-50], CheckpointError, "cut off"),
        (lambda data: data[:4] + (1).to_bytes(4, "little") + data[8:], UnsupportedModelError, "version 1"),
        (lambda data: data[:4] + (3).to_bytes(4, "big") + data[8:], UnsupportedModelError, "little-endian"),
        (lambda data: data.replace(b"general.architecture", b"general.architexture"), CheckpointError, "architecture"),
    ],
)
def test_a_damaged_gguf_file_is_an_error(damage, error: type[Exception], message: str, tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "tiny.gguf")
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(error, match=message):
        read_gguf_header(path)
