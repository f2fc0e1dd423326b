"""What was drafted and kept, as far as an engine tells it, and the figures that follow.

Figures are those of the glossary. Engines count different things: blockdraft counts every round, vLLM and llama.cpp only
those that verified a draft, and some tell no rounds at all. `counts_plain_rounds` and None say so.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class DraftCounts:
    """Counters of one pass over prompts."""

    source: str
    """Where they were read, like "/metrics of vllm" or "rounds"."""
    num_drafted: int
    num_accepted: int
    num_rounds: int | None = None
    """None if the engine does not tell."""
    counts_plain_rounds: bool = False
    """Whether `num_rounds` includes rounds that had no draft to verify."""
    accepted_at: tuple[int, ...] | None = None
    """Rounds that kept slot i; None if the engine does not tell."""
    reached_at: tuple[int, ...] | None = None
    """Rounds that drafted slot i and kept all before it; None if the engine does not tell."""

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted by drafted tokens; None if nothing was drafted."""
        return self.num_accepted / self.num_drafted if self.num_drafted else None

    @property
    def mean_acceptance_length(self) -> float | None:
        """Accepted tokens of a round and the target's own one."""
        return 1 + self.num_accepted / self.num_rounds if self.num_rounds else None

    @property
    def conditional_acceptance(self) -> list[float] | None:
        """P(slot i kept | all before it kept).

        Exact where the engine tells how often a slot was reached. Elsewhere it is accepted_at[i] / accepted_at[i - 1],
        and at the first slot accepted_at[0] / num_rounds: too low where drafts have different lengths.
        """
        if self.accepted_at is None:
            return None
        before = self.reached_at
        if before is None:
            if self.num_rounds is None:
                return None
            before = (self.num_rounds, *self.accepted_at[:-1])
        return [kept / tried for kept, tried in zip(self.accepted_at, before, strict=True) if tried]

    @property
    def is_conditional_exact(self) -> bool:
        """Whether `conditional_acceptance` knows how many drafts had so many slots."""
        return self.reached_at is not None

    @classmethod
    def merge(cls, parts: Iterable[DraftCounts | None]) -> DraftCounts | None:
        """Return the sum of what is there; None if nothing is."""
        known = [part for part in parts if part is not None]
        if not known:
            return None
        rounds = [part.num_rounds for part in known]
        return cls(
            source=known[0].source,
            num_drafted=sum(part.num_drafted for part in known),
            num_accepted=sum(part.num_accepted for part in known),
            num_rounds=None if None in rounds else sum(number for number in rounds if number is not None),
            counts_plain_rounds=all(part.counts_plain_rounds for part in known),
            accepted_at=_sum([part.accepted_at for part in known]),
            reached_at=_sum([part.reached_at for part in known]),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return counters and figures as plain data."""
        return {
            **asdict(self),
            "acceptance_rate": self.acceptance_rate,
            "mean_acceptance_length": self.mean_acceptance_length,
            "conditional_acceptance": self.conditional_acceptance,
            "is_conditional_exact": self.is_conditional_exact,
        }


def _sum(columns: list[tuple[int, ...] | None]) -> tuple[int, ...] | None:
    known = [column for column in columns if column is not None]
    if len(known) < len(columns):
        return None
    longest = max(map(len, known))
    return tuple(sum(column[slot] for column in known if slot < len(column)) for slot in range(longest))
