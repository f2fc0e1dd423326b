"""From stored features to batches of blocks: which texts, which anchors, which slots are taught.

An anchor is a token the target chose, whose next token it chose too. Anchors are drawn anew in every epoch;
the draws of a text depend on the seed, the epoch and the text alone, so a run can stop and go on anywhere, on
any number of processes. Slot k of a block is taught as long as all tokens up to its own are the target's.

Shape legend: X texts, S tokens of the longest text, n blocks of a text, K slots, c candidates, M taps, D width.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from blockdraft.train.features import Features, TextFeatures

SORT_WINDOW = 1024
"""Within a shuffled run of this many texts, those of similar length are put together."""


@dataclass(frozen=True, kw_only=True)
class BlockBatch:
    """Blocks of several texts.

    Shapes: token_ids [X, S]; features [X, S, M*D]; anchors [X, n]; previous_ids [X, n, K] (the token before each
    slot's); label_ids [X, n, K]; is_supervised bool [X, n, K]; candidate_ids and candidate_probs [X, n, K, c].
    """

    token_ids: Tensor
    features: Tensor
    anchors: Tensor
    previous_ids: Tensor
    label_ids: Tensor
    is_supervised: Tensor
    candidate_ids: Tensor
    candidate_probs: Tensor

    @property
    def num_blocks(self) -> int:
        """How many blocks have a slot to teach."""
        return int(self.is_supervised[..., 0].sum())

    def to(self, device: torch.device) -> BlockBatch:
        """Return the batch on a device."""
        return BlockBatch(**{name: tensor.to(device, non_blocking=True) for name, tensor in vars(self).items()})


@dataclass(frozen=True, kw_only=True)
class BatchPlan:
    """How an epoch is cut into batches."""

    blocks_per_batch: int
    anchors_per_text: int
    num_slots: int
    seed: int


def valid_anchors(supervised: np.ndarray) -> np.ndarray:
    """Return the places where a block may begin. Shapes: supervised bool [T]; returns [A]."""
    return np.flatnonzero(supervised[:-1] & supervised[1:])


def draw_anchors(supervised: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """Draw at most `count` anchors without replacement, in rising order."""
    valid = valid_anchors(supervised)
    return valid if len(valid) <= count else np.sort(rng.choice(valid, count, replace=False))


class EpochSampler:
    """Says which texts stand together in each batch of an epoch."""

    def __init__(self, features: Features, texts: Sequence[int], plan: BatchPlan) -> None:
        self.features, self.texts, self.plan = features, list(texts), plan

    def batches(self, epoch: int) -> list[list[int]]:
        """Return the texts of every batch of an epoch, in order."""
        rng = np.random.default_rng((self.plan.seed, epoch))
        shuffled = [self.texts[place] for place in rng.permutation(len(self.texts))]
        lengths = self.features.lengths
        groups: list[list[int]] = []
        for start in range(0, len(shuffled), SORT_WINDOW):
            window = sorted(shuffled[start : start + SORT_WINDOW], key=lambda text: lengths[text])
            groups += self._cut(window)
        return [groups[place] for place in rng.permutation(len(groups))]

    def _cut(self, window: Sequence[int]) -> Iterator[list[int]]:
        group: list[int] = []
        room = 0
        for text in window:
            # The widest text of a group sets how many blocks each of its texts is padded to.
            room = max(room, min(self.features.num_anchors[text], self.plan.anchors_per_text))
            if group and room * (len(group) + 1) > self.plan.blocks_per_batch:
                yield group
                group, room = [], min(self.features.num_anchors[text], self.plan.anchors_per_text)
            group.append(text)
        if group:
            yield group

    def load(self, epoch: int, texts: Sequence[int]) -> BlockBatch:
        """Read the texts of a batch and draw their anchors."""
        loaded = self.features.read(texts)
        anchors = [
            draw_anchors(
                text.supervised.numpy(),
                self.plan.anchors_per_text,
                np.random.default_rng((self.plan.seed, epoch, index)),
            )
            for text, index in zip(loaded, texts, strict=True)
        ]
        return collate(loaded, anchors, self.plan.num_slots)


def collate(texts: Sequence[TextFeatures], anchors: Sequence[np.ndarray], num_slots: int) -> BlockBatch:
    """Put the blocks of several texts side by side; missing blocks are there with nothing to teach."""
    n, K = max(1, *(len(own) for own in anchors)), num_slots
    S = max(len(text.token_ids) for text in texts)
    first = texts[0]
    X, c = len(texts), first.candidate_ids.shape[1]
    features = first.target_hidden.new_zeros(X, S, first.target_hidden.shape[1])
    token_ids = torch.zeros(X, S + K, dtype=torch.long)
    supervised = torch.zeros(X, S + K, dtype=torch.bool)
    candidate_ids = torch.zeros(X, S + K, c, dtype=torch.long)
    candidate_probs = torch.zeros(X, S + K, c)
    placed = torch.zeros(X, n, dtype=torch.long)
    is_block = torch.zeros(X, n, dtype=torch.bool)
    for row, (text, own) in enumerate(zip(texts, anchors, strict=True)):
        T = len(text.token_ids)
        features[row, :T] = text.target_hidden
        token_ids[row, :T] = text.token_ids
        supervised[row, :T] = text.supervised
        candidate_ids[row, :T] = text.candidate_ids
        candidate_probs[row, :T] = text.candidate_probs
        placed[row, : len(own)] = torch.from_numpy(own)
        is_block[row, : len(own)] = True
    before = placed[..., None] + torch.arange(K)  # [X, n, K]: the token before slot k
    rows = torch.arange(X)[:, None, None]
    taught = supervised[rows, before + 1] & is_block[..., None]
    return BlockBatch(
        token_ids=token_ids[:, :S],
        features=features,
        anchors=placed,
        previous_ids=token_ids[rows, before],
        label_ids=token_ids[rows, before + 1],
        is_supervised=taught.cumprod(-1).bool(),
        candidate_ids=candidate_ids[rows, before],
        candidate_probs=candidate_probs[rows, before],
    )
