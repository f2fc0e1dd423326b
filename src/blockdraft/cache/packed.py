"""Keys and values of one sequence, in half precision and in the order in which the native kernels read them.

Shape legend: L layers, G key/value heads, H head size, C capacity in tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from blockdraft.cache.rows import RowCache, padded_length
from blockdraft.runtime.memory import zeroed_memory
from blockdraft.runtime.native_core import PackedSegment

BLOCK = 16
"""Keys of so many tokens lie side by side, channel after channel."""


@dataclass(frozen=True, kw_only=True)
class PackedKVLayout:
    """What one token takes."""

    num_layers: int
    num_kv_heads: int
    head_dim: int

    @property
    def bytes_per_token(self) -> int:
        """Bytes that one token takes over all layers."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * 2


class PackedKVCache(RowCache):
    """Growing key/value store of one sequence.

    Memory holds keys [L, G, C / 16, H, 16], then values [L, G, C, H]. Rows past `length` are finite: zero or stale.
    """

    def __init__(self, layout: PackedKVLayout, capacity: int = 0) -> None:
        self.layout = layout
        self.memory = self._allocate(padded_length(max(capacity, 1)))

    def _allocate(self, capacity: int) -> Tensor:
        layout = self.layout
        # Zeros, not empty: masked rows take part in the arithmetic, and 0 * NaN is NaN.
        memory = torch.from_numpy(zeroed_memory(capacity * layout.bytes_per_token)).view(torch.float16)
        return memory.view(2, layout.num_layers * layout.num_kv_heads, capacity * layout.head_dim)

    @property
    def capacity(self) -> int:
        """Tokens that fit without growing."""
        return int(self.memory.shape[2]) // self.layout.head_dim

    @property
    def num_bytes(self) -> int:
        """Bytes held, capacity included."""
        return self.memory.nbytes

    def _grow(self, capacity: int) -> None:
        grown = self._allocate(capacity)
        # Both halves begin with the oldest tokens, in whole blocks.
        held = -(-self.length // BLOCK) * BLOCK * self.layout.head_dim
        grown[:, :, :held] = self.memory[:, :, :held]
        self.memory = grown

    def take_rows(self, num_rows: int) -> PackedSegment:
        """Make room for `num_rows` and return them as the kernels take them; `advance` keeps them."""
        self.reserve(num_rows)
        return PackedSegment(self.memory, self.capacity, self.length, num_rows)
