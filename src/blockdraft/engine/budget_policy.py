"""How many slots a round verifies is known before its drafts are: a budget from confidences that are two rounds old.

The adaptive policy stops at the first slot that does not raise the expected tokens per second. Where costs are jagged
(a few more rows for nothing, then a step), a search over all sizes finds more, but may not look at the drafts that it
decides about. So it looks at older ones, and the current drafts only say which slots fill the budget: the likeliest.
Batch sizes that are known early also let an engine prepare its pass while drafts are made.

Ref: arXiv:2607.05147, Sec. 5.2 (capacity from stale confidences, without early stop).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from blockdraft.drafters.base import Proposal
from blockdraft.engine.adaptive_policy import AdaptivePolicy, count_cut
from blockdraft.engine.kept_slots import Calibration, KeptSlots
from blockdraft.engine.policy import Situation

STALENESS = 2
"""Rounds that lie between confidences and the budget made of them."""


class BudgetState(dict[str, KeptSlots | Calibration]):
    """What is known of a sequence: what was kept of each drafter's slots, and the survivals of its last drafts."""

    def __init__(self, kept: dict[str, KeptSlots | Calibration]) -> None:
        super().__init__(kept)
        self.survivals: deque[tuple[float, ...]] = deque(maxlen=STALENESS)


@dataclass(kw_only=True)
class BudgetPolicy(AdaptivePolicy):
    """Drafts like the adaptive policy; verifies the likeliest slots up to a budget for all sequences together."""

    name = "budget"

    def begin(self) -> BudgetState:
        return BudgetState(super().begin())

    def admit(self, proposals: Sequence[Proposal], situations: Sequence[Situation]) -> list[Proposal]:
        """Admit as many slots as older confidences say, the likeliest of the current ones first.

        Drafts without confidences, and those that take no time, are as with the adaptive policy. A sequence
        without older confidences counts as sure of its slots.
        """
        lengths, current = self._given(proposals, situations)
        slots = sorted((-survival, row, slot) for row, own in enumerate(current) for slot, survival in enumerate(own))
        if not slots:
            return [proposal.cut(length) for proposal, length in zip(proposals, lengths, strict=True)]
        older = [
            survival
            for own, situation in zip(current, situations, strict=True)
            if own
            for survival in _older(situation.state, len(own))
        ]
        depth = max(situation.depth for situation in situations)
        draft_s = max(self.costs.draft(proposal.drafter, len(proposal)) for proposal in proposals)
        budget = self._budget(sorted(older, reverse=True), len(proposals) + sum(lengths), depth, draft_s)
        for _, row, slot in slots[:budget]:
            lengths[row] = slot + 1
        count_cut(proposals, situations, lengths)
        for own, situation in zip(current, situations, strict=True):
            if own:
                situation.state.survivals.append(own)
        return [proposal.cut(length) for proposal, length in zip(proposals, lengths, strict=True)]

    def _budget(self, survivals: Sequence[float], num_given: int, depth: int, draft_s: float) -> int:
        """Return how many slots give the most expected tokens per second, of those in falling order."""
        totals = accumulate(survivals, initial=float(num_given))
        rates = [
            tokens / (self.costs.target(num_given + count, depth) + draft_s) for count, tokens in enumerate(totals)
        ]
        return max(range(len(rates)), key=rates.__getitem__)


def _older(state: Any, num_slots: int) -> tuple[float, ...]:
    """Return the survivals of a draft two rounds ago, for as many slots as are drafted now."""
    if len(state.survivals) < STALENESS:
        return (1.0,) * num_slots
    own: tuple[float, ...] = state.survivals[0][:num_slots]
    # Slots that were not drafted then are taken to be like the last one that was.
    return own + own[-1:] * (num_slots - len(own))
