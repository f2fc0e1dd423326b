"""Measures against slow, obvious versions of themselves; temperatures that are known are found again."""

import json
import math
from itertools import product

import numpy as np
import pytest

from blockdraft.errors import DataError
from blockdraft.train.calibration import (
    GRID,
    ConfidenceData,
    area_under_roc,
    assess,
    expected_calibration_error,
    fit_temperatures,
    reliability,
)


def obvious_ece(confidence, kept):
    total = 0.0
    for index in range(20):
        low, high = index / 20, (index + 1) / 20
        inside = [
            (chance, outcome)
            for chance, outcome in zip(confidence, kept, strict=True)
            if low <= chance < high or (index == 19 and chance == 1)
        ]
        if inside:
            mean_chance = sum(chance for chance, _ in inside) / len(inside)
            share = sum(outcome for _, outcome in inside) / len(inside)
            total += len(inside) / len(confidence) * abs(mean_chance - share)
    return total


def obvious_auroc(confidence, kept):
    pairs = [
        (good, bad)
        for (good, was_kept), (bad, was_dropped) in product(zip(confidence, kept, strict=True), repeat=2)
        if was_kept and not was_dropped
    ]
    return sum((good > bad) + 0.5 * (good == bad) for good, bad in pairs) / len(pairs)


def synthetic(temperatures, num_rounds, seed=0):
    """Return rounds of a head whose logits are too large by these factors."""
    generator = np.random.default_rng(seed)
    truth = generator.normal(0.8, 1.5, (num_rounds, len(temperatures)))
    each = generator.random(truth.shape) < 1 / (1 + np.exp(-truth))
    return ConfidenceData(logits=truth * np.array(temperatures), kept=np.cumprod(each, axis=1).astype(np.int8))


@pytest.mark.parametrize("seed", range(4))
def test_the_measures_are_what_their_definitions_say(seed):
    generator = np.random.default_rng(seed)
    confidence = generator.choice([0.0, 0.05, 0.3, 0.31, 0.5, 0.77, 1.0], 60)  # ties, and edges of bins
    kept = generator.random(60) < confidence**2
    found = reliability(confidence, kept)
    assert found.ece == pytest.approx(obvious_ece(confidence.tolist(), kept.tolist()))
    assert found.auroc == pytest.approx(obvious_auroc(confidence.tolist(), kept.tolist()))
    assert found.brier == pytest.approx(sum((c - k) ** 2 for c, k in zip(confidence, kept, strict=True)) / 60)
    assert sum(count for _, _, count in found.bins) == 60


def test_what_is_always_right_has_no_error_and_what_is_sure_and_wrong_has_all():
    assert expected_calibration_error(np.array([1.0, 0.0]), np.array([True, False])) == 0
    assert expected_calibration_error(np.array([1.0, 0.0]), np.array([False, True])) == 1


def test_without_two_kinds_of_outcomes_there_is_no_auroc():
    assert area_under_roc(np.array([0.2, 0.9]), np.array([True, True])) is None


def test_known_temperatures_are_found_again():
    known = (2.0, 0.6, 1.0, 3.0)
    found = fit_temperatures(synthetic(known, 40_000))
    assert found == pytest.approx(known, rel=0.15)


def test_each_temperature_is_the_best_of_the_grid_for_the_product_with_the_earlier_ones_fixed():
    data = synthetic((1.7, 0.8), 400)
    first, second = fit_temperatures(data)

    def error(*temperatures):
        chances = [
            math.prod(1 / (1 + math.exp(-z / t)) for z, t in zip(row, temperatures, strict=False))
            for row in data.logits.tolist()
        ]
        outcomes = data.kept[:, len(temperatures) - 1].tolist()
        return sum((chance - outcome) ** 2 for chance, outcome in zip(chances, outcomes, strict=True))

    tried = GRID[::10].tolist()
    assert error(first) <= min(error(value) for value in tried) + 1e-3
    assert error(first, second) <= min(error(first, value) for value in tried) + 1e-3


def test_a_head_that_is_too_sure_of_everything_keeps_its_order_of_slots():
    """No temperature mends a shift; the smallest ECE would be that of an infinite one, which says one half to all."""
    random = np.random.default_rng(0)
    logits = random.normal(0.0, 1.5, (4000, 1))
    kept = (random.random((4000, 1)) < 1 / (1 + np.exp(0.9 - logits))).astype(np.int8)
    data = ConfidenceData(logits=logits, kept=kept)
    (temperature,) = fit_temperatures(data)
    assert temperature < 3
    chances = data.confidence((temperature,))[:, 0]
    assert np.quantile(chances, 0.9) - np.quantile(chances, 0.1) > 0.3


def test_calibration_helps_on_rounds_that_it_was_not_fitted_on():
    temperatures = fit_temperatures(synthetic((2.5, 2.5, 2.5), 4000, seed=1))
    fresh = synthetic((2.5, 2.5, 2.5), 4000, seed=2)
    before, after = assess(fresh), assess(fresh, temperatures)
    for slot in range(3):
        assert after[slot].cumulative.ece < 0.5 * before[slot].cumulative.ece
        assert after[slot].conditional.auroc == pytest.approx(before[slot].conditional.auroc)


def test_only_rounds_that_tell_are_counted():
    nan = np.nan
    data = ConfidenceData(
        logits=np.array([[0.0, 0.0], [0.0, 0.0], [0.0, nan], [0.0, 0.0]]),
        # kept whole; stopped at the first; had one slot; ended inside the draft
        kept=np.array([[1, 1], [0, 0], [1, -1], [1, -1]], dtype=np.int8),
    )
    first, second = assess(data)
    assert (first.conditional.num_rounds, first.conditional.share_kept) == (4, 0.75)
    assert (second.conditional.num_rounds, second.conditional.share_kept) == (1, 1.0)
    assert (second.cumulative.num_rounds, second.cumulative.share_kept) == (2, 0.5)
    assert second.cumulative.mean_confidence == 0.25
    assert json.loads(json.dumps(second.to_dict()))["conditional"]["auroc"] is None


def test_too_few_rounds_are_refused_and_say_which_slot():
    data = synthetic((1.0, 1.0), 300)
    data.kept[30:, 1] = -1
    with pytest.raises(DataError, match=r"slot 2 of 2 was judged in 30 rounds.*more prompts"):
        fit_temperatures(data)


def test_a_slot_that_nothing_ever_reached_cannot_be_measured():
    data = ConfidenceData(logits=np.zeros((5, 2)), kept=np.zeros((5, 2), dtype=np.int8))
    with pytest.raises(DataError, match="before slot 2 in none of 5"):
        assess(data)
