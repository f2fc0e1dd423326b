"""Keys and values of one sequence, as whole numbers and in the order in which the native kernels read them.

Keys take sixteen bits and values eight, with a scale per head and token (`native/attention.h` says why).

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
        return self.num_heads * sum(self.part_bytes)

    @property
    def part_bytes(self) -> tuple[int, ...]:
        """Bytes of the key, the value and the scale of each, of one token and head."""
        return 2 * self.head_dim, self.head_dim, 4, 4

    @property
    def num_heads(self) -> int:
        """Key/value heads of all layers."""
        return self.num_layers * self.num_kv_heads


class PackedKVCache(RowCache):
    """Growing key/value store of one sequence.

    `memory` holds keys int16 [L, G, C / 16, H / 2, 16, 2], values int8 [L, G, C / 2, H, 2], and their scales float32
    [L, G, C] each. Rows past `length` are finite: zero or stale.
    """

    def __init__(self, layout: PackedKVLayout, capacity: int = 0) -> None:
        self.layout = layout
        self._allocate(padded_length(max(capacity, 1)))

    def _allocate(self, capacity: int) -> None:
        # Zeros, not empty: masked rows take part in the arithmetic, and 0 * NaN is NaN.
        self.memory = torch.from_numpy(zeroed_memory(capacity * self.layout.bytes_per_token))
        self._capacity = capacity

    def _parts(self) -> list[Tensor]:
        """Return keys, values and the scales of each, as bytes [L * G, bytes of all tokens]."""
        sizes = [self.layout.num_heads * self._capacity * count for count in self.layout.part_bytes]
        return [part.view(self.layout.num_heads, -1) for part in torch.split(self.memory, sizes)]

    @property
    def capacity(self) -> int:
        """Tokens that fit without growing."""
        return self._capacity

    @property
    def num_bytes(self) -> int:
        """Bytes held, capacity included."""
        return self.memory.nbytes

    def _grow(self, capacity: int) -> None:
        old = self._parts()
        self._allocate(capacity)
        # Every part begins with the oldest tokens, in whole blocks.
        held = -(-self.length // BLOCK) * BLOCK
        for part, old_part, count in zip(self._parts(), old, self.layout.part_bytes, strict=True):
            part[:, : held * count] = old_part[:, : held * count]

    def take_rows(self, num_rows: int) -> PackedSegment:
        """Make room for `num_rows` and return them as the kernels take them; `advance` keeps them."""
        self.reserve(num_rows)
        return PackedSegment(self.memory, self._capacity, self.length, num_rows)
