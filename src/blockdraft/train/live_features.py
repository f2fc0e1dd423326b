"""Features that the target makes while a drafter trains: no disk, but the target runs in every epoch.

For a run of few epochs over much data, or where the hidden states would not fit on the disk.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from blockdraft.models.base import Target
from blockdraft.train.batches import valid_anchors
from blockdraft.train.features import FeatureManifest, TextFeatures, TrainingText, capture, count_tokens


class LiveFeatures:
    """Runs the target over the texts of a batch when they are asked for, in one pass where they fit."""

    def __init__(self, target: Target, texts: Sequence[TrainingText], manifest: FeatureManifest) -> None:
        self.manifest = manifest
        self.lengths = [len(text.token_ids) for text in texts]
        self.num_anchors = [len(valid_anchors(np.asarray(text.supervised))) for text in texts]
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
        answers = (np.asarray(text.token_ids)[np.asarray(text.supervised)] for text in self._texts)
        return count_tokens(answers, self.manifest.vocab_size)
