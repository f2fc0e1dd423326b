"""What a drafter is worth where it counts: acceptance on held-out prompts, in the real engine.

A loss cannot tell: the engine's context, block layout, sampling and verification decide what is kept. So the
trainer asks here while it trains, with a drafter that is still in memory, and what it reads is what is served.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter

from blockdraft.core.acceptance import AcceptanceStats
from blockdraft.core.sampling import SamplingParams
from blockdraft.drafters.base import Drafter
from blockdraft.engine import Engine
from blockdraft.engine.workloads import Workload
from blockdraft.errors import TrainingError
from blockdraft.models.base import Target
from blockdraft.models.tokenizer import Tokenizer


@dataclass(frozen=True, kw_only=True)
class AcceptanceReport:
    """Acceptance of one drafter on a set of prompts, overall and by their category."""

    drafter: str
    temperature: float
    max_tokens: int
    num_prompts: int
    num_tokens: int
    """Of all answers; the first of each comes from the prefill and belongs to no round."""
    seconds: float
    overall: AcceptanceStats
    by_category: dict[str, AcceptanceStats]

    @property
    def mean_acceptance_length(self) -> float:
        return self.overall.mean_acceptance_length

    @property
    def acceptance_rate(self) -> float:
        return self.overall.acceptance_rate

    def to_dict(self) -> dict[str, object]:
        """Return everything as plain data."""
        return {
            "drafter": self.drafter,
            "temperature": self.temperature,
            "max_tokens": self.max_tokens,
            "num_prompts": self.num_prompts,
            "num_tokens": self.num_tokens,
            "seconds": self.seconds,
            **self.overall.to_dict(),
            "by_category": {category: stats.to_dict() for category, stats in self.by_category.items()},
        }


def measure_acceptance(
    target: Target,
    tokenizer: Tokenizer,
    drafter: Drafter,
    prompts: Sequence[Workload],
    *,
    max_tokens: int = 48,
    sampling: SamplingParams | None = None,
    batch: int = 8,
) -> AcceptanceReport:
    """Answer the first turn of each prompt, up to `batch` at a time, and count what the target kept.

    Raises:
        TrainingError: there are no prompts.
        BlockdraftError: the engine cannot serve the pair or a prompt.
    """
    if not prompts:
        raise TrainingError("acceptance needs held-out prompts, and there are none; name a prompt file")
    sampling = sampling or SamplingParams()
    engine = Engine(target, tokenizer, drafter, max_running=batch)
    requests = [
        # The index keeps the random numbers of different prompts apart.
        engine.request(prompt.turns[0], max_tokens=max_tokens, sampling=sampling, sample_index=index)
        for index, prompt in enumerate(prompts)
    ]
    started = perf_counter()
    answers = engine.run(requests)
    seconds = perf_counter() - started
    by_category: dict[str, list[AcceptanceStats]] = {}
    for prompt, answer in zip(prompts, answers, strict=True):
        by_category.setdefault(prompt.category, []).append(answer.stats)
    return AcceptanceReport(
        drafter=drafter.traits.name,
        temperature=sampling.temperature,
        max_tokens=max_tokens,
        num_prompts=len(prompts),
        num_tokens=sum(len(answer.tokens) for answer in answers),
        seconds=seconds,
        overall=AcceptanceStats.merge(answer.stats for answer in answers),
        by_category={category: AcceptanceStats.merge(parts) for category, parts in by_category.items()},
    )
