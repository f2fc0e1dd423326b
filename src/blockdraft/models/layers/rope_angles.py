"""Rope for the native kernels: tables of cosines and sines by position, in float32.

Shape legend: P positions.
"""

from __future__ import annotations

import numpy as np

from blockdraft.models.config import RopeConfig
from blockdraft.models.layers.rope import rope_frequencies
from blockdraft.runtime.native_core import Floats


class RopeAngles:
    """Tables of cosines and sines that grow; what is in them never changes, and threads may share them."""

    def __init__(self, config: RopeConfig) -> None:
        inverse, self._factor = rope_frequencies(config)
        self._inverse: Floats = inverse.numpy()
        empty = np.empty((0, len(self._inverse)), dtype=np.float32)
        self._tables: tuple[Floats, Floats] = empty, empty  # replaced together, so that no thread sees one of each

    def up_to(self, num_positions: int) -> tuple[Floats, Floats]:
        """Return cosines and sines [P, rotary_dim / 2] with P >= num_positions."""
        cosines, sines = self._tables
        known = len(cosines)
        if num_positions > known:
            positions = np.arange(known, max(2 * num_positions, 1024), dtype=np.float32)
            angles = (positions[:, None] * self._inverse).astype(np.float64)
            cosines = np.concatenate((cosines, (np.cos(angles) * self._factor).astype(np.float32)))
            sines = np.concatenate((sines, (np.sin(angles) * self._factor).astype(np.float32)))
            self._tables = cosines, sines
        return cosines, sines
