"""Counters of what was drafted and kept, and the figures people quote from them. No torch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(kw_only=True)
class AcceptanceStats:
    """Plain counters of rounds; add them with `merge`.

    Only what was emitted counts: a draft that agreed but lay behind a stop is drafted, not accepted.
    """

    num_rounds: int = 0
    num_drafted: int = 0
    num_accepted: int = 0
    num_emitted: int = 0
    drafted_at: list[int] = field(default_factory=list)
    """How many rounds had a draft token in slot i."""
    reached_at: list[int] = field(default_factory=list)
    """How many of them kept every slot before i, so that slot i was what decided."""
    accepted_at: list[int] = field(default_factory=list)
    """How many rounds kept slot i."""
    rounds_by_drafter: dict[str, int] = field(default_factory=dict)
    """Rounds whose draft came from each drafter; rounds without a draft are under "none"."""

    def add_round(self, *, num_drafted: int, num_accepted: int, num_emitted: int, drafter: str) -> None:
        """Count one round of one sequence."""
        self.num_rounds += 1
        self.num_drafted += num_drafted
        self.num_accepted += num_accepted
        self.num_emitted += num_emitted
        missing = num_drafted - len(self.drafted_at)
        self.drafted_at += [0] * missing
        self.reached_at += [0] * missing
        self.accepted_at += [0] * missing
        for slot in range(num_drafted):
            self.drafted_at[slot] += 1
        for slot in range(min(num_accepted + 1, num_drafted)):
            self.reached_at[slot] += 1
        for slot in range(num_accepted):
            self.accepted_at[slot] += 1
        name = drafter if num_drafted else "none"
        self.rounds_by_drafter[name] = self.rounds_by_drafter.get(name, 0) + 1

    @classmethod
    def merge(cls, parts: Iterable[AcceptanceStats]) -> AcceptanceStats:
        """Return the sum of several counters."""
        total = cls()
        for part in parts:
            total.num_rounds += part.num_rounds
            total.num_drafted += part.num_drafted
            total.num_accepted += part.num_accepted
            total.num_emitted += part.num_emitted
            total.drafted_at = _add(total.drafted_at, part.drafted_at)
            total.reached_at = _add(total.reached_at, part.reached_at)
            total.accepted_at = _add(total.accepted_at, part.accepted_at)
            for name, count in part.rounds_by_drafter.items():
                total.rounds_by_drafter[name] = total.rounds_by_drafter.get(name, 0) + count
        return total

    @property
    def mean_acceptance_length(self) -> float:
        """Tokens emitted per round (tau); 1 for plain decoding, 0 before the first round."""
        return self.num_emitted / self.num_rounds if self.num_rounds else 0.0

    @property
    def acceptance_rate(self) -> float:
        """Accepted by drafted tokens; 0 if nothing was drafted."""
        return self.num_accepted / self.num_drafted if self.num_drafted else 0.0

    def survival_at(self, slot: int) -> float:
        """Of the rounds that drafted slot `slot`, the share that kept it (and so all before it)."""
        drafted = self.drafted_at[slot]
        return self.accepted_at[slot] / drafted if drafted else 0.0

    def conditional_acceptance_at(self, slot: int) -> float:
        """Of the rounds that drafted `slot` and kept every slot before it, the share that kept it too."""
        reached = self.reached_at[slot]
        return self.accepted_at[slot] / reached if reached else 0.0

    def to_dict(self) -> dict[str, object]:
        """Return counters and figures as plain data."""
        return {
            "num_rounds": self.num_rounds,
            "num_drafted": self.num_drafted,
            "num_accepted": self.num_accepted,
            "num_emitted": self.num_emitted,
            "mean_acceptance_length": self.mean_acceptance_length,
            "acceptance_rate": self.acceptance_rate,
            "survival": [self.survival_at(slot) for slot in range(len(self.drafted_at))],
            "conditional_acceptance": [self.conditional_acceptance_at(slot) for slot in range(len(self.drafted_at))],
            "rounds_by_drafter": dict(self.rounds_by_drafter),
        }


def _add(left: list[int], right: list[int]) -> list[int]:
    longest = max(len(left), len(right))
    return [(left[i] if i < len(left) else 0) + (right[i] if i < len(right) else 0) for i in range(longest)]
