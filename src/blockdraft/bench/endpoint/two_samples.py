"""Samples of a server against samples of its baseline, where no probabilities are told.

The text of the first few tokens is the outcome; both sides answer the same prompts at temperature 1. Two tests:
chi-square over all outcomes that are common enough, and the share of each prompt's most common outcome. As both sides
are estimated, twice as many answers are needed on each side as where probabilities are known.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass

from blockdraft.bench.endpoint.answers import Answer, Ask, Context
from blockdraft.bench.endpoint.sampling import SamplingPlan
from blockdraft.bench.endpoint.served_model import ServedModel
from blockdraft.bench.endpoint.statistics import chi_square_tail, holm, needed_z, power_at, two_sided
from blockdraft.bench.endpoint.verdict import Check

TESTS = ("top", "counts")
_NUM_TOKENS = 3
"""Of each outcome: nothing drafts the first one, and an engine that leaves room for its own token drafts one of two."""
_MIN_EXPECTED = 8.0
_BATCH = 240

Outcomes = Mapping[str, Counter[str]]
"""How often each text was drawn, by prompt."""


@dataclass(frozen=True, kw_only=True)
class TwoSampleReport:
    """Two sets of samples, compared."""

    plan: SamplingPlan
    num_samples: int
    """Of each side."""
    excess: float
    """Of the most common outcomes: share here minus share of the baseline."""
    standard_error: float
    p_values: Mapping[str, float]
    corrected: Mapping[str, float]
    power: float

    def check(self) -> Check:
        """Return the verdict and its reason."""
        seen = f"{self.num_samples} samples of each side"
        stated = (
            f"a bias of {100 * self.plan.bias:g} points in the most common outcome is found with power {self.power:.3f}"
        )
        name, smallest = min(self.corrected.items(), key=lambda entry: entry[1])
        if smallest <= self.plan.false_alarm:
            return Check(
                "sampling",
                "fail",
                f"{seen} differ: test `{name}` has p {smallest:.1g} after correction; the most common outcome is drawn "
                f"{100 * self.excess:+.1f} points more often (standard error {100 * self.standard_error:.2f})",
            )
        if self.power < self.plan.power:
            return Check(
                "sampling",
                "inconclusive",
                f"{seen} show no difference, but {stated}, less than the {self.plan.power:g} asked for; raise "
                "--max-samples",
            )
        return Check("sampling", "pass", f"{seen} agree; {stated}")

    def to_dict(self) -> dict[str, object]:
        """Return the report as plain data."""
        return asdict(self) | {"method": f"samples of {_NUM_TOKENS} tokens against samples of the baseline"}


async def check_two_samples(
    model: ServedModel,
    baseline: ServedModel,
    prompts: Mapping[str, Context],
    plan: SamplingPlan,
    notify: Callable[[str], None],
) -> TwoSampleReport:
    """Draw on both sides until the stated power is reached, or as many as allowed, and test.

    A baseline that is the server itself is asked for one token at a time, which no engine drafts.
    """
    plain = baseline.stepwise if baseline is model else baseline.answer
    ours: dict[str, Counter[str]] = {name: Counter() for name in prompts}
    theirs: dict[str, Counter[str]] = {name: Counter() for name in prompts}
    needed = needed_z(plan.false_alarm, plan.power, len(TESTS))
    num_samples, reached = 0, 0.0
    while num_samples < plan.max_samples and reached < needed:
        count = min(_BATCH, plan.max_samples - num_samples)
        numbers = range(num_samples, num_samples + count)
        await _draw(model, model.answer, prompts, [2 * (plan.seed * 1_000_003 + number) for number in numbers], ours)
        # Seeds of their own: the two sides are to be independent.
        other = [2 * (plan.seed * 1_000_003 + number) + 1 for number in numbers]
        await _draw(baseline, plain, prompts, other, theirs)
        num_samples += count
        variance = _top_test(ours, theirs)[1]
        reached = num_samples * plan.bias / math.sqrt(variance) if variance else 0.0
        notify(f"{num_samples} samples of each side, power {power_at(reached, plan.false_alarm, len(TESTS)):.2f}")
    difference, variance = _top_test(ours, theirs)
    p_values = {
        "top": two_sided(difference / math.sqrt(variance)) if variance else 1.0,
        "counts": chi_square_tail(*_chi_square(ours, theirs)),
    }
    return TwoSampleReport(
        plan=plan,
        num_samples=num_samples,
        excess=difference / num_samples,
        standard_error=math.sqrt(variance) / num_samples,
        p_values=p_values,
        corrected=holm(p_values),
        power=power_at(reached, plan.false_alarm, len(TESTS)),
    )


async def _draw(
    model: ServedModel,
    give: Callable[[Ask], Awaitable[Answer]],
    prompts: Mapping[str, Context],
    seeds: list[int],
    outcomes: Mapping[str, Counter[str]],
) -> None:
    names = list(prompts)
    chosen = [names[index * len(names) // len(seeds)] for index in range(len(seeds))]
    asks = [
        model.ask(prompts[name], max_tokens=_NUM_TOKENS, temperature=1.0, seed=seed % 2**31)
        for name, seed in zip(chosen, seeds, strict=True)
    ]
    answers = await asyncio.gather(*(give(ask) for ask in asks))
    for name, answer in zip(chosen, answers, strict=True):
        outcomes[name][answer.text] += 1


def _top_test(ours: Outcomes, theirs: Outcomes) -> tuple[float, float]:
    """Return how much more often the most common outcomes came here, and the variance of that if nothing is wrong."""
    difference = variance = 0.0
    for name, counts in ours.items():
        left, right = counts.total(), theirs[name].total()
        both = counts + theirs[name]
        if left and right:
            top, seen = both.most_common(1)[0]
            share = seen / (left + right)
            difference += counts[top] - left * theirs[name][top] / right
            variance += left * share * (1 - share) * (1 + left / right)
    return difference, variance


def _chi_square(ours: Outcomes, theirs: Outcomes) -> tuple[float, int]:
    """Return the statistic of all prompts, with rare outcomes put together, and its degrees of freedom."""
    statistic, num_degrees = 0.0, 0
    for name, counts in ours.items():
        left, right = counts.total(), theirs[name].total()
        both = counts + theirs[name]
        smaller = min(left, right) / (left + right) if left + right else 0.0
        common = [key for key, seen in both.items() if seen * smaller >= _MIN_EXPECTED]
        cells = [(counts[key], theirs[name][key]) for key in common]
        rest = (left - sum(cell[0] for cell in cells), right - sum(cell[1] for cell in cells))
        if sum(rest) * smaller >= _MIN_EXPECTED:
            cells.append(rest)
        if len(cells) > 1:
            statistic += sum(
                (seen - total * sum(cell) / (left + right)) ** 2 / (total * sum(cell) / (left + right))
                for cell in cells
                for seen, total in zip(cell, (left, right), strict=True)
            )
            num_degrees += len(cells) - 1
    return statistic, num_degrees
