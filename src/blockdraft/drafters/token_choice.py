"""How a drafter that borrows from its target turns hidden states into draft tokens.

The head may be the target's or one of the drafter's own over a reduced vocabulary; tokens are then widened to the
target's ids. Sampled requests get sampled drafts, each with the draw of its own position.

Shape legend: A sequences at the same slot, K draft tokens of one sequence, V target vocabulary, U draft vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import get_args

import numpy as np
import torch
from torch import Tensor

from blockdraft.core.random import Draw
from blockdraft.core.sampling import greedy_ids, sample_rows, shape_probs
from blockdraft.drafters.base import Ask, Proposal
from blockdraft.drafters.config import DraftSampling
from blockdraft.drafters.draft_checkpoint import reduced_ids
from blockdraft.errors import ConfigError


@dataclass
class Drawn:
    """What was chosen for one sequence, slot by slot."""

    ids: list[int] = field(default_factory=list)
    probs: list[Tensor] = field(default_factory=list)
    confidence: list[float] = field(default_factory=list)

    def proposal(self, drafter: str, *, with_confidence: bool) -> Proposal:
        """Return what was drafted."""
        return Proposal(
            draft_ids=tuple(self.ids),
            draft_probs=torch.cat(self.probs) if self.probs else None,
            confidence=tuple(self.confidence) if with_confidence else None,
            drafter=drafter,
        )


def collect(order: Sequence[Drawn], ids: Sequence[Tensor], confidence: Sequence[Tensor]) -> None:
    """Bring what was chosen back to the host in one transfer for all slots, not slot by slot.

    Shapes: ids and, if there is any, confidence: [A] for each slot, which one after another belong to `order`.
    """
    for own, draft_id in zip(order, torch.cat(list(ids)).tolist() if ids else (), strict=True):
        own.ids.append(draft_id)
    if confidence:
        for own, value in zip(order, torch.cat(list(confidence)).tolist(), strict=True):
            own.confidence.append(value)


class TokenChoice:
    """Chooses draft tokens and says from which distribution.

    Raises:
        ConfigError: `draft_sampling` is unknown.
    """

    def __init__(self, vocab_size: int, draft_sampling: DraftSampling, offsets: Tensor | None = None) -> None:
        """Take the target's vocabulary size and, for a reduced vocabulary, `d2t`."""
        if draft_sampling not in get_args(DraftSampling):
            raise ConfigError(f"draft_sampling must be 'probabilistic' or 'greedy', not {draft_sampling!r}")
        self.vocab_size = vocab_size
        self.draft_sampling = draft_sampling
        self.target_ids: Tensor | None = None
        if offsets is not None:
            self.target_ids = reduced_ids(offsets)

    def is_sampled(self, ask: Ask) -> bool:
        """Return whether this request's drafts are sampled."""
        return self.draft_sampling == "probabilistic" and not ask.sampling.is_greedy

    def draws(self, asks: Sequence[Ask], counts: Sequence[int], device: torch.device) -> Sequence[Tensor]:
        """Return the draws of all slots, brought to the device in one transfer; nothing if all are greedy.

        Shapes: [K] for each sequence.
        """
        if not any(self.is_sampled(ask) for ask in asks):
            return [torch.empty(0)] * len(asks)
        draws = [
            ask.random.uniforms(len(ask.token_ids), count)[:, Draw.DRAFT]
            for ask, count in zip(asks, counts, strict=True)
        ]
        return torch.split(torch.from_numpy(np.concatenate(draws)).to(device), list(counts))

    def sample(self, logits: Tensor, ask: Ask, draws: Tensor) -> tuple[Tensor, Tensor]:
        """Draw the tokens of consecutive slots from the distribution the request asked for.

        Shapes: logits [K, U], draws [K]; returns draft ids [K] and probabilities [K, U].
        """
        probs = shape_probs(logits, ask.sampling)
        return sample_rows(probs, draws), probs

    def choose(self, logits: Tensor, members: Sequence[tuple[Ask, Drawn, Tensor]]) -> Tensor:
        """Choose one draft id per member, each with its draw [1]; probabilities go to its `Drawn`.

        Shapes: logits [A, U]; returns draft ids [A].
        """
        if not any(self.is_sampled(ask) for ask, _, _ in members):
            return greedy_ids(logits)
        chosen = []
        for row, (ask, own, draw) in zip(torch.split(logits, 1), members, strict=True):
            if self.is_sampled(ask):
                ids, probs = self.sample(row, ask, draw)
                own.probs.append(self.to_target_probs(probs))
            else:
                ids = greedy_ids(row)
            chosen.append(ids)
        return torch.cat(chosen)

    def to_target_ids(self, draft_ids: Tensor) -> Tensor:
        """Return the target's ids of draft ids."""
        return draft_ids if self.target_ids is None else self.target_ids[draft_ids]

    def to_target_probs(self, probs: Tensor) -> Tensor:
        """Widen [K, U] to [K, V]: a token outside the draft vocabulary is never drafted."""
        if self.target_ids is None:
            return probs
        wide = probs.new_zeros(len(probs), self.vocab_size)
        return wide.index_copy_(1, self.target_ids, probs)
