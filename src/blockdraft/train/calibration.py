"""Does a confidence mean what it says? Measures of that, and temperatures that mend it.

A confidence head is trained on one distribution of blocks and used on another, so its numbers come out too sure
or too shy. Sequential Temperature Scaling divides the logit of slot k by a temperature of its own, found from
left to right: with the earlier ones fixed, the one is taken for which the product of the confidences up to k
tells best whether all of those slots were kept. The product is what a schedule of verification lengths reads.
Dividing by a positive number changes no order, so a slot's ranking is as good as before.

The paper takes the temperature of the smallest ECE. Where a head is too sure of everything alike, which no
temperature can mend, that one is infinite: all confidences are then one half, as often as not the right mean, and
say nothing. The Brier score, which counts the distance to each outcome, does not reward that.

Shape legend: R rounds, K slots of a block, G temperatures of the grid.
Ref: arXiv:2607.05147; arXiv:1706.04599 for ECE and temperature scaling.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from blockdraft.errors import DataError

Floats = NDArray[np.float64]

NUM_BINS = 20
GRID: Floats = np.exp(np.linspace(np.log(0.1), np.log(10.0), 231))
"""Temperatures that are tried: two per cent apart, 1 among them."""

MIN_ROUNDS = 100
"""Fewer rounds that drafted a slot than this say nothing about twenty bins."""


@dataclass(frozen=True, kw_only=True)
class ConfidenceData:
    """What the head said, and what the target did.

    Shapes: logits [R, K], NaN where nothing was drafted; kept [R, K]: 1 if the slot and all before it were kept,
    0 if not, -1 if nobody knows, because nothing was drafted or the answer ended before it.
    """

    logits: Floats
    kept: NDArray[np.int8]

    @property
    def num_slots(self) -> int:
        return int(self.logits.shape[1])

    def known(self, slot: int) -> NDArray[np.bool_]:
        """Rounds that tell whether everything up to `slot` was kept. Shapes: [R]."""
        return self.kept[:, slot] >= 0

    def decided(self, slot: int) -> NDArray[np.bool_]:
        """Those of them in which everything before `slot` was kept, so that it decided. Shapes: [R]."""
        return self.known(slot) & (self.kept[:, slot - 1] == 1) if slot else self.known(slot)

    def confidence(self, temperatures: tuple[float, ...]) -> Floats:
        """Return the confidences under these temperatures. Shapes: [R, K]."""
        return _sigmoid(self.logits / np.asarray(temperatures))


@dataclass(frozen=True, kw_only=True)
class Reliability:
    """How well a set of stated chances agrees with what happened."""

    num_rounds: int
    ece: float
    """Expected calibration error: mean distance between chance and frequency, over bins of equal width."""
    brier: float
    auroc: float | None
    """Chance that a kept slot has the higher confidence of a kept and a dropped one; None if all went one way."""
    mean_confidence: float
    share_kept: float
    bins: tuple[tuple[float, float, int], ...]
    """Mean confidence, share kept, and number of rounds of each bin that is not empty."""


@dataclass(frozen=True, kw_only=True)
class SlotReliability:
    """One slot: its own confidence, where the slots before it were kept, and the product up to it."""

    conditional: Reliability
    cumulative: Reliability

    def to_dict(self) -> dict[str, object]:
        """Return the figures as plain data."""
        return asdict(self)


def fit_temperatures(data: ConfidenceData) -> tuple[float, ...]:
    """Return one temperature per slot.

    Raises:
        DataError: a slot was drafted too rarely.
    """
    temperatures: list[float] = []
    product = np.ones(len(data.logits))
    for slot in range(data.num_slots):
        rows = data.known(slot)
        if rows.sum() < MIN_ROUNDS:
            raise DataError(
                f"slot {slot + 1} of {data.num_slots} was judged in {rows.sum()} rounds, and calibration needs "
                f"{MIN_ROUNDS}; give more prompts or longer answers"
            )
        outcomes = data.kept[rows, slot] == 1
        tried = product[rows] * _sigmoid(data.logits[rows, slot] / GRID[:, None])  # [G, R]
        errors = ((tried - outcomes) ** 2).mean(axis=1)
        # Among equals the one that changes least.
        best = min(range(len(GRID)), key=lambda index: (errors[index], abs(np.log(GRID[index]))))
        temperatures.append(round(float(GRID[best]), 4))
        product = product * _sigmoid(data.logits[:, slot] / temperatures[-1])
    return tuple(temperatures)


def assess(data: ConfidenceData, temperatures: tuple[float, ...] | None = None) -> tuple[SlotReliability, ...]:
    """Measure every slot under these temperatures, or under none.

    Raises:
        DataError: no round tells anything about a slot.
    """
    confidence = data.confidence(temperatures or (1.0,) * data.num_slots)
    product = np.cumprod(confidence, axis=1)
    slots = []
    for slot in range(data.num_slots):
        decided, known = data.decided(slot), data.known(slot)
        if not decided.any():
            raise DataError(
                f"the target kept everything before slot {slot + 1} in none of {known.sum()} rounds, so its "
                "confidence cannot be measured; give more prompts, or train the drafter further"
            )
        slots.append(
            SlotReliability(
                conditional=reliability(confidence[decided, slot], data.kept[decided, slot] == 1),
                cumulative=reliability(product[known, slot], data.kept[known, slot] == 1),
            )
        )
    return tuple(slots)


def reliability(confidence: Floats, kept: NDArray[np.bool_]) -> Reliability:
    """Measure chances against outcomes. Shapes: [R] each."""
    counts, confidence_sums, kept_sums = _bin(confidence, kept)
    filled = counts > 0
    bins = zip(
        (confidence_sums[filled] / counts[filled]).tolist(),
        (kept_sums[filled] / counts[filled]).tolist(),
        counts[filled].astype(int).tolist(),
        strict=True,
    )
    return Reliability(
        num_rounds=len(kept),
        ece=expected_calibration_error(confidence, kept),
        brier=float(np.mean((confidence - kept) ** 2)),
        auroc=area_under_roc(confidence, kept),
        mean_confidence=float(confidence.mean()),
        share_kept=float(kept.mean()),
        bins=tuple(bins),
    )


def expected_calibration_error(confidence: Floats, kept: NDArray[np.bool_]) -> float:
    """Return the ECE over bins of equal width. Shapes: [R] each."""
    _, confidence_sums, kept_sums = _bin(confidence, kept)
    return float(np.abs(confidence_sums - kept_sums).sum() / len(kept))


def area_under_roc(confidence: Floats, kept: NDArray[np.bool_]) -> float | None:
    """Return the AUROC, equal confidences counting half; None if all outcomes are the same. Shapes: [R] each."""
    num_kept = int(kept.sum())
    num_dropped = len(kept) - num_kept
    if not num_kept or not num_dropped:
        return None
    _, place, counts = np.unique(confidence, return_inverse=True, return_counts=True)
    mean_ranks = np.cumsum(counts) - (counts - 1) / 2
    rank_sum = mean_ranks[place][kept].sum()
    return float((rank_sum - num_kept * (num_kept + 1) / 2) / (num_kept * num_dropped))


def _bin(confidence: Floats, kept: NDArray[np.bool_]) -> tuple[Floats, Floats, Floats]:
    """Return the number of rounds in each bin, the sum of their confidences, and how many were kept."""
    place = np.minimum((confidence * NUM_BINS).astype(np.int64), NUM_BINS - 1)

    def sums(values: Floats) -> Floats:
        return np.bincount(place, weights=values, minlength=NUM_BINS).astype(np.float64)

    return sums(np.ones(len(kept))), sums(confidence), sums(kept.astype(np.float64))


def _sigmoid(logits: Floats) -> Floats:
    # By tanh, which does not overflow.
    result: Floats = 0.5 * (1 + np.tanh(0.5 * logits))
    return result
