"""What can be measured: something that answers conversations, so many at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from blockdraft.bench.speed.drafts import DraftCounts
from blockdraft.bench.speed.records import Sample, SideInfo
from blockdraft.engine.workloads import Workload

Emit = Callable[[Sample], None]

WARM_UP_PROMPT = "Count slowly from one to thirty, in words."
WARM_UP_TOKENS = 16


@dataclass(frozen=True, kw_only=True)
class AnswerSettings:
    """How prompts are answered, on both sides alike."""

    max_tokens: int = 128
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0
    ignore_eos: bool = False

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


class Side(Protocol):
    """One of two things that are compared."""

    @property
    def info(self) -> SideInfo: ...

    def warm_up(self, concurrency: int) -> None:
        """Answer a prompt that is not measured, `concurrency` times at once.

        Raises:
            BlockdraftError: it does not answer, so there is nothing to measure.
        """

    def words_per_token(self) -> float:
        """Return how many words of filler make a token."""

    def serve(self, conversations: Sequence[Workload], *, repeat: int, concurrency: int, emit: Emit) -> None:
        """Answer conversations turn by turn, `concurrency` of them in flight; hand each request to `emit` when it ends.

        Requests that are cut short by an interrupt are handed over too, marked as cancelled.
        """

    def take_drafts(self) -> DraftCounts | None:
        """Return what was drafted and kept since the last call; None if that cannot be told."""

    def close(self) -> None:
        """Let go of connections."""
