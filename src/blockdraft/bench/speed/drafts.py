"""What was drafted and kept in one pass over prompts, and the figures that follow.

Figures are those of the glossary. Engines count different things: blockdraft counts every round, vLLM and llama.cpp
only those that verified a draft, and some tell no rounds at all. `counts_plain_rounds` and None say so.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import zip_longest
from typing import Any

from blockdraft.bench.endpoint.counters import DraftCounters


@dataclass(frozen=True, kw_only=True)
class DraftCounts(DraftCounters):
    """Counters of an engine, and what only the own engine knows besides."""

    counts_plain_rounds: bool = False
    """Whether `num_rounds` includes rounds that had no draft to verify."""
    reached_at: tuple[int, ...] = ()
    """Rounds that drafted slot i and kept all before it; empty if the engine does not tell."""

    @classmethod
    def of(cls, counters: DraftCounters | None) -> DraftCounts | None:
        """Return the counters of a server in this form."""
        if counters is None or isinstance(counters, DraftCounts):
            return counters
        return cls(
            num_rounds=counters.num_rounds,
            num_drafted=counters.num_drafted,
            num_accepted=counters.num_accepted,
            accepted_at=counters.accepted_at,
            source=counters.source,
        )

    @classmethod
    def merge(cls, parts: Iterable[DraftCounts | None]) -> DraftCounts | None:
        """Return the sum of what is there; None if nothing is. The sum lacks a figure that one of them lacks."""
        known = [part for part in parts if part is not None]
        if not known:
            return None
        return cls(
            source=known[0].source,
            num_rounds=_total([part.num_rounds for part in known]),
            num_drafted=_total([part.num_drafted for part in known]),
            num_accepted=_total([part.num_accepted for part in known]),
            counts_plain_rounds=all(part.counts_plain_rounds for part in known),
            accepted_at=_columns([part.accepted_at for part in known]),
            reached_at=_columns([part.reached_at for part in known]),
        )

    @property
    def never_drafted(self) -> bool:
        """Whether it is certain that nothing was drafted."""
        return (self.num_rounds if self.num_drafted is None else self.num_drafted) == 0

    @property
    def drafted_round_length(self) -> float | None:
        """1 + accepted tokens by rounds that had a draft to verify; None if those are not told apart."""
        own = None if self.counts_plain_rounds else self.num_rounds
        num_rounds = self.reached_at[0] if self.reached_at else own
        return 1 + self.num_accepted / num_rounds if num_rounds and self.num_accepted is not None else None

    def round_length(self, num_tokens: int) -> float | None:
        """Return the mean acceptance length over all rounds that gave `num_tokens`, first tokens left out.

        A round gives its accepted tokens and one of the target's own, so there were `num_tokens - num_accepted` of
        them, whatever an engine counts. None if it does not tell what was accepted.
        """
        if self.num_accepted is None:
            return None
        num_rounds = num_tokens - self.num_accepted
        return num_tokens / num_rounds if num_rounds > 0 else None

    @property
    def conditional_acceptance(self) -> list[float]:
        """P(slot i kept | all before it kept); empty if the engine does not count by slot.

        Exact where the engine tells how often a slot was reached. Elsewhere it is accepted_at[i] / accepted_at[i - 1],
        and at the first slot accepted_at[0] / num_rounds: too low where drafts have different lengths.
        """
        before = self.reached_at or (self.num_rounds or 0, *self.accepted_at[:-1])
        return [kept / tried for kept, tried in zip(self.accepted_at, before, strict=False) if tried]

    @property
    def is_conditional_exact(self) -> bool:
        """Whether it is known how many drafts had so many slots."""
        return bool(self.reached_at)

    def to_dict(self) -> dict[str, Any]:
        """Return counters and figures as plain data."""
        return {
            **asdict(self),
            "acceptance_rate": self.acceptance_rate,
            "mean_acceptance_length": self.mean_acceptance_length,
            "conditional_acceptance": self.conditional_acceptance,
            "is_conditional_exact": self.is_conditional_exact,
        }


def _total(values: Sequence[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


def _columns(parts: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    return tuple(map(sum, zip_longest(*parts, fillvalue=0)))
