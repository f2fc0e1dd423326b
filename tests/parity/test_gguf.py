"""GGUF files against the `gguf` package and against the Hugging Face weights they came from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Type
from gguf.quants import dequantize, quantize
from torch import Tensor

from blockdraft.errors import UnsupportedModelError
from blockdraft.models.base import Segment
from blockdraft.models.config import DecoderConfig
from blockdraft.models.decoder import Decoder
from blockdraft.models.families import FAMILIES
from blockdraft.models.load import load_target
from blockdraft.models.weights.fill import StoredTensor, fill
from blockdraft.models.weights.gguf_file import stored_gguf_tensors
from blockdraft.models.weights.gguf_header import read_gguf_header
from blockdraft.models.weights.layout import allocate, destinations
from blockdraft.testing.tiny_gguf import gguf_tensors, tiny_gguf_config, write_tiny_gguf
from blockdraft.testing.tiny_models import tiny_target, tiny_tensors

WIDE: dict[str, Any] = {
    "hidden_size": 256,
    "intermediate_size": 256,
    "num_hidden_layers": 1,
    "head_dim": 64,
}
"""Widths that every type's blocks divide."""


def can(function: Any, data: Any, kind: Type) -> bool:
    try:
        function(data, kind)
    except NotImplementedError:
        return False
    return True


QUANTIZABLE = [kind for kind in Type if can(quantize, np.zeros((1, 256), np.float32), kind)]
DEQUANTIZABLE = [
    kind for kind in Type if can(dequantize, np.zeros((1, gguf.GGML_QUANT_SIZES[kind][1]), np.uint8), kind)
]


def decoder_config(config: dict[str, Any]) -> DecoderConfig:
    return FAMILIES[config["model_type"]].config_from_hf(config)


def logits_of(target: Any) -> Tensor:
    token_ids = torch.randint(3, 200, (30,), generator=torch.Generator().manual_seed(1)).tolist()
    return target.forward([Segment(token_ids=token_ids, cache=target.new_cache(), num_logits=30)]).logits


@pytest.mark.parametrize("family", FAMILIES)
def test_an_unquantised_file_is_the_same_model_as_the_folder(family: str, tmp_path: Path) -> None:
    """For llama this rests on undoing the permutation of q and k."""
    overrides = {"head_dim": 16, "num_key_value_heads": 1}
    path = write_tiny_gguf(tmp_path / "tiny.gguf", family, "F32", seed=3, **overrides)
    config = tiny_gguf_config(family, **overrides)
    expected = tiny_target(seed=3, family=family, **{k: v for k, v in config.items() if k not in _NAMES})
    torch.testing.assert_close(logits_of(load_target(path, dtype="float32")), logits_of(expected), rtol=0, atol=0)


_NAMES = ("architectures", "model_type")


def test_the_permutation_that_is_undone_is_the_converters(tmp_path: Path) -> None:
    """Rope over interleaved pairs, computed here on the stored rows, equals our half-split rope on the loaded ones."""
    head_dim = 16
    config = tiny_gguf_config("llama", head_dim=head_dim)
    stored = gguf_tensors(config)["blk.0.attn_q.weight"]
    hf = tiny_tensors(config)["model.layers.0.self_attn.q_proj.weight"]
    angle = 7 / 10000.0 ** (torch.arange(0, head_dim, 2) / head_dim)
    rows = torch.randn(config["hidden_size"], generator=torch.Generator().manual_seed(0))

    pairs = (stored @ rows).view(-1, head_dim // 2, 2)
    turned = torch.view_as_real(torch.view_as_complex(pairs) * torch.polar(torch.ones_like(angle), angle))
    first, second = (hf @ rows).view(-1, 2, head_dim // 2).unbind(1)
    halves = torch.stack((first * angle.cos() - second * angle.sin(), second * angle.cos() + first * angle.sin()), -1)
    torch.testing.assert_close(turned, halves)


@pytest.mark.parametrize("kind", QUANTIZABLE, ids=lambda kind: kind.name)
@pytest.mark.parametrize("family", ["llama", "qwen3_moe"])
def test_a_quantised_file_equals_the_model_of_its_dequantised_weights(kind: Type, family: str, tmp_path: Path) -> None:
    overrides = {**WIDE, "moe_intermediate_size": 256, "mlp_only_layers": []}
    path = write_tiny_gguf(tmp_path / "tiny.gguf", family, kind.name, **overrides)
    target = load_target(path, dtype="float32")
    assert target.info.quantization.upper() == kind.name

    config = tiny_gguf_config(family, **overrides)
    stored = [
        plain_tensor(name, quantised(tensor, kind) if tensor.ndim > 1 else tensor)
        for name, tensor in tiny_tensors(config).items()
    ]
    weights = allocate(decoder_config(config), torch.float32, torch.device("cpu"))
    fill(destinations(weights, decoder_config(config), {tensor.name for tensor in stored}), stored, source="the test")
    expected = Decoder(decoder_config(config), weights, quantization="f32")
    torch.testing.assert_close(logits_of(target), logits_of(expected), rtol=0, atol=0)


def plain_tensor(name: str, tensor: Tensor) -> StoredTensor:
    return StoredTensor(
        name=name, shape=tuple(tensor.shape), type_name="f32", read_rows=lambda start, end: tensor[start:end]
    )


def quantised(tensor: Tensor, kind: Type) -> Tensor:
    """Return what is left of a matrix after quantisation. Rows are independent, so permuting them first is the same."""
    return torch.from_numpy(dequantize(quantize(tensor.numpy(), kind), kind))


@pytest.mark.parametrize("kind", DEQUANTIZABLE, ids=lambda kind: kind.name)
def test_every_type_is_read_as_the_gguf_package_reads_it(kind: Type, tmp_path: Path) -> None:
    """Random bytes in a matrix, a stack of matrices and a row; also rows from the middle."""
    random = np.random.default_rng(0)
    block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    width = 512 // block * block_bytes
    writer = gguf.GGUFWriter(tmp_path / "any.gguf", "llama")
    shapes = {"matrix": (24, width), "stack": (3, 5, width), "row": (width,)}
    data = {name: random.integers(0, 256, shape, dtype=np.uint8) for name, shape in shapes.items()}
    for name, values in data.items():
        writer.add_tensor(name, as_stored(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    for tensor in stored_gguf_tensors(read_gguf_header(tmp_path / "any.gguf"), {}):
        with np.errstate(all="ignore"):
            expected = torch.from_numpy(dequantize(data[tensor.name], kind))
            assert tensor.shape == tuple(expected.shape)
            for start, end in ((0, tensor.shape[0]), (2, 3)):
                actual = tensor.read_rows(start, end).float()
                torch.testing.assert_close(actual, expected[start:end], rtol=0, atol=0, equal_nan=True)


def as_stored(values: np.ndarray, kind: Type) -> np.ndarray:
    """GGUFWriter wants plain floats as floats, everything else as bytes."""
    plain = {Type.F32: np.float32, Type.F16: np.float16}
    return values.view(plain[kind]) if kind in plain else values


def test_a_type_that_cannot_be_dequantised_is_named(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "odd.gguf", "llama")
    writer.add_tensor("blk.0.attn_q.weight", np.zeros((2, 32), np.int8), raw_dtype=Type.I8)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(UnsupportedModelError, match=r"blk\.0\.attn_q\.weight is stored as I8"):
        stored_gguf_tensors(read_gguf_header(tmp_path / "odd.gguf"), {})


def test_rope_divisors_of_the_file_are_used(tmp_path: Path) -> None:
    """Llama 3 files carry the llama3 dialect as divisors of the frequencies."""
    config = tiny_gguf_config("llama")
    divisors = np.linspace(1, 8, config["head_dim"] // 2, dtype=np.float32)
    plain = write_tiny_gguf(tmp_path / "plain.gguf", "llama", "F32")
    scaled = write_tiny_gguf(tmp_path / "scaled.gguf", "llama", "F32", extra={"rope_freqs.weight": divisors})
    target = load_target(scaled, dtype="float32")
    assert target.config.rope.freq_divisors == pytest.approx(divisors.tolist())
    assert not torch.equal(logits_of(target), logits_of(load_target(plain, dtype="float32")))


def test_header_equals_the_gguf_packages_reader(tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "tiny.gguf", "qwen3_moe", "Q4_1")
    reader, header = gguf.GGUFReader(path), read_gguf_header(path)
    fields = {key: field.contents() for key, field in reader.fields.items() if not key.startswith("GGUF.")}
    assert header.metadata == fields
    assert list(header.tensors) == [tensor.name for tensor in reader.tensors]
    for tensor in reader.tensors:
        ours = header.tensors[tensor.name]
        assert (ours.shape, ours.type) == (tuple(reversed(tensor.shape.tolist())), tensor.tensor_type)
        assert (ours.offset, ours.num_bytes) == (tensor.data_offset, tensor.n_bytes)
