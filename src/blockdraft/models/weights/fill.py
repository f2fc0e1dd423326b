"""Copy stored tensors into allocated ones, strictly: nothing missing, nothing left over, no other shape.

A tensor is read some rows at a time, so that no more than a chunk of it exists twice.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from blockdraft.errors import CheckpointError

_CHUNK_ELEMENTS = 1 << 20
"""How much is converted at once: small enough to stay in a CPU cache while it is dequantised."""

_NUM_LISTED = 4
"""How many offending tensors an error names."""


@dataclass(frozen=True, kw_only=True)
class StoredTensor:
    """A tensor in a file, under its Hugging Face name."""

    name: str
    shape: tuple[int, ...]
    type_name: str
    """How it is stored: "bf16", "Q4_1", ..."""
    read_rows: Callable[[int, int], Tensor]
    """Returns rows [start, end) of the first dimension, dequantised, on the CPU."""
    raw_rows: NDArray[np.uint8] | None = None
    """The rows as they lie in the file, [R, bytes of a row], if they are quantised."""

    def copy_into(self, destination: Tensor) -> None:
        """Shapes: destination as `shape`, of any floating dtype and device."""
        num_rows = self.shape[0]
        step = max(1, _CHUNK_ELEMENTS * num_rows // max(1, math.prod(self.shape)))
        for start in range(0, num_rows, step):
            end = min(start + step, num_rows)
            destination[start:end] = self.read_rows(start, end)


def fill(destinations: Mapping[str, Tensor], stored: Iterable[StoredTensor], source: str) -> None:
    """Copy every stored tensor to the destination of its name; `source` names the file in errors.

    Raises:
        CheckpointError: tensors are missing, surplus, or of another shape.
    """
    by_name = match(destinations, stored, source)
    for name, destination in destinations.items():
        by_name[name].copy_into(destination)


def match(destinations: Mapping[str, Tensor], stored: Iterable[StoredTensor], source: str) -> dict[str, StoredTensor]:
    """Return the stored tensors by name, after a check that they are just those that there are destinations for.

    Raises:
        CheckpointError: tensors are missing, surplus, or of another shape.
    """
    by_name = {tensor.name: tensor for tensor in stored}
    problems = [
        ("lacks", [name for name in destinations if name not in by_name]),
        ("has tensors that the model does not use:", [name for name in by_name if name not in destinations]),
        (
            "has tensors of unexpected shape:",
            [
                f"{name} {list(by_name[name].shape)} instead of {list(destination.shape)}"
                for name, destination in destinations.items()
                if name in by_name and by_name[name].shape != tuple(destination.shape)
            ],
        ),
    ]
    found = [f"{what} {_some(names)}" for what, names in problems if names]
    if found:
        raise CheckpointError(
            f"{source} does not fit its own configuration: it {'; it '.join(found)}. "
            "The file is damaged, incomplete, or of a variant that is not supported."
        )
    return by_name


def _some(names: list[str]) -> str:
    listed = ", ".join(names[:_NUM_LISTED])
    return listed if len(names) <= _NUM_LISTED else f"{listed} and {len(names) - _NUM_LISTED} more"
