"""What rounds have shown of a drafter in one answer: how often slots were kept, or how far confidences are off."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import repeat

FIRST_GUESS = 0.5
"""Taken as the share of first slots that are kept until rounds have shown it."""

GUESS_ROUNDS = 3.0
"""The first guess counts as much as so many rounds."""

FADING = 0.98
"""What was learnt counts this much less with every round, whoever drafted in it."""

TRIAL_ROUNDS = 2.5
"""A drafter is tried out until what was learnt counts as much as so many rounds, faded."""

FORGOTTEN_ROUNDS = 0.25
"""It is tried out again when that has faded to so many: after some 115 rounds without a draft."""

FIRM_SLOTS = 8.0
"""Confidences count as much as so many slots that were kept, and lost, just as they said."""


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


@dataclass
class Calibration:
    """By how much the confidences of one drafter have to be corrected: a factor on the odds of being kept."""

    kept: float = 0.0
    lost: float = 0.0
    expected_kept: float = 0.0
    expected_lost: float = 0.0
    rate_to_beat: float = 0.0
    """Tokens per second that a draft has to promise in this round."""
    pending: tuple[float, ...] = ()
    """Confidences of the slots that are verified in this round, as the drafter told them."""

    def begin_round(self, rate_to_beat: float) -> None:
        self.rate_to_beat, self.pending = rate_to_beat, ()

    def fade(self) -> None:
        self.kept *= FADING
        self.lost *= FADING
        self.expected_kept *= FADING
        self.expected_lost *= FADING

    def add(self, num_drafted: int, num_accepted: int) -> None:
        """Count the draft that is being verified: slots behind the first rejected one were not tried."""
        tried = self.pending[: min(num_accepted + 1, num_drafted)]
        self.expected_kept += sum(tried)
        self.expected_lost += len(tried) - sum(tried)
        self.kept += min(num_accepted, len(tried))
        self.lost += max(len(tried) - num_accepted, 0)
        self.pending = ()

    def corrected(self, confidence: Sequence[float]) -> list[float]:
        """Return chances to be kept for confidences as the drafter tells them."""
        odds = ((self.kept + FIRM_SLOTS) * (self.expected_lost + FIRM_SLOTS)) / (
            (self.expected_kept + FIRM_SLOTS) * (self.lost + FIRM_SLOTS)
        )
        return [odds * value / (odds * value + 1 - value) for value in confidence]
