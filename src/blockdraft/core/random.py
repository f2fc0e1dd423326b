"""Uniform draws that depend on a seed and a token position, and on nothing else.

A request owns one `PositionalRandom`. The draws for position i are a pure function of
(seed, i, purpose): neither the batch, nor the order of requests, nor how many tokens were drafted
before changes them. Each purpose has a stream of its own, so the draw that picks a draft token at
position i is independent of the draws that decide about it.

Ref: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011), Philox-4x64, here from NumPy.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from numpy.typing import NDArray


class Draw(IntEnum):
    """What a uniform draw is for. One Philox block of four words serves one position."""

    DRAFT = 0  # picks the draft token
    ACCEPT = 1  # decides whether the draft token is kept
    RESIDUAL = 2  # picks the recovered token after a rejection
    TARGET = 3  # picks a token from the target itself (plain decoding, `match`, bonus)


_PAGE = 256
"""Positions drawn at once: to set up Philox takes as long as to draw thousands of words."""


class PositionalRandom:
    """Uniform draws in [0, 1) keyed by (seed, sample index, position, purpose)."""

    def __init__(self, seed: int, sample_index: int = 0) -> None:
        self._key = (seed & 0xFFFFFFFFFFFFFFFF) | (sample_index << 64)
        self._first = 0
        self._drawn = np.empty((0, 4))

    def uniforms(self, position: int, count: int) -> NDArray[np.float64]:
        """Return the draws of `count` positions from `position` on.

        Shapes: [count, 4] float64, columns in the order of `Draw`. It is a view of what is kept: not to be written.
        """
        if not self._first <= position <= position + count <= self._first + len(self._drawn):
            self._first, self._drawn = position, self._draw(position, max(count, _PAGE))
        start = position - self._first
        return self._drawn[start : start + count]

    def _draw(self, position: int, count: int) -> NDArray[np.float64]:
        generator = np.random.Philox(key=self._key, counter=[position, 0, 0, 0])
        words = np.asarray(generator.random_raw(4 * count), dtype=np.uint64)
        return (words >> np.uint64(11)).astype(np.float64).reshape(count, 4) * 2.0**-53

    def uniform(self, position: int, purpose: Draw) -> float:
        """Return one draw."""
        return float(self.uniforms(position, 1)[0, purpose])
