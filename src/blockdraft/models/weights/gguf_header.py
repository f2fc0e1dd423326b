"""The header of a GGUF file: metadata and the list of tensors, without their data.

The `gguf` package has a reader too, but it makes several NumPy views for every token of the vocabulary: two
seconds for 49k tokens, where unpacking the same bytes takes a twentieth of one. Its constants are used here
and its dequantisation in `gguf_file`. Imports no torch.

Ref: the GGUF specification, versions 2 and 3 (docs/gguf.md of ggml).
"""

from __future__ import annotations

import math
import mmap
import struct
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from gguf.constants import GGML_QUANT_SIZES, GGUF_DEFAULT_ALIGNMENT, GGMLQuantizationType, GGUFValueType

from blockdraft.errors import CheckpointError, UnsupportedModelError

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)

_SCALARS = {
    GGUFValueType.UINT8: "B",
    GGUFValueType.INT8: "b",
    GGUFValueType.UINT16: "H",
    GGUFValueType.INT16: "h",
    GGUFValueType.UINT32: "I",
    GGUFValueType.INT32: "i",
    GGUFValueType.FLOAT32: "f",
    GGUFValueType.BOOL: "?",
    GGUFValueType.UINT64: "Q",
    GGUFValueType.INT64: "q",
    GGUFValueType.FLOAT64: "d",
}


@dataclass(frozen=True, kw_only=True)
class GgufTensor:
    """Where one tensor lies. `shape` is in row-major order, the last dimension contiguous."""

    name: str
    shape: tuple[int, ...]
    type: GGMLQuantizationType
    offset: int
    num_bytes: int


@dataclass(frozen=True, kw_only=True)
class GgufHeader:
    """Everything but the tensor data. Arrays in `metadata` are lists."""

    path: Path
    metadata: dict[str, Any]
    tensors: dict[str, GgufTensor]

    @property
    def architecture(self) -> str:
        return str(self.metadata["general.architecture"])

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: tensor.shape for name, tensor in self.tensors.items()}


def read_gguf_header(path: Path) -> GgufHeader:
    """Read metadata and tensor list; those of the last two files are remembered.

    Raises:
        CheckpointError: the file is no GGUF file, damaged or cut off.
        UnsupportedModelError: another GGUF version or byte order, one of several parts, or an unknown type.
    """
    about = path.stat()
    return _read_header(path, about.st_size, about.st_mtime_ns)


@lru_cache(maxsize=2)  # the tokenizer, the weights and a look at what kind of file it is all ask
def _read_header(path: Path, size: int, _changed_ns: int) -> GgufHeader:
    if size < 24:
        raise CheckpointError(f"{path} is too short to be a GGUF file; download it again")
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        if data[:4] != _MAGIC:
            raise CheckpointError(f"{path} is not a GGUF file: it does not begin with 'GGUF'")
        try:
            header = _Cursor(data).header(path)
        except (struct.error, UnicodeDecodeError, KeyError, OverflowError, ZeroDivisionError) as error:
            raise CheckpointError(f"the header of {path} is damaged ({error}); download the file again") from error
    end = max((tensor.offset + tensor.num_bytes for tensor in header.tensors.values()), default=0)
    if end > size:
        raise CheckpointError(f"{path} is cut off: it has {size} bytes and should have {end}; download it again")
    return header


class _Cursor:
    """Reads values one after another."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._at = len(_MAGIC)

    def header(self, path: Path) -> GgufHeader:
        version = self.scalar("I")
        if version not in _VERSIONS:
            raise UnsupportedModelError(
                f"{path} is GGUF version {version}; versions {' and '.join(map(str, _VERSIONS))} in little-endian "
                "order are supported"
            )
        num_tensors, num_keys = self.scalar("Q"), self.scalar("Q")
        metadata = {}
        for _ in range(num_keys):
            key = self.string()
            metadata[key] = self.value(self.scalar("I"))
        if "general.architecture" not in metadata:
            raise CheckpointError(f"{path} does not say its architecture (general.architecture)")
        if metadata.get("split.count", 1) > 1:
            raise UnsupportedModelError(
                f"{path} is one of {metadata['split.count']} parts; join them with llama-gguf-split --merge"
            )
        tensors = [self.tensor() for _ in range(num_tensors)]
        alignment = metadata.get("general.alignment", GGUF_DEFAULT_ALIGNMENT)
        start = -(-self._at // alignment) * alignment
        placed = {tensor.name: GgufTensor(**{**vars(tensor), "offset": start + tensor.offset}) for tensor in tensors}
        return GgufHeader(path=path, metadata=metadata, tensors=placed)

    def scalar(self, code: str) -> Any:
        (value,) = struct.unpack_from("<" + code, self._data, self._at)
        self._at += struct.calcsize("<" + code)
        return value

    def string(self) -> str:
        return self.strings(1)[0]

    def strings(self, count: int) -> list[str]:
        # Vocabularies are read here: a hundred thousand strings, so locals instead of attributes.
        data, at, length_at = self._data, self._at, struct.Struct("<Q").unpack_from
        texts = []
        for _ in range(count):
            start = at + 8
            at = start + length_at(data, at)[0]
            if at > len(data):
                raise struct.error("a string runs past the end")
            texts.append(data[start:at].decode())
        self._at = at
        return texts

    def value(self, kind: int) -> Any:
        if kind == GGUFValueType.STRING:
            return self.string()
        if kind == GGUFValueType.ARRAY:
            item, length = self.scalar("I"), self.scalar("Q")
            if item == GGUFValueType.STRING:
                return self.strings(length)
            if item == GGUFValueType.ARRAY:
                return [self.value(item) for _ in range(length)]
            code = f"<{length}{_SCALARS[GGUFValueType(item)]}" if item in _SCALARS else None
            if code is None:
                raise struct.error(f"unknown value type {item}")
            values = struct.unpack_from(code, self._data, self._at)
            self._at += struct.calcsize(code)
            return list(values)
        if kind not in _SCALARS:
            raise struct.error(f"unknown value type {kind}")
        return self.scalar(_SCALARS[GGUFValueType(kind)])

    def tensor(self) -> GgufTensor:
        """Return a tensor whose offset still counts from the start of the data."""
        name = self.string()
        shape = tuple(reversed([self.scalar("Q") for _ in range(self.scalar("I"))]))
        number, offset = self.scalar("I"), self.scalar("Q")
        try:
            kind = GGMLQuantizationType(number)
        except ValueError:
            raise UnsupportedModelError(f"tensor {name} has the unknown GGUF type {number}") from None
        block, block_bytes = GGML_QUANT_SIZES[kind]
        num_bytes = math.prod(shape) // block * block_bytes
        return GgufTensor(name=name, shape=shape, type=kind, offset=offset, num_bytes=num_bytes)
