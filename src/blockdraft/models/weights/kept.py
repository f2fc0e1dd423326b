"""Keeps packed matrices on disk, so that a model's weights are rounded and put in order once.

A file in the folder `packed` of blockdraft's cache belongs to the files that its matrices were made from, and is made
again when those change. It is read into memory, not mapped: a pass over mapped files looks its addresses up in small
pages, which costs a fifth of its time (see `runtime.memory`).
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from time import perf_counter

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from blockdraft.models.references.pypi import cache_folder
from blockdraft.runtime.memory import Stretch
from blockdraft.runtime.native_core import PackedMatrix
from blockdraft.runtime.quantized import Format, Quantized

VERSION = 1
"""Of how weights are rounded and packed; files of other versions are not read."""

_SAMPLE_BYTES = 1 << 16
_SPARE_BYTES = 1 << 30
"""What is left free on the disk."""
_TOLD_BYTES = 10_000_000
"""Files from this size on are told when they are made."""


@dataclass(eq=False)
class KeptMatrices:
    """The packed matrices of one network.

    Ask for each with `matrix`, then call `keep`. Without `files`, nothing is read or kept.
    """

    files: Sequence[Path]
    """What the matrices are made from."""
    purpose: str
    """Tells apart what is made from the same files."""
    notify: Callable[[str], None]
    _read: dict[str, PackedMatrix] = field(default_factory=dict)
    _made: dict[str, PackedMatrix] = field(default_factory=dict)
    _seconds: float = 0.0

    def __post_init__(self) -> None:
        if self.files and self.path.exists():
            self._read = self._load()

    @property
    def path(self) -> Path:
        """Where they are kept."""
        names = "\n".join([self.purpose, *(str(file.resolve()) for file in self.files)])
        return cache_folder() / "packed" / f"{blake2b(names.encode(), digest_size=10).hexdigest()}.safetensors"

    def matrix(self, name: str, make: Callable[[], Quantized]) -> PackedMatrix:
        """Return a matrix as it was kept, or make it."""
        if name in self._read:
            return self._read[name]
        started = perf_counter()
        self._made[name] = PackedMatrix.of(make())
        self._seconds += perf_counter() - started
        return self._made[name]

    def keep(self) -> None:
        """Write what was made; one that could not be written is made again the next time, and that is said."""
        if not self.files or not self._made:
            return
        matrices = self._read | self._made
        num_bytes = sum(matrix.data.nbytes for matrix in matrices.values())
        try:
            self._write(matrices, num_bytes)
        except OSError as error:
            self.notify(f"packed the weights of {self.purpose} in {self._seconds:.1f} s; not kept, as {error}")
            return
        if num_bytes >= _TOLD_BYTES:
            size = f"{num_bytes / 1e6:.0f} MB"
            self.notify(f"packed the weights of {self.purpose} in {self._seconds:.1f} s; kept ({size}) in {self.path}")

    def _load(self) -> dict[str, PackedMatrix]:
        try:
            with safe_open(self.path, framework="np") as reader:
                about = reader.metadata() or {}
            if about.get("of") != self._identity():
                return {}
            kinds = json.loads(about["matrices"])
            stretch = Stretch(self.path.stat().st_size, len(kinds))
            read = {}
            for name, (kind, num_rows) in kinds.items():
                # Opened for each, so that only the pages of one are in memory beside the copies.
                with safe_open(self.path, framework="np") as reader:
                    data = _whole(reader.get_tensor(name))
                read[name] = PackedMatrix(data=data, format=Format(kind), num_rows=num_rows).placed(stretch)
            return read
        except (SafetensorError, OSError, ValueError, KeyError) as error:
            self.notify(f"{self.path} cannot be read ({error}); packing the weights of {self.purpose} again")
            return {}

    def _write(self, matrices: dict[str, PackedMatrix], num_bytes: int) -> None:
        folder = self.path.parent
        folder.mkdir(parents=True, exist_ok=True)
        if shutil.disk_usage(folder).free < num_bytes + _SPARE_BYTES:
            raise OSError(f"{folder} has no room for another {num_bytes / 1e6:.0f} MB")
        about = {
            "of": self._identity(),
            "matrices": json.dumps({name: [matrix.format, matrix.num_rows] for name, matrix in matrices.items()}),
        }
        made = self.path.with_suffix(f".{os.getpid()}")
        try:
            save_file({name: matrix.data for name, matrix in matrices.items()}, made, metadata=about)
            made.replace(self.path)
        except SafetensorError as error:
            raise OSError(str(error)) from error
        finally:
            made.unlink(missing_ok=True)

    def _identity(self) -> str:
        """Return what is another for other weights: version, sizes, times, and some bytes of the files."""
        parts: list[object] = [VERSION, self.purpose]
        for file in self.files:
            about = file.stat()
            with file.open("rb") as stream:
                digest = blake2b(stream.read(_SAMPLE_BYTES), digest_size=10)
                stream.seek(max(0, about.st_size - _SAMPLE_BYTES))
                digest.update(stream.read(_SAMPLE_BYTES))
            parts += [about.st_size, about.st_mtime_ns, digest.hexdigest()]
        return json.dumps(parts)


def _whole(array: NDArray[np.uint8]) -> NDArray[np.uint8]:
    if array.dtype != np.uint8:
        raise ValueError(f"a matrix of {array.dtype}")
    return array
