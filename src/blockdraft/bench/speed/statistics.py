"""Spreads of what was measured, and intervals of ratios by resampling prompts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import geometric_mean, median
from typing import Any

import numpy as np

NUM_RESAMPLES = 1000
CONFIDENCE = 0.95


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Median and quartiles of some values."""

    median: float
    low: float
    """First quartile."""
    high: float
    """Third quartile."""
    num: int

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def spread(values: Sequence[float]) -> Spread | None:
    """Return median and quartiles; None if there are no values."""
    if not values:
        return None
    low, middle, high = np.quantile(values, [0.25, 0.5, 0.75])
    return Spread(median=float(middle), low=float(low), high=float(high), num=len(values))


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """How many times as fast, with a 95 % interval."""

    value: float
    low: float | None
    """None where there are too few pairs for an interval."""
    high: float | None
    num_pairs: int
    num_prompts: int

    @property
    def is_clearly_faster(self) -> bool:
        return self.low is not None and self.low > 1

    @property
    def is_clearly_slower(self) -> bool:
        return self.high is not None and self.high < 1

    def is_apart_from(self, other: Ratio) -> bool:
        """Whether the intervals of both do not touch."""
        if self.low is None or self.high is None or other.low is None or other.high is None:
            return False
        return self.high < other.low or other.high < self.low

    def __str__(self) -> str:
        interval = "no interval" if self.low is None or self.high is None else f"{self.low:.2f} to {self.high:.2f}"
        return f"{self.value:.2f} ({interval})"

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


Pairs = Mapping[str, Sequence[float]]
"""Ratios of pairs, by prompt."""


def ratio_of(groups: Mapping[str, Pairs], *, seed: int = 0) -> Ratio | None:
    """Return the geometric mean of the groups' medians, with a bootstrap interval.

    Prompts are drawn anew with all their pairs, inside each group: a prompt that suits a drafter does so in each
    repeat, so repeats say less than other prompts. A group of one prompt draws its pairs instead, which says nothing
    about other prompts. Groups are categories as a rule; each weighs the same.
    """
    kept = {name: [list(pairs) for pairs in by_prompt.values() if pairs] for name, by_prompt in groups.items()}
    kept = {name: prompts for name, prompts in kept.items() if prompts}
    if not kept:
        return None
    num_pairs = sum(len(pairs) for prompts in kept.values() for pairs in prompts)
    low = high = None
    units = {name: prompts if len(prompts) > 1 else [[one] for one in prompts[0]] for name, prompts in kept.items()}
    if all(len(group) > 1 for group in units.values()):
        random = np.random.default_rng(seed)
        logs = [np.log(_drawn_medians(random, group)) for group in units.values()]
        tail = (1 - CONFIDENCE) / 2
        low, high = (float(bound) for bound in np.exp(np.quantile(np.mean(logs, axis=0), [tail, 1 - tail])))
    return Ratio(
        value=geometric_mean([median([one for pairs in prompts for one in pairs]) for prompts in kept.values()]),
        low=low,
        high=high,
        num_pairs=num_pairs,
        num_prompts=sum(map(len, kept.values())),
    )


def _drawn_medians(random: np.random.Generator, group: list[list[float]]) -> np.ndarray:
    """Return the median of all pairs of as many prompts as there are, drawn with replacement, `NUM_RESAMPLES` times."""
    table = np.full((len(group), max(map(len, group))), np.nan)
    for row, pairs in zip(table, group, strict=True):
        row[: len(pairs)] = pairs
    chosen = table[random.integers(len(group), size=(NUM_RESAMPLES, len(group)))].reshape(NUM_RESAMPLES, -1)
    middles: np.ndarray = np.nanmedian(chosen, axis=1) if np.isnan(table).any() else np.median(chosen, axis=1)
    return middles
