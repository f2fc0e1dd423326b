"""Memory for what a pass reads from end to end: weights, keys and values."""

from __future__ import annotations

import ctypes
import mmap

import numpy as np
from numpy.typing import NDArray

HUGE_PAGE = 2 << 20
"""Bytes of a huge page, on the processors that have kernels here."""


def zeroed_memory(num_bytes: int) -> NDArray[np.uint8]:
    """Return zeroed bytes, in huge pages where the system has them.

    With small ones, looking up the addresses of pages costs a fifth of a pass.
    """
    if num_bytes < HUGE_PAGE or not hasattr(mmap, "MADV_HUGEPAGE"):
        return np.zeros(num_bytes, np.uint8)
    whole = -(-num_bytes // HUGE_PAGE) * HUGE_PAGE
    pages = mmap.mmap(-1, whole + HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    try:
        pages.madvise(mmap.MADV_HUGEPAGE)
    except OSError:
        # A kernel built without them: small pages then, which is slower and nothing else.
        return np.zeros(num_bytes, np.uint8)
    memory = np.frombuffer(pages, np.uint8)
    start = -memory.ctypes.data % HUGE_PAGE
    return memory[start : start + num_bytes]


class Stretch:
    """A stretch of memory that arrays are copied into, one behind the other."""

    LINE = 64
    """Bytes of a cache line, at which each array begins."""

    def __init__(self, num_bytes: int, num_arrays: int) -> None:
        """`num_bytes` are those of all arrays together."""
        self._free = zeroed_memory(num_bytes + num_arrays * (self.LINE - 1))

    def put(self, array: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Return a copy in this memory."""
        copy = self._free[: array.nbytes].reshape(array.shape)
        copy[...] = array
        self._free = self._free[-(-array.nbytes // self.LINE) * self.LINE :]
        return copy


def give_back_free_memory() -> None:
    """Return to the system what the C library holds of freed memory, where it can (glibc).

    Loading leaves much behind that it would keep for later: 60 MB for the default pair.
    """
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):
        return
    trim(0)
