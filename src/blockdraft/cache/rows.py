"""What all caches of rows do alike: grow by doubling, count, and forget.

Rollback is a change of `length`: rows past it are overwritten by the next pass, and stay finite until then.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

ROW_MULTIPLE = 64
"""Capacities are multiples of this many rows, so that a kernel may read a padded length."""


def padded_length(length: int) -> int:
    """Return `length` rounded up to a multiple of `ROW_MULTIPLE`."""
    return -(-length // ROW_MULTIPLE) * ROW_MULTIPLE


class RowCache(ABC):
    """Rows of one sequence, appended in order. Not thread safe.

    A pass over T tokens calls `reserve(T)` once, writes the rows after `length`, and calls `advance(T)` at its end.
    """

    length: int = 0

    @property
    @abstractmethod
    def capacity(self) -> int:
        """Rows that fit without growing."""

    @abstractmethod
    def _grow(self, capacity: int) -> None:
        """Move the first `length` rows to memory for `capacity` rows."""

    def reserve(self, num_tokens: int) -> None:
        """Make room for `num_tokens` rows past `length`."""
        needed = self.length + num_tokens
        if needed > self.capacity:
            self._grow(padded_length(max(needed, 2 * self.capacity)))

    def advance(self, num_tokens: int) -> None:
        """Count `num_tokens` written rows as part of the sequence."""
        assert self.length + num_tokens <= self.capacity
        self.length += num_tokens

    def rollback(self, num_kept: int) -> None:
        """Forget all rows but the first `num_kept`."""
        assert 0 <= num_kept <= self.length, f"cannot roll back from {self.length} to {num_kept} tokens"
        self.length = num_kept
