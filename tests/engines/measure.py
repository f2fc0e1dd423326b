"""The same measurement for every engine: greedy answers to the same prompts, and how much of the drafts was kept."""

from collections.abc import Sequence
from dataclasses import dataclass

from blockdraft.core.acceptance import AcceptanceStats
from blockdraft.engine import Engine
from blockdraft.engine.workloads import pick, read_workloads

NUM_PROMPTS = 20
MAX_TOKENS = 64
TOLERANCE = 0.05


@dataclass(frozen=True, kw_only=True)
class Acceptance:
    """Counters of an engine; every engine has these three. Only rounds with drafts count."""

    num_rounds: int
    num_drafted: int
    num_accepted: int

    @property
    def mean_acceptance_length(self) -> float:
        return 1 + self.num_accepted / self.num_rounds

    def __str__(self) -> str:
        return (
            f"mean acceptance length {self.mean_acceptance_length:.3f} "
            f"({self.num_accepted} of {self.num_drafted} drafted in {self.num_rounds} rounds)"
        )


def prompts_of(engine: Engine) -> list[tuple[int, ...]]:
    """Return prompts of all kinds as token ids, so that no engine's chat template has a say."""
    return [engine.encode(workload.turns[0]) for workload in pick(read_workloads(), NUM_PROMPTS)]


def measure_own(engine: Engine, prompts: Sequence[tuple[int, ...]]) -> Acceptance:
    stats = AcceptanceStats.merge(answer.stats for answer in engine.generate_batch(prompts, max_tokens=MAX_TOKENS))
    # The last token of an answer that is cut has no room for drafts; other engines do not count that round.
    return Acceptance(num_rounds=stats.drafted_at[0], num_drafted=stats.num_drafted, num_accepted=stats.num_accepted)


def check_equal(name: str, ours: Acceptance, theirs: Acceptance) -> None:
    """Show both, and compare them; a drafter that is never right would agree in every engine."""
    print(f"{name}: ours {ours}; theirs {theirs}")
    assert ours.mean_acceptance_length > 1.1, "this drafter is too bad to tell a wrong layout from a right one"
    ratio = theirs.mean_acceptance_length / ours.mean_acceptance_length
    assert abs(ratio - 1) <= TOLERANCE, f"{name}: ours {ours}; theirs {theirs}"
