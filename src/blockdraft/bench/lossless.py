"""The gate that every drafter has to pass: greedy answers with it are those without it.

Only near-ties may tip (see `identity`), and each is counted and shown. Anything else is a fault.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from blockdraft.bench.identity import Difference, first_difference
from blockdraft.core.acceptance import AcceptanceStats
from blockdraft.engine import Engine, Generation, Request


@dataclass(frozen=True, kw_only=True)
class LosslessReport:
    """What an engine answered, against plain decoding."""

    num_prompts: int
    num_tokens: int
    differences: Mapping[str, Difference]
    """By prompt, where an answer differs from plain decoding."""
    stats: AcceptanceStats
    """Over all prompts; a gate that nothing was drafted or accepted in has tested little."""

    @property
    def num_near_ties(self) -> int:
        return sum(difference.is_near_tie for difference in self.differences.values())

    @property
    def failures(self) -> dict[str, Difference]:
        """The differences that no near-tie explains."""
        return {name: difference for name, difference in self.differences.items() if not difference.is_near_tie}

    @property
    def is_lossless(self) -> bool:
        return not self.failures

    def to_dict(self) -> dict[str, object]:
        """Return the report as plain data."""
        return {
            "num_prompts": self.num_prompts,
            "num_tokens": self.num_tokens,
            "num_identical": self.num_prompts - len(self.differences),
            "num_near_ties": self.num_near_ties,
            "num_failures": len(self.failures),
            "is_lossless": self.is_lossless,
            "differences": {name: difference.to_dict() for name, difference in self.differences.items()},
            "num_rounds": self.stats.num_rounds,
            "num_drafted": self.stats.num_drafted,
            "num_accepted": self.stats.num_accepted,
            "rounds_by_drafter": dict(self.stats.rounds_by_drafter),
        }


def check_lossless(
    engine: Engine, requests: Mapping[str, Request], plain: Mapping[str, Generation], *, batch_size: int = 1
) -> LosslessReport:
    """Serve greedy requests, `batch_size` at a time, and compare with the plain answers of the same target."""
    assert all(request.sampling.is_greedy for request in requests.values()), "sampled answers cannot be compared"
    names = list(requests)
    answers: dict[str, Generation] = {}
    for start in range(0, len(names), batch_size):
        batch = names[start : start + batch_size]
        answers |= zip(batch, engine.run([requests[name] for name in batch]), strict=True)
    found = {
        name: first_difference(
            engine.target,
            request.prompt_ids,
            plain[name].token_ids,
            answers[name].token_ids,
            sampling=request.sampling,
        )
        for name, request in requests.items()
    }
    return LosslessReport(
        num_prompts=len(requests),
        num_tokens=sum(len(answer.tokens) for answer in answers.values()),
        differences={name: difference for name, difference in found.items() if difference is not None},
        stats=AcceptanceStats.merge(answer.stats for answer in answers.values()),
    )
