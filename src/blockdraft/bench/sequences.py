"""Sequences of tokens, side by side."""

from __future__ import annotations

from collections.abc import Sequence


def num_common(left: Sequence[object], right: Sequence[object]) -> int:
    """Return how many of the first items are equal."""
    pairs = zip(left, right, strict=False)
    return next((index for index, (one, other) in enumerate(pairs) if one != other), min(len(left), len(right)))
