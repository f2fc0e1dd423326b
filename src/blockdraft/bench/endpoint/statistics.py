"""The tests that a verdict rests on: tails, Holm's correction, and how much must be seen for a stated power.

Ref: S. Holm, "A simple sequentially rejective multiple test procedure", 1979. The tail of chi-square is the regularised
incomplete gamma function, by its series and its continued fraction.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import NormalDist

_NORMAL = NormalDist()
_MOST_TERMS = 10_000
_PRECISION = 1e-14


def two_sided(z: float) -> float:
    """Return how likely a standard normal value is at least as far from zero as `z`."""
    return math.erfc(abs(z) / math.sqrt(2))


def chi_square_tail(value: float, num_degrees: int) -> float:
    """Return how likely chi-square with `num_degrees` degrees of freedom reaches `value`; 1 if there are none."""
    if num_degrees < 1 or value <= 0:
        return 1.0
    shape, x = num_degrees / 2, value / 2
    # exp(-x) x^shape / gamma(shape), which both expansions share.
    front = math.exp(shape * math.log(x) - x - math.lgamma(shape))
    if x < shape + 1:
        return max(0.0, 1 - front * _series(shape, x))
    return front * _continued_fraction(shape, x)


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """Return p-values corrected for their number: each may be compared with the whole rate of false alarms."""
    corrected: dict[str, float] = {}
    largest = 0.0
    for rank, (name, value) in enumerate(sorted(p_values.items(), key=lambda entry: entry[1])):
        largest = max(largest, min(1.0, (len(p_values) - rank) * value))
        corrected[name] = largest
    return corrected


def needed_z(false_alarm: float, power: float, num_tests: int) -> float:
    """Return by how many standard errors a bias must stand out to be found with `power`.

    The worst case of Holm's procedure is taken: the test with the bias is compared with `false_alarm / num_tests`.
    """
    return _NORMAL.inv_cdf(1 - false_alarm / num_tests / 2) + _NORMAL.inv_cdf(power)


def power_at(z: float, false_alarm: float, num_tests: int) -> float:
    """Return how likely a bias that stands out by `z` standard errors is found."""
    return _NORMAL.cdf(z - _NORMAL.inv_cdf(1 - false_alarm / num_tests / 2))


def rate_above(num_events: int, exposure: float, rate: float) -> float:
    """Return how likely a Poisson process of `rate` gives at least `num_events` over `exposure`."""
    mean = rate * exposure
    if num_events == 0:
        return 1.0
    # P(N >= k) is the chance that chi-square with 2k degrees stays under twice the mean.
    return 1 - chi_square_tail(2 * mean, 2 * num_events)


def _series(shape: float, x: float) -> float:
    term = total = 1 / shape
    for index in range(1, _MOST_TERMS):
        term *= x / (shape + index)
        total += term
        if term < total * _PRECISION:
            break
    return total


def _continued_fraction(shape: float, x: float) -> float:
    tiny = 1e-300
    b = x + 1 - shape
    c, d = 1 / tiny, 1 / b
    result = d
    for index in range(1, _MOST_TERMS):
        a = -index * (index - shape)
        b += 2
        d = 1 / (a * d + b or tiny)
        c = b + a / c or tiny
        result *= c * d
        if abs(c * d - 1) < _PRECISION:
            break
    return result
