"""Drafts as long as it pays: by what was kept so far in this answer, and by what passes cost on this machine.

For each part of the drafter and each length k the policy knows E(k), the tokens that a round is expected to emit, and
C(k), the seconds that it takes. It takes the length with the most tokens per second, and none at all (parking) where
plain decoding is faster. What was learnt fades from round to round, so a parked drafter is tried again after a while.
One that no round has tried, or none for long, is tried out even if the guess says that it does not pay, unless it could
not pay if it were good: a guess alone parks nobody.

Where a drafter tells how sure it is of each slot, its draft is then cut at the first slot that is not worth its row.
One that drafts in no time (n-grams) is asked in every round, and its confidences, corrected by how the last ones turned
out, decide whether its draft is taken and how much of it.

Nothing here looks at a token that is being decided on: lengths are set before anything is drafted, and a slot is cut by
confidences that were known before its token was drawn.

Ref: arXiv:2607.05147, Alg. 1 (confidence-scheduled verification, with early stop).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, repeat
from operator import mul

from blockdraft.drafters.base import DrafterTraits, Proposal
from blockdraft.engine.kept_slots import Calibration, KeptSlots
from blockdraft.engine.pass_costs import PassCosts
from blockdraft.engine.policy import Situation
from blockdraft.engine.results import Round

LEAST_SURVIVAL = 0.01
"""Slots that are less likely to be reached are not thought about."""

GIVING_UP = 0.9
"""Where a length promises this share of what a shorter one does, longer ones are not thought about either."""

DEPTH_STEP = 64
"""Costs are looked up for depths so far apart."""

MARGIN = 1.02
"""Speculation must promise to be this much faster than plain decoding."""

HOPE = 0.8
"""Share of slots that good drafts keep."""

HOPED_GAIN = 1.25
"""How much faster than plain decoding a drafter has to be with such drafts to be tried out: most keep fewer."""

TRIAL_TOKENS = 2
"""Most tokens of a draft that is made to try a drafter out."""


def count_cut(proposals: Sequence[Proposal], situations: Sequence[Situation], lengths: Sequence[int]) -> None:
    """Count drafts that are cut to nothing as not kept: they were paid for in vain, and no round will tell."""
    for proposal, situation, length in zip(proposals, situations, lengths, strict=True):
        if proposal and not length and isinstance(kept := situation.state[proposal.drafter], KeptSlots):
            kept.add(1, 0)


def may_pay(traits: DrafterTraits, costs: PassCosts) -> bool:
    """Return whether good drafts would be worth trying for one sequence alone, with few tokens in its cache."""
    situation = Situation(state={}, room=traits.max_draft_tokens, depth=costs.depths[0], num_running=1)
    return AdaptivePolicy(traits=[traits], costs=costs).hoped(traits, situation) is not None


@dataclass(frozen=True)
class _Choice:
    """A length and the tokens per second that it promises."""

    num_tokens: int
    rate: float


@dataclass(kw_only=True)
class AdaptivePolicy:
    """Chooses lengths by expected tokens per second, for each sequence alone."""

    traits: Sequence[DrafterTraits]
    costs: PassCosts
    name = "adaptive"
    _looked_up: dict[tuple[int, int], float] = field(default_factory=dict, init=False, repr=False)

    def begin(self) -> dict[str, KeptSlots | Calibration]:
        return {traits.name: Calibration() if traits.is_instant else KeptSlots() for traits in self.traits}

    def limits(self, situation: Situation) -> Mapping[str, int]:
        limits = {}
        rate_to_beat = MARGIN / self._pass_s(situation, 0)
        # From the last part to the first: one that promises less than a later one would only stand in its way.
        for traits in reversed(self.traits):
            kept = situation.state[traits.name]
            if isinstance(kept, Calibration):
                kept.begin_round(rate_to_beat)
                limits[traits.name] = min(traits.max_draft_tokens, situation.room)
            else:
                choice = self._best(traits, situation, kept)
                limits[traits.name] = choice.num_tokens if choice.rate >= rate_to_beat else 0
                rate_to_beat = max(rate_to_beat, choice.rate)
        return limits

    def accepts(self, proposal: Proposal, situation: Situation) -> bool:
        kept = situation.state[proposal.drafter]
        return not isinstance(kept, Calibration) or self._take(proposal, situation, kept) > 0

    def admit(self, proposals: Sequence[Proposal], situations: Sequence[Situation]) -> list[Proposal]:
        """Admit slots of all sequences, the likeliest first, until one more would lower the tokens per second.

        The drafts are made and paid for, drafts without confidences are verified whole, and those that are made in no
        time are as long as is best for their sequences: all that counts as given.
        """
        lengths, survivals = self._given(proposals, situations)
        slots = sorted((-survival, row, slot) for row, own in enumerate(survivals) for slot, survival in enumerate(own))
        if not slots:
            return [proposal.cut(length) for proposal, length in zip(proposals, lengths, strict=True)]
        depth = max(situation.depth for situation in situations)
        draft_s = max(self.costs.draft(proposal.drafter, len(proposal)) for proposal in proposals)
        num_rows = len(proposals) + sum(lengths)
        tokens = float(num_rows)
        rate = tokens / (self.costs.target(num_rows, depth) + draft_s)
        for minus_survival, row, slot in slots:
            num_rows += 1
            tokens -= minus_survival
            longer = tokens / (self.costs.target(num_rows, depth) + draft_s)
            if longer < rate:
                break
            rate, lengths[row] = longer, slot + 1
        count_cut(proposals, situations, lengths)
        return [proposal.cut(length) for proposal, length in zip(proposals, lengths, strict=True)]

    def observe(self, state: dict[str, KeptSlots | Calibration], record: Round) -> None:
        for kept in state.values():
            kept.fade()
        if record.drafter:
            state[record.drafter].add(record.num_drafted, record.num_accepted)

    def _given(
        self, proposals: Sequence[Proposal], situations: Sequence[Situation]
    ) -> tuple[list[int], list[tuple[float, ...]]]:
        """Return how many slots of each proposal are admitted anyhow, and the survivals of those that compete."""
        lengths: list[int] = []
        survivals: list[tuple[float, ...]] = []
        for proposal, situation in zip(proposals, situations, strict=True):
            kept = situation.state[proposal.drafter] if proposal else None
            if isinstance(kept, Calibration):
                lengths.append(self._take(proposal, situation, kept))
                survivals.append(())
            else:
                lengths.append(len(proposal) if proposal.confidence is None else 0)
                survivals.append(tuple(accumulate(proposal.confidence or (), mul)))
        return lengths, survivals

    def _take(self, proposal: Proposal, situation: Situation, kept: Calibration) -> int:
        """Return how many slots of an instant draft to verify: as many as are best, none unless that beats all else.

        A chain asks when the draft is made, and the round again when it is admitted; it is thought about once.
        """
        if not kept.pending:
            confidence = proposal.confidence or ()
            best = self._fastest(proposal.drafter, len(proposal), situation, kept.corrected(confidence))
            if best.rate >= kept.rate_to_beat:
                kept.pending = confidence[: best.num_tokens]
        return len(kept.pending)

    def _best(self, traits: DrafterTraits, situation: Situation, slots: KeptSlots) -> _Choice:
        most = min(traits.max_draft_tokens, situation.room)
        best = self._fastest(traits.name, most, situation, slots.chances())
        rate_to_beat = MARGIN / self._pass_s(situation, 0)
        if slots.is_tried_out or best.rate >= rate_to_beat:
            return best
        if (num_hoped := self.hoped(traits, situation)) is None:
            return best
        # Tried out for its own sake: it stands in nobody's way.
        return _Choice(min(num_hoped, TRIAL_TOKENS), rate_to_beat)

    def hoped(self, traits: DrafterTraits, situation: Situation) -> int | None:
        """Return the best length for a drafter that keeps much; None where that would not gain enough to try."""
        most = min(traits.max_draft_tokens, situation.room)
        hoped = self._fastest(traits.name, most, situation, repeat(HOPE))
        return hoped.num_tokens if hoped.rate >= HOPED_GAIN / self._pass_s(situation, 0) else None

    def _fastest(self, name: str, most: int, situation: Situation, chances: Iterable[float]) -> _Choice:
        """Return the length with the most tokens per second if slots are kept with these chances."""
        best, tokens, survival = _Choice(0, 1 / self._pass_s(situation, 0)), 1.0, 1.0
        for count, chance in zip(range(1, most + 1), chances, strict=False):
            survival *= chance
            if survival < LEAST_SURVIVAL:
                break
            tokens += survival
            rate = tokens / (self._pass_s(situation, count) + self.costs.draft(name, count))
            if rate > best.rate:
                best = _Choice(count, rate)
            elif rate < GIVING_UP * best.rate:
                break
        return best

    def _pass_s(self, situation: Situation, num_drafted: int) -> float:
        """Return what a pass takes if all sequences of the round do as this one does."""
        num_rows, step = situation.num_running * (1 + num_drafted), situation.depth // DEPTH_STEP
        if (num_rows, step) not in self._looked_up:
            self._looked_up[num_rows, step] = self.costs.target(num_rows, step * DEPTH_STEP)
        return self._looked_up[num_rows, step]
