"""The key/value section of a GGUF file as plain Python data; tensors are left alone.

The `gguf` package builds several NumPy arrays for each string, which takes seconds for a vocabulary of 150k
tokens. This reader takes a tenth of a second, so that a tokenizer can be loaded without waiting for it.

Ref: GGUF specification, versions 2 and 3, little-endian.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import Any

from blockdraft.errors import CheckpointError

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_LENGTH = struct.Struct("<Q")


def read_metadata(path: Path) -> dict[str, Any]:
    """Return every metadata key of a GGUF file: str, int, float, bool, or a list of them.

    Raises:
        CheckpointError: the file is not GGUF, of an unknown version, or ends too early.
    """
    if path.stat().st_size < 24:
        raise CheckpointError(f"{path} is not a GGUF file: it is too short to hold a header")
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        if data[:4] != b"GGUF":
            raise CheckpointError(f"{path} is not a GGUF file: it begins with {data[:4]!r}, not b'GGUF'")
        version, _, num_keys = struct.unpack_from("<IQQ", data, 4)
        if version not in (2, 3):
            raise CheckpointError(f"{path} has GGUF version {version}; little-endian versions 2 and 3 are supported")
        cursor = _Cursor(data, 24)
        try:
            return {cursor.string(): cursor.value(cursor.scalar("I")) for _ in range(num_keys)}
        except (struct.error, UnicodeDecodeError, ValueError) as error:
            raise CheckpointError(
                f"the metadata of {path} is damaged or cut off near byte {cursor.offset}; fetch the file again"
            ) from error


class _Cursor:
    """Reads one value after another."""

    def __init__(self, data: mmap.mmap, offset: int) -> None:
        self._data = data
        self.offset = offset

    def scalar(self, code: str) -> Any:
        (value,) = struct.unpack_from(f"<{code}", self._data, self.offset)
        self.offset += struct.calcsize(f"<{code}")
        return value

    def string(self) -> str:
        return self.strings(1)[0]

    def strings(self, count: int) -> list[str]:
        data, offset, unpack = self._data, self.offset, _LENGTH.unpack_from
        texts = []
        for _ in range(count):
            start = offset + 8
            (size,) = unpack(data, offset)
            offset = start + size
            if offset > len(data):
                raise ValueError("a string reaches past the end of the file")
            texts.append(data[start:offset].decode())
        self.offset = offset
        return texts

    def value(self, kind: int) -> Any:
        if kind in _SCALARS:
            return self.scalar(_SCALARS[kind])
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            item_kind, count = self.scalar("I"), self.scalar("Q")
            if item_kind in _SCALARS:
                code = f"<{count}{_SCALARS[item_kind]}"
                values = struct.unpack_from(code, self._data, self.offset)
                self.offset += struct.calcsize(code)
                return list(values)
            if item_kind == _STRING:
                return self.strings(count)
            return [self.value(item_kind) for _ in range(count)]
        raise ValueError(f"unknown value type {kind}")
