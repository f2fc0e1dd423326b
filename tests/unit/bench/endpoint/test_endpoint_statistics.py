"""Tails are those of scipy, and the tests find what they state as often as they state, and no more false alarms."""

import math
from collections import Counter

import numpy as np
import pytest
from scipy import stats

from blockdraft.bench.endpoint.answers import Seen
from blockdraft.bench.endpoint.reference import SelfCheck
from blockdraft.bench.endpoint.samples import SamplingPlan
from blockdraft.bench.endpoint.sampling import TESTS, Observed, run_tests
from blockdraft.bench.endpoint.served_model import NextToken
from blockdraft.bench.endpoint.statistics import (
    chi_square_tail,
    holm,
    needed_z,
    power_at,
    rate_above,
    two_sided,
)
from blockdraft.bench.endpoint.two_samples import p_values_of

STEADY = SelfCheck(num_places=1, num_changed_choices=0, num_unstable=0, logprob_noise=0.0, prob_noise=0.0)
SHAPES = ((0.60, 0.30, 0.04, 0.03), (0.45, 0.35, 0.12, 0.04), (0.88, 0.06, 0.03, 0.02), (0.55, 0.20, 0.15, 0.06))
"""Tokens that are shown at a place; what they leave is the tail."""


@pytest.mark.parametrize("num_degrees", [1, 2, 7, 40, 500])
def test_the_tail_of_chi_square_is_that_of_scipy(num_degrees: int) -> None:
    for value in np.concatenate([[0.01, 0.5], num_degrees * np.array([0.3, 0.9, 1.0, 1.1, 1.5, 4.0])]):
        assert chi_square_tail(value, num_degrees) == pytest.approx(stats.chi2.sf(value, num_degrees), rel=1e-9)
    assert chi_square_tail(3.0, 0) == chi_square_tail(0.0, num_degrees) == 1.0


def test_other_tails_are_those_of_scipy() -> None:
    for z in (0.0, 1.0, -3.0, 8.0):
        assert two_sided(z) == pytest.approx(2 * stats.norm.sf(abs(z)), rel=1e-12)
    for num_events, mean in ((0, 3.0), (1, 3.0), (12, 10.8), (40, 20.0)):
        expected = stats.poisson.sf(num_events - 1, mean)
        assert rate_above(num_events, mean / 0.5, 0.5) == pytest.approx(expected, rel=1e-9)


def test_holm_corrects_the_smallest_by_all_and_the_largest_by_none() -> None:
    corrected = holm({"a": 0.01, "b": 0.04, "c": 0.03, "d": 0.5})
    assert corrected == pytest.approx({"a": 0.04, "c": 0.09, "b": 0.09, "d": 0.5})
    assert holm({"a": 0.6, "b": 0.7}) == {"a": 1.0, "b": 1.0}


@pytest.mark.parametrize("power", [0.5, 0.9, 0.999])
def test_what_is_needed_for_a_power_has_that_power(power: float) -> None:
    assert power_at(needed_z(0.001, power, 4), 0.001, 4) == pytest.approx(power)
    assert needed_z(0.001, power, 4) > needed_z(0.01, power, 4) > needed_z(0.01, power, 2)


def drawn(rng: np.random.Generator, num_runs: int, totals: np.ndarray, bias: float = 0.0) -> list[np.ndarray]:
    """Return counts by place, run and token; the last token stands for all that are not shown."""
    counts = []
    for place, total in enumerate(totals):
        shape = np.array(SHAPES[place % len(SHAPES)])
        probs = np.append(shape, 1 - shape.sum())
        rest = (1 - probs[0] - bias) / (1 - probs[0])
        counts.append(rng.multinomial(total, [probs[0] + bias, *(probs[1:] * rest)], size=num_runs))
    return counts


def corrected(counts: list[np.ndarray], run: int) -> dict[str, float]:
    """Return the corrected p-values of one run."""
    contexts = {
        (place,): NextToken(
            choice=None,
            top=tuple(
                Seen(text="", token_id=token, logprob=math.log(prob))
                for token, prob in enumerate(SHAPES[place % len(SHAPES)])
            ),
        )
        for place in range(len(counts))
    }
    observed = Observed(
        drawn={(place,): Counter(dict(enumerate(row[run].tolist()))) for place, row in enumerate(counts)}
    )
    return dict(run_tests(observed, contexts, SamplingPlan(), STEADY).corrected)


def needed_total(plan: SamplingPlan, num_places: int) -> int:
    """Return how often each place must be visited until the plan's bias stands out as far as is needed."""
    variance = sum(SHAPES[place % len(SHAPES)][0] * (1 - SHAPES[place % len(SHAPES)][0]) for place in range(num_places))
    return math.ceil(needed_z(plan.false_alarm, plan.power, len(TESTS)) ** 2 * variance / (num_places * plan.bias) ** 2)


def test_a_bias_is_found_as_often_as_stated() -> None:
    plan, num_runs = SamplingPlan(bias=0.03, power=0.9, false_alarm=0.001), 400
    counts = drawn(np.random.default_rng(1), num_runs, np.full(8, needed_total(plan, 8)), bias=0.03)
    num_found = sum(min(corrected(counts, run).values()) <= plan.false_alarm for run in range(num_runs))
    assert num_found / num_runs >= plan.power - 3 * math.sqrt(plan.power * (1 - plan.power) / num_runs)


@pytest.mark.parametrize("most", [3000, 60])
def test_false_alarms_come_no_more_often_than_stated(most: int) -> None:
    rng, num_runs, false_alarm = np.random.default_rng(2), 1500, 0.02
    counts = drawn(rng, num_runs, rng.integers(1, most, size=10))
    num_alarms = sum(min(corrected(counts, run).values()) <= false_alarm for run in range(num_runs))
    assert num_alarms <= num_runs * false_alarm + 3 * math.sqrt(num_runs * false_alarm)


@pytest.mark.parametrize("bias", [0.0, 0.05])
def test_two_sets_of_samples_differ_as_often_as_stated(bias: float) -> None:
    rng, num_runs, false_alarm, power = np.random.default_rng(3), 600, 0.02, 0.9
    # Twice the variance of one side, as both are drawn.
    total = math.ceil(needed_z(false_alarm, power, 2) ** 2 * 2 * 4 * 0.24 / (4 * 0.05) ** 2)
    ours, theirs = (drawn(rng, num_runs, np.full(4, total), bias=one) for one in (bias, 0.0))
    num_found = 0
    for run in range(num_runs):
        sides = [
            {
                str(place): Counter({(token,): int(n) for token, n in enumerate(row[run])})
                for place, row in enumerate(one)
            }
            for one in (ours, theirs)
        ]
        num_found += min(holm(p_values_of(*sides)).values()) <= false_alarm
    if bias:
        assert num_found / num_runs >= power - 3 * math.sqrt(power * (1 - power) / num_runs)
    else:
        assert num_found <= num_runs * false_alarm + 3 * math.sqrt(num_runs * false_alarm)
