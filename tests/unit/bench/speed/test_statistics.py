"""Ratios over prompts, and how sure they are."""

from __future__ import annotations

import pytest

from blockdraft.bench.speed.statistics import Ratio, ratio_of, spread


def test_a_spread_is_median_and_quartiles() -> None:
    found = spread([5, 1, 2, 4, 3])
    assert found is not None
    assert (found.median, found.low, found.high, found.num) == (3, 2, 4, 5)
    assert spread([]) is None


def test_the_ratio_is_the_geometric_mean_of_the_medians_of_groups() -> None:
    ratio = ratio_of({"a": {"1": [1, 2, 9], "2": [2, 2]}, "b": {"3": [8], "4": [8]}})
    assert ratio is not None
    assert ratio.value == pytest.approx((2 * 8) ** 0.5)
    assert (ratio.num_pairs, ratio.num_prompts) == (7, 4)


def test_repeats_of_few_prompts_do_not_make_an_interval_narrow() -> None:
    # Two prompts that differ: a thousand repeats of each do not tell what a third one would do.
    few = ratio_of({"a": {"1": [1.0] * 1000, "2": [2.0] * 1000}})
    assert few is not None
    assert (few.low, few.high) == pytest.approx((1.0, 2.0))


def test_many_prompts_make_an_interval_narrow_and_it_holds_the_truth() -> None:
    prompts = {str(n): [1.5 + 0.01 * (n % 11 - 5)] for n in range(60)}
    ratio = ratio_of({"a": prompts})
    assert ratio is not None
    assert ratio.low is not None
    assert ratio.high is not None
    assert 1.45 < ratio.low <= 1.5 <= ratio.high < 1.55
    assert ratio.is_clearly_faster
    assert not ratio.is_clearly_slower


def test_one_pair_has_no_interval_and_one_prompt_draws_its_pairs() -> None:
    alone = ratio_of({"a": {"1": [1.5]}})
    assert alone == Ratio(value=1.5, low=None, high=None, num_pairs=1, num_prompts=1)
    assert "no interval" in str(alone)
    assert not alone.is_clearly_faster
    repeated = ratio_of({"a": {"1": [1.0, 2.0, 3.0]}})
    assert repeated is not None
    assert (repeated.low, repeated.high) == pytest.approx((1.0, 3.0))


def test_nothing_gives_nothing() -> None:
    assert ratio_of({}) is None
    assert ratio_of({"a": {"1": []}}) is None


def test_intervals_that_touch_are_not_apart() -> None:
    low, middle, high = (
        Ratio(value=v, low=v - 0.1, high=v + 0.1, num_pairs=9, num_prompts=9) for v in (1.0, 1.15, 1.3)
    )
    assert low.is_apart_from(high)
    assert high.is_apart_from(low)
    assert not low.is_apart_from(middle)
    assert not low.is_apart_from(Ratio(value=9, low=None, high=None, num_pairs=1, num_prompts=1))
