"""Rope for the native kernels: tables of cosines and sines by position, in float32.

Shape legend: P positions.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from blockdraft.models.config import RopeConfig
from blockdraft.models.layers.rope import rope_frequencies


class RopeAngles:
    """Tables of cosines and sines that grow; what is in them never changes, and threads may share them."""

    def __init__(self, config: RopeConfig) -> None:
        inverse, self._factor = rope_frequencies(config)
        self._inverse = inverse.numpy()
        empty = torch.empty(0, len(self._inverse))
        self._tables: tuple[Tensor, Tensor] = empty, empty  # replaced together, so that no thread sees one of each

    def up_to(self, num_positions: int) -> tuple[Tensor, Tensor]:
        """Return cosines and sines [P, rotary_dim / 2] with P >= num_positions."""
        cosines, sines = self._tables
        known = cosines.shape[0]
        if num_positions > known:
            positions = np.arange(known, max(2 * num_positions, 1024), dtype=np.float32)
            angles = (positions[:, None] * self._inverse).astype(np.float64)
            new = ((of(angles) * self._factor).astype(np.float32) for of in (np.cos, np.sin))
            cosines, sines = (
                torch.cat((old, torch.from_numpy(more))) for old, more in zip((cosines, sines), new, strict=True)
            )
            self._tables = cosines, sines
        return cosines, sines
