"""A draw is a function of seed, sample, position and purpose, and of nothing else."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import kstest

from blockdraft.core.random import Draw, PositionalRandom

GOLDEN = [0.8000798352425926, 0.20935627413258362, 0.8421302821410077, 0.3132382715351445]


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(-(2**70), 2**70), start=st.integers(0, 2**40), count=st.integers(0, 9))
def test_any_window_holds_the_single_draws(seed, start, count):
    random = PositionalRandom(seed)
    window = random.uniforms(start, count)
    assert window.shape == (count, len(Draw))
    for offset, row in enumerate(window):
        assert row.tolist() == [random.uniform(start + offset, purpose) for purpose in Draw]


def test_earlier_draws_change_nothing():
    used, fresh = PositionalRandom(5), PositionalRandom(5)
    used.uniforms(0, 100)
    assert used.uniforms(7, 3).tolist() == fresh.uniforms(7, 3).tolist()


def test_overlapping_windows_agree():
    random = PositionalRandom(5)
    assert random.uniforms(10, 6)[2:].tolist() == random.uniforms(12, 4).tolist()


@pytest.mark.parametrize("other", [PositionalRandom(6), PositionalRandom(5, 1), PositionalRandom(-5)])
def test_seeds_and_samples_have_streams_of_their_own(other):
    mine, theirs = PositionalRandom(5).uniforms(0, 4000), other.uniforms(0, 4000)
    assert not np.isin(mine, theirs).any()
    assert abs(np.corrcoef(mine.ravel(), theirs.ravel())[0, 1]) < 0.03


def test_purposes_and_neighbouring_positions_are_independent():
    draws = PositionalRandom(0).uniforms(0, 20_000)
    columns = np.concatenate((draws[:-1], draws[1:]), axis=1)
    correlation = np.corrcoef(columns.T) - np.eye(8)
    assert np.abs(correlation).max() < 0.03
    for purpose in Draw:
        assert kstest(draws[:, purpose], "uniform").pvalue > 1e-3


def test_the_first_draws_of_many_seeds_are_uniform():
    """Counter generators of neighbouring seeds must not be alike: every request is a new seed."""
    draws = np.array([PositionalRandom(seed).uniforms(0, 1)[0] for seed in range(4000)])
    for purpose in Draw:
        assert kstest(draws[:, purpose], "uniform").pvalue > 1e-3
    assert np.abs(np.corrcoef(draws.T) - np.eye(4)).max() < 0.06


def test_draws_lie_below_one():
    draws = PositionalRandom(1).uniforms(0, 50_000)
    assert draws.min() >= 0
    assert draws.max() < 1


def test_draws_are_the_same_on_every_machine_and_release():
    assert PositionalRandom(42, 3).uniforms(17, 1)[0].tolist() == GOLDEN
