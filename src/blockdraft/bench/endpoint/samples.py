"""What samples are drawn for, how they are drawn, and how tests on them become a verdict."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from blockdraft.bench.endpoint.answers import Answer, Ask, Context
from blockdraft.bench.endpoint.served_model import ServedModel
from blockdraft.bench.endpoint.verdict import Check
from blockdraft.errors import ConfigError

BATCH = 240
MIN_EXPECTED = 8.0
"""A cell of chi-square that is expected less often is put together with others."""


@dataclass(frozen=True, kw_only=True)
class SamplingPlan:
    """What is to be found, and at what cost.

    Raises:
        ConfigError: a figure is out of its range.
    """

    bias: float = 0.03
    """Change of the most likely token's probability that must be found."""
    power: float = 0.9
    """How likely it must be found."""
    false_alarm: float = 0.001
    """How likely a lossless server may be called biased."""
    num_tokens: int = 4
    """Of each sample; the first one is the control."""
    max_samples: int = 12_000
    seed: int = 0

    def __post_init__(self) -> None:
        for name, low, high in (("bias", 0.0, 0.5), ("power", 0.5, 1.0), ("false_alarm", 0.0, 0.5)):
            if not low < getattr(self, name) < high:
                raise ConfigError(f"{name} must be between {low:g} and {high:g}, not {getattr(self, name):g}")
        if self.num_tokens < 2:
            raise ConfigError(f"a sample needs at least 2 tokens, as nothing drafts the first; not {self.num_tokens}")

    def seed_of(self, number: int) -> int:
        """Return the seed of a sample."""
        return (self.seed * 1_000_003 + number) % 2**31


async def draw(
    model: ServedModel,
    give: Callable[[Ask], Awaitable[Answer]],
    prompts: Mapping[str, Context],
    *,
    seeds: Sequence[int],
    num_tokens: int,
) -> list[tuple[str, Answer]]:
    """Return one sample for each seed, with the name of its prompt; each prompt gets an equal share.

    One token more than `num_tokens` is asked for: engines that keep room for their own token do not draft the last one,
    so it would say nothing.
    """
    # One prompt after the other, as servers keep the beginning of a few sequences only.
    names = list(prompts)
    chosen = [names[index * len(names) // len(seeds)] for index in range(len(seeds))]
    asks = [
        model.ask(prompts[name], max_tokens=num_tokens + 1, temperature=1.0, seed=seed)
        for name, seed in zip(chosen, seeds, strict=True)
    ]
    return list(zip(chosen, await asyncio.gather(*(give(ask) for ask in asks)), strict=True))


def judge(
    plan: SamplingPlan,
    corrected: Mapping[str, float],
    *,
    power: float,
    seen: str,
    outcome: str,
    excess: float,
    standard_error: float,
) -> Check:
    """Return the verdict of tests whose p-values are corrected for their number.

    `seen` says what was drawn, and `outcome` what `excess` was measured on.
    """
    name, smallest = min(corrected.items(), key=lambda entry: entry[1])
    if smallest <= plan.false_alarm:
        return Check(
            "sampling",
            "fail",
            f"{seen} do not follow the baseline: test `{name}` has p {smallest:.1g} after correction; {outcome} is "
            f"drawn {100 * abs(excess):.1f} points {'less' if excess < 0 else 'more'} often than it should "
            f"(standard error {100 * standard_error:.2f})",
        )
    stated = f"a bias of {100 * plan.bias:g} points in {outcome} is found with power {power:.3f}"
    if power < plan.power:
        return Check(
            "sampling",
            "inconclusive",
            f"{seen} show no bias, but {stated}, less than the {plan.power:g} asked for; raise --max-samples, or give "
            "prompts whose answers can begin in several ways",
        )
    return Check("sampling", "pass", f"{seen} follow the baseline; {stated}")
