"""Memory for what a pass reads from end to end: weights, keys and values."""

from __future__ import annotations

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
