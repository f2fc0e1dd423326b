"""Samples of a server against samples of its baseline, where no probabilities are told.

The first few tokens are the outcome, or their text; both sides answer the same prompts at temperature 1. Two tests:
chi-square over all outcomes that are common enough, and the share of each prompt's most common outcome. As both sides
are estimated, twice as many answers are needed on each side as where probabilities are known.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass

from blockdraft.bench.endpoint.answers import Context
from blockdraft.bench.endpoint.samples import BATCH, MIN_EXPECTED, SamplingPlan, draw, judge
from blockdraft.bench.endpoint.served_model import ServedModel
from blockdraft.bench.endpoint.statistics import chi_square_tail, holm, needed_z, power_at, two_sided
from blockdraft.bench.endpoint.verdict import Check

TESTS = ("top", "counts")
_NUM_TOKENS = 2
"""Of each sample, and one more: nothing drafts the first one, and longer outcomes come too seldom to be counted."""

Outcome = tuple[int | str, ...] | str
"""The tokens of a sample, or its text if tokens are not shown."""
Outcomes = Mapping[str, Counter[Outcome]]
"""How often each was drawn, by prompt."""


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
        return judge(
            self.plan,
            self.corrected,
            power=self.power,
            seen=f"{self.num_samples} samples of each side",
            outcome="the most common outcome",
            excess=self.excess,
            standard_error=self.standard_error,
        )

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
    by_tokens = model.shows_same_tokens_as(baseline)
    ours: dict[str, Counter[Outcome]] = {name: Counter() for name in prompts}
    theirs: dict[str, Counter[Outcome]] = {name: Counter() for name in prompts}
    needed = needed_z(plan.false_alarm, plan.power, len(TESTS))
    num_samples, reached = 0, 0.0
    while num_samples < plan.max_samples and reached < needed:
        count = min(BATCH, plan.max_samples - num_samples)
        # Seeds of their own: the two sides are to be independent.
        for parity, (side, give, outcomes) in enumerate(((model, model.answer, ours), (baseline, plain, theirs))):
            seeds = [plan.seed_of(2 * (num_samples + index) + parity) for index in range(count)]
            for name, answer in await draw(side, give, prompts, seeds=seeds, num_tokens=_NUM_TOKENS):
                outcomes[name][answer.keys if by_tokens else answer.text] += 1
        num_samples += count
        variance = top_test(ours, theirs)[1]
        reached = num_samples * plan.bias / math.sqrt(variance) if variance else 0.0
        notify(f"{num_samples} samples of each side, power {power_at(reached, plan.false_alarm, len(TESTS)):.2f}")
    difference, variance = top_test(ours, theirs)
    p_values = p_values_of(ours, theirs)
    return TwoSampleReport(
        plan=plan,
        num_samples=num_samples,
        excess=difference / num_samples,
        standard_error=math.sqrt(variance) / num_samples,
        p_values=p_values,
        corrected=holm(p_values),
        power=power_at(reached, plan.false_alarm, len(TESTS)),
    )


def p_values_of(ours: Outcomes, theirs: Outcomes) -> dict[str, float]:
    """Return how unlikely what was drawn is if both sides draw alike, by test."""
    difference, variance = top_test(ours, theirs)
    return {
        "top": two_sided(difference / math.sqrt(variance)) if variance else 1.0,
        "counts": chi_square_tail(*_chi_square(ours, theirs)),
    }


def top_test(ours: Outcomes, theirs: Outcomes) -> tuple[float, float]:
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
        common = [key for key, seen in both.items() if seen * smaller >= MIN_EXPECTED]
        cells = [(counts[key], theirs[name][key]) for key in common]
        rest = (left - sum(cell[0] for cell in cells), right - sum(cell[1] for cell in cells))
        if sum(rest) * smaller >= MIN_EXPECTED:
            cells.append(rest)
        if len(cells) > 1:
            statistic += sum(
                (seen - total * sum(cell) / (left + right)) ** 2 / (total * sum(cell) / (left + right))
                for cell in cells
                for seen, total in zip(cell, (left, right), strict=True)
            )
            num_degrees += len(cells) - 1
    return statistic, num_degrees
