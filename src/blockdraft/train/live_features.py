"""Features that the target makes while a drafter trains: no disk, but the target runs in every epoch.

For a run of few epochs over much data, or where the hidden states would not fit on the disk.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from blockdraft.models.base import Target
from blockdraft.train.features import FeatureManifest, TextFeatures, TrainingText, capture


class LiveFeatures:
    """Runs the target over the texts of a batch when they are asked for, in one pass where they fit."""

    def __init__(self, target: Target, texts: Sequence[TrainingText], manifest: FeatureManifest) -> None:
        self.manifest = manifest
        self.lengths = [len(text.token_ids) for text in texts]
        self.num_anchors = [sum(a and b for a, b in zip(text.supervised, text.supervised[1:], strict=False))
                            for text in texts]  # fmt: skip
        self._target, self._texts = target, texts

    def __len__(self) -> int:
        return len(self._texts)

    def read(self, indices: Sequence[int]) -> list[TextFeatures]:
        """Return some texts, as a feature folder would store them."""
        found = capture(self._target, [self._texts[index] for index in indices], self.manifest)
        ends = [*accumulate(found.pop("lengths").tolist())]
        starts = [0, *ends[:-1]]
        found["supervised"] = found["supervised"].bool()
        return [
            TextFeatures(**{name: tensor[start:end] for name, tensor in found.items()})
            for start, end in zip(starts, ends, strict=True)
        ]

    def token_counts(self) -> np.ndarray:
        """Return how often each token stands in an answer, [V]."""
        counts = np.zeros(self.manifest.vocab_size, dtype=np.int64)
        for text in self._texts:
            chosen = np.asarray(text.token_ids)[np.asarray(text.supervised, dtype=bool)]
            counts += np.bincount(chosen, minlength=len(counts))
        return counts
