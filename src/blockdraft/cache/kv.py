"""Keys and values of one sequence, appended in order and rolled back by forgetting rows.

A sequence owns one contiguous tensor for all layers. Rollback is a change of `length`: rows past it are
overwritten by the next pass. Capacity grows by doubling and is a multiple of `ROW_MULTIPLE`, so that an
attention kernel may read a padded length; rows past `length` are finite (zero or stale), never garbage.

Shape legend: T new rows, S stored rows, N key/value heads, H head size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from blockdraft.cache.rows import RowCache, padded_length


class SequenceCache(Protocol):
    """The state of one sequence inside a target or a draft model."""

    @property
    def length(self) -> int:
        """How many tokens the state holds."""
        ...

    def rollback(self, num_kept: int) -> None:
        """Return every layer to the state after the first `num_kept` tokens."""
        ...


@dataclass(frozen=True, kw_only=True)
class KVLayout:
    """What one row of a cache looks like."""

    num_layers: int
    num_kv_heads: int
    head_dim: int
    dtype: torch.dtype
    device: torch.device

    @property
    def bytes_per_token(self) -> int:
        """Bytes that one token takes over all layers."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * self.dtype.itemsize


class KVCache(RowCache):
    """Growing key/value store of one sequence.

    Between `reserve` and `advance`, a pass calls `write(layer, keys, values)` for each layer.
    """

    def __init__(self, layout: KVLayout, capacity: int = 0) -> None:
        self.layout = layout
        self._rows = self._allocate(padded_length(max(capacity, 1)))

    def _allocate(self, capacity: int) -> Tensor:
        layout = self.layout
        shape = (layout.num_layers, 2, layout.num_kv_heads, capacity, layout.head_dim)
        # Zeros, not empty: masked rows take part in the arithmetic, and 0 * NaN is NaN.
        return torch.zeros(shape, dtype=layout.dtype, device=layout.device)

    @property
    def capacity(self) -> int:
        """Rows that fit without growing."""
        return self._rows.shape[3]

    @property
    def num_bytes(self) -> int:
        """Bytes held, capacity included."""
        return self._rows.numel() * self._rows.element_size()

    def _grow(self, capacity: int) -> None:
        grown = self._allocate(capacity)
        grown[:, :, :, : self.length] = self._rows[:, :, :, : self.length]
        self._rows = grown

    def write(self, layer: int, keys: Tensor, values: Tensor) -> None:
        """Store the rows of one layer after `length`.

        Shapes: keys and values [T, N, H], RoPE already applied to the keys.
        """
        end = self.length + keys.shape[0]
        self._rows[layer, 0, :, self.length : end] = keys.transpose(0, 1)
        self._rows[layer, 1, :, self.length : end] = values.transpose(0, 1)

    def read(self, layer: int, num_rows: int) -> tuple[Tensor, Tensor]:
        """Return keys and values of the first `num_rows` rows, written or padding, as views.

        Shapes: two tensors [N, num_rows, H]; num_rows <= capacity.
        """
        return self._rows[layer, 0, :, :num_rows], self._rows[layer, 1, :, :num_rows]
