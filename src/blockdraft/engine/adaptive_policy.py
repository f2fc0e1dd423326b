"""Drafts as long as it pays: by what was kept so far in this answer, and by what passes cost on this machine.

For each part of the drafter and each length k the policy knows E(k), the tokens that a round is expected to emit, and
C(k), the seconds that it takes. It takes the length with the most tokens per second, and none at all (parking) where
plain decoding is faster. What was learnt fades from round to round, so a parked drafter is tried again after a while.
One that no round has tried, or none for long, is tried out even if the guess says that it does not pay, unless it could
not pay if it were good: a guess alone parks nobody.

Where a drafter tells how sure it is of each slot, its draft is then cut at the first slot that is not worth its row.

Nothing here looks at a token that is being decided on: lengths are set before anything is drafted, and a slot is cut by
confidences that were known before its token was drawn.

Ref: arXiv:2607.05147, Alg. 1 (confidence-scheduled verification, with early stop).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, repeat
from operator import mul

from blockdraft.drafters.base import DrafterTraits, Proposal
from blockdraft.engine.pass_costs import PassCosts
from blockdraft.engine.policy import Situation
from blockdraft.engine.results import Round

FIRST_GUESS = 0.5
"""Taken as the share of first slots that are kept until rounds have shown it."""

GUESS_ROUNDS = 3.0
"""The first guess counts as much as so many rounds."""

FADING = 0.98
"""What was learnt counts this much less with every round, whoever drafted in it."""

LEAST_SURVIVAL = 0.01
"""Slots that are less likely to be reached are not thought about."""

DEPTH_STEP = 64
"""Costs are looked up for depths so far apart."""

MARGIN = 1.02
"""Speculation must promise to be this much faster than plain decoding."""

HOPE = 0.8
"""Share of slots that good drafts keep. A drafter that would not pay with it is not tried out."""

TRIAL_ROUNDS = 2.5
"""A drafter is tried out until what was learnt counts as much as so many rounds, faded."""

FORGOTTEN_ROUNDS = 0.25
"""It is tried out again when that has faded to so many: after some 115 rounds without a draft."""

TRIAL_TOKENS = 2
"""Most tokens of a draft that is made to try a drafter out."""


@dataclass
class KeptSlots:
    """How often the slots of one drafter's drafts were kept, given that those before them were."""

    tried: list[float] = field(default_factory=list)
    kept: list[float] = field(default_factory=list)
    is_tried_out: bool = False
    """True from TRIAL_ROUNDS of evidence until no more than FORGOTTEN_ROUNDS are left of it."""

    def fade(self) -> None:
        self.tried = [FADING * value for value in self.tried]
        self.kept = [FADING * value for value in self.kept]
        if self.tried and self.tried[0] < FORGOTTEN_ROUNDS:
            self.is_tried_out = False

    def add(self, num_drafted: int, num_accepted: int) -> None:
        """Count one draft: slots behind the first rejected one were not tried."""
        num_tried = min(num_accepted + 1, num_drafted)
        missing = num_tried - len(self.tried)
        self.tried += [0.0] * missing
        self.kept += [0.0] * missing
        for slot in range(num_tried):
            self.tried[slot] += 1
            self.kept[slot] += slot < num_accepted
        if self.tried and self.tried[0] >= TRIAL_ROUNDS:
            self.is_tried_out = True

    def chances(self) -> Iterator[float]:
        """Yield the chance of each slot to be kept given those before; a slot is guessed to be like its neighbour."""
        guess = FIRST_GUESS
        for tried, kept in zip(self.tried, self.kept, strict=True):
            guess = (kept + GUESS_ROUNDS * guess) / (tried + GUESS_ROUNDS)
            yield guess
        yield from repeat(guess)


def count_cut(proposals: Sequence[Proposal], situations: Sequence[Situation], lengths: Sequence[int]) -> None:
    """Count drafts that are cut to nothing as not kept: they were paid for in vain, and no round will tell."""
    for proposal, situation, length in zip(proposals, situations, lengths, strict=True):
        if proposal and not length:
            situation.state[proposal.drafter].add(1, 0)


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

    def begin(self) -> dict[str, KeptSlots]:
        return {traits.name: KeptSlots() for traits in self.traits}

    def limits(self, situation: Situation) -> Mapping[str, int]:
        plain_rate = 1 / self._pass_s(situation, 0)
        choices = {traits.name: self._best(traits, situation, plain_rate) for traits in self.traits}
        limits = {}
        rate_to_beat = plain_rate * MARGIN
        # From the last part to the first: one that promises less than a later one would only stand in its way.
        for name, choice in reversed(choices.items()):
            limits[name] = choice.num_tokens if choice.rate >= rate_to_beat else 0
            rate_to_beat = max(rate_to_beat, choice.rate)
        return limits

    def admit(self, proposals: Sequence[Proposal], situations: Sequence[Situation]) -> list[Proposal]:
        """Admit slots of all sequences, the likeliest first, until one more would lower the tokens per second.

        The drafts are made and paid for, and drafts without confidences are verified whole; both count as given.
        """
        lengths = [len(proposal) if proposal.confidence is None else 0 for proposal in proposals]
        slots = sorted(
            (-survival, row, slot)
            for row, proposal in enumerate(proposals)
            for slot, survival in enumerate(accumulate(proposal.confidence or (), mul))
        )
        if not slots:
            return list(proposals)
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

    def observe(self, state: dict[str, KeptSlots], record: Round) -> None:
        for slots in state.values():
            slots.fade()
        if record.drafter:
            state[record.drafter].add(record.num_drafted, record.num_accepted)

    def _best(self, traits: DrafterTraits, situation: Situation, plain_rate: float) -> _Choice:
        slots: KeptSlots = situation.state[traits.name]
        best = self._fastest(traits, situation, slots.chances(), plain_rate)
        if slots.is_tried_out or best.rate >= plain_rate * MARGIN:
            return best
        hoped = self._fastest(traits, situation, repeat(HOPE), plain_rate)
        if hoped.rate < plain_rate * MARGIN:
            return best
        # Tried out for its own sake: it stands in nobody's way.
        return _Choice(min(hoped.num_tokens, TRIAL_TOKENS), plain_rate * MARGIN)

    def _fastest(
        self, traits: DrafterTraits, situation: Situation, chances: Iterable[float], plain_rate: float
    ) -> _Choice:
        """Return the length with the most tokens per second if slots are kept with these chances."""
        most = min(traits.max_draft_tokens, situation.room)
        best, tokens, survival = _Choice(0, plain_rate), 1.0, 1.0
        for count, chance in zip(range(1, most + 1), chances, strict=False):
            survival *= chance
            if survival < LEAST_SURVIVAL:
                break
            tokens += survival
            rate = tokens / (self._pass_s(situation, count) + self.costs.draft(traits.name, count))
            if rate > best.rate:
                best = _Choice(count, rate)
        return best

    def _pass_s(self, situation: Situation, num_drafted: int) -> float:
        """Return what a pass takes if all sequences of the round do as this one does."""
        num_rows, step = situation.num_running * (1 + num_drafted), situation.depth // DEPTH_STEP
        if (num_rows, step) not in self._looked_up:
            self._looked_up[num_rows, step] = self.costs.target(num_rows, step * DEPTH_STEP)
        return self._looked_up[num_rows, step]
