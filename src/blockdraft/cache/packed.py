"""Keys and values of one sequence, in half precision and in the order in which the native kernels read them.

Shape legend: L layers, G key/value heads, H head size, C capacity in tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from blockdraft.runtime.native_core import PackedSegment

BLOCK = 16
"""Keys of so many tokens lie side by side, channel after channel."""

ROW_MULTIPLE = 64
"""Capacities are multiples of this many tokens."""


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


class PackedKVCache:
    """Growing key/value store of one sequence; rollback is a change of `length`. Not thread safe.

    Memory holds keys [L, G, C / 16, H, 16], then values [L, G, C, H]. Rows past `length` are finite: zero or stale.
    """

    def __init__(self, layout: PackedKVLayout, capacity: int = 0) -> None:
        self.layout = layout
        self.length = 0
        self._allocate(capacity)

    def _allocate(self, capacity: int) -> None:
        self.capacity = -(-max(capacity, 1) // ROW_MULTIPLE) * ROW_MULTIPLE
        layout = self.layout
        heads = layout.num_layers * layout.num_kv_heads
        # Zeros, not empty: masked rows take part in the arithmetic, and 0 * NaN is NaN.
        self.memory: NDArray[np.uint16] = np.zeros((2, heads, self.capacity * layout.head_dim), dtype=np.uint16)

    @property
    def num_bytes(self) -> int:
        """Bytes held, capacity included."""
        return self.memory.nbytes

    def reserve(self, num_tokens: int) -> None:
        """Make room for `num_tokens` rows past `length`."""
        needed = self.length + num_tokens
        if needed <= self.capacity:
            return
        old, held = self.memory, -(-self.length // BLOCK) * BLOCK * self.layout.head_dim
        self._allocate(max(needed, 2 * self.capacity))
        # Both halves begin with the oldest tokens, in whole blocks.
        self.memory[:, :, :held] = old[:, :, :held]

    def take_rows(self, num_rows: int) -> PackedSegment:
        """Make room for `num_rows` and return them as the kernels take them; `advance` keeps them."""
        self.reserve(num_rows)
        return PackedSegment(self.memory, self.capacity, self.length, num_rows)

    def advance(self, num_tokens: int) -> None:
        """Count `num_tokens` written rows as part of the sequence."""
        assert self.length + num_tokens <= self.capacity
        self.length += num_tokens

    def rollback(self, num_kept: int) -> None:
        """Forget all rows but the first `num_kept`."""
        assert 0 <= num_kept <= self.length, f"cannot roll back from {self.length} to {num_kept} tokens"
        self.length = num_kept
