"""The tensors of a GGUF file, dequantised some rows at a time.

Every type that the `gguf` package can dequantise is read. Files are mapped, not read: what is not converted
at the moment takes no memory of its own.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping

import numpy as np
import torch
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize
from numpy.typing import NDArray
from torch import Tensor

from blockdraft.errors import UnsupportedModelError
from blockdraft.models.weights.fill import StoredTensor
from blockdraft.models.weights.gguf_header import GgufHeader, GgufTensor

ROPE_DIVISORS = "rope_freqs.weight"
"""The one tensor that is no weight: divisors of the rope frequencies."""

_PLAIN: Mapping[GGMLQuantizationType, type[np.generic]] = {
    GGMLQuantizationType.F32: np.float32,
    GGMLQuantizationType.F16: np.float16,
    # Index tables of drafters.
    GGMLQuantizationType.I32: np.int32,
    GGMLQuantizationType.I64: np.int64,
}
_LAYER = re.compile(r"^blk\.(\d+)\.")


def stored_gguf_tensors(header: GgufHeader, names: Mapping[str, str]) -> list[StoredTensor]:
    """Return the weights of a file under their Hugging Face names; a name not in `names` stays as it is.

    Raises:
        UnsupportedModelError: a tensor is of a type that cannot be dequantised.
    """
    for tensor in {tensor.type: tensor for tensor in header.tensors.values()}.values():
        _check_type(tensor)
    data = np.asarray(np.memmap(header.path, mode="r"))
    return [
        StoredTensor(
            name=_rename(tensor.name, names),
            shape=tensor.shape,
            type_name=type_name(tensor),
            read_rows=_row_reader(data, tensor),
            raw_rows=_raw_rows(data, tensor),
        )
        for tensor in header.tensors.values()
        if tensor.name != ROPE_DIVISORS
    ]


def read_rope_divisors(header: GgufHeader) -> tuple[float, ...] | None:
    """Return the stored divisors of the rope frequencies, if the file has them."""
    if (tensor := header.tensors.get(ROPE_DIVISORS)) is None:
        return None
    values = _row_reader(np.asarray(np.memmap(header.path, mode="r")), tensor)(0, tensor.shape[0])
    return tuple(float(value) for value in values)


def type_name(tensor: GgufTensor) -> str:
    """Return "Q4_1" and the like, but plain floats as elsewhere: "f32", "f16", "bf16"."""
    name: str = tensor.type.name
    return name.lower() if name in ("F32", "F16", "BF16") else name


def dominant_type(header: GgufHeader) -> str:
    """Return the type that most elements of the matrices are stored in."""
    elements: Counter[str] = Counter()
    for tensor in header.tensors.values():
        if len(tensor.shape) > 1:
            elements[type_name(tensor)] += int(np.prod(tensor.shape))
    return elements.most_common(1)[0][0] if elements else "f32"


def _check_type(tensor: GgufTensor) -> None:
    if tensor.type in _PLAIN:
        return
    block_bytes = GGML_QUANT_SIZES[tensor.type][1]
    try:
        dequantize(np.zeros((1, block_bytes), dtype=np.uint8), tensor.type)
    except NotImplementedError:
        raise UnsupportedModelError(
            f"tensor {tensor.name} is stored as {tensor.type.name}, which cannot be dequantised here; "
            "take another quantisation of the model (Q8_0, Q6_K, Q4_K_M, ...)"
        ) from None


def _rename(name: str, names: Mapping[str, str]) -> str:
    match = _LAYER.match(name)
    general = _LAYER.sub("blk.{i}.", name)
    if general not in names:
        return name
    return names[general].replace("{i}", match[1]) if match else names[general]


def _raw_rows(data: NDArray[np.uint8], tensor: GgufTensor) -> NDArray[np.uint8] | None:
    if tensor.type in _PLAIN or tensor.type == GGMLQuantizationType.BF16 or len(tensor.shape) != 2:
        return None
    return data[tensor.offset : tensor.offset + tensor.num_bytes].reshape(tensor.shape[0], -1)


def _row_reader(data: NDArray[np.uint8], tensor: GgufTensor) -> Callable[[int, int], Tensor]:
    raw = data[tensor.offset : tensor.offset + tensor.num_bytes]
    if (plain := _PLAIN.get(tensor.type)) is not None:
        values = raw.view(plain).reshape(tensor.shape)
        return lambda start, end: torch.from_numpy(values[start:end].copy())
    if tensor.type == GGMLQuantizationType.BF16:
        halves = raw.view(np.int16).reshape(tensor.shape)
        return lambda start, end: torch.from_numpy(halves[start:end].copy()).view(torch.bfloat16)
    blocks = raw.reshape(*tensor.shape[:-1], -1)
    if len(tensor.shape) == 1:
        return lambda start, end: torch.from_numpy(dequantize(blocks, tensor.type)[start:end])
    return lambda start, end: torch.from_numpy(dequantize(blocks[start:end], tensor.type))
