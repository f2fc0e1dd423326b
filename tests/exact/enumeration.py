"""All outcomes of a generation, with their exact probabilities, worked out independently of the engine.

A generation is a function of uniform draws, each known by (position, purpose). `outcomes` walks through the
algorithm as the papers state it, in NumPy, and splits the interval of a draw wherever a decision depends on it. A
path ends with the tokens it emitted, the product of its interval lengths, and the intervals themselves. A draw that
was used in one round and is used again in a later one is split further, so re-use across rounds is enumerated too.

The tests then (1) sum the probabilities of each answer and compare them with the target's joint distribution, and
(2) run the real engine at both ends of every path's intervals and demand the predicted tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from blockdraft.core.random import Draw
from blockdraft.testing.toy import Table

Key = tuple[int, Draw]
EDGE = 1e-9
"""How far from the ends of an interval the engine is probed, as a share of its length."""


@dataclass(frozen=True)
class Setup:
    """The process under test."""

    target: Table
    draft: Table
    num_drafts: Callable[[tuple[int, ...]], int]
    max_tokens: int
    rule: str = "rejection"
    deterministic: bool = False
    confidence: Callable[[tuple[int, ...]], float] | None = None
    p_min: float = 0.0
    keeps: Callable[[tuple[float, ...]], bool] = lambda confidences: True
    """Whether a slot is verified, by the confidences up to its own."""
    stop_ids: frozenset[int] = frozenset()


@dataclass
class Path:
    """One way through the draws."""

    emitted: tuple[int, ...] = ()
    weight: float = 1.0
    intervals: dict[Key, tuple[float, float]] = field(default_factory=dict)

    def split(self, key: Key, probs: np.ndarray) -> Iterator[tuple[int, Path]]:
        """Yield each outcome that the draw `key` can have under `probs`, given what is known of the draw."""
        low, high = self.intervals.get(key, (0.0, 1.0))
        edges = np.concatenate(([0.0], np.cumsum(probs) / probs.sum()))
        for outcome in np.flatnonzero(probs > 0):
            start, end = max(low, edges[outcome]), min(high, edges[outcome + 1])
            if end - start > 1e-15:
                weight = self.weight * (end - start) / (high - low)
                yield int(outcome), Path(self.emitted, weight, {**self.intervals, key: (start, end)})

    def emit(self, token_ids: tuple[int, ...]) -> Path:
        return Path(self.emitted + token_ids, self.weight, self.intervals)


def outcomes(setup: Setup, prompt: tuple[int, ...]) -> Iterator[Path]:
    """Yield every path of positive probability."""
    for token_id, path in Path().split((len(prompt), Draw.TARGET), setup.target(prompt)):
        yield from _continue(setup, prompt, path.emit((token_id,)))


def _continue(setup: Setup, prompt: tuple[int, ...], path: Path) -> Iterator[Path]:
    if path.emitted[-1] in setup.stop_ids or len(path.emitted) == setup.max_tokens:
        yield path
        return
    prefix = prompt + path.emitted
    num_wanted = min(setup.num_drafts(prefix), setup.max_tokens - len(path.emitted) - 1)
    for draft, drafted in _draft(setup, prefix, (), num_wanted, path):
        for tokens, verified in _verify(setup, prefix, draft, 0, drafted):
            yield from _continue(setup, prompt, verified.emit(_cut(tokens, setup.stop_ids)))


def _draft(
    setup: Setup, prefix: tuple[int, ...], draft: tuple[int, ...], num_wanted: int, path: Path
) -> Iterator[tuple[tuple[int, ...], Path]]:
    """Draw all wanted tokens, then keep those before the first slot of low confidence."""
    if len(draft) < num_wanted:
        row = setup.draft(prefix + draft)
        if setup.deterministic:
            row = np.eye(len(row))[row.argmax()]
            yield from _draft(setup, prefix, (*draft, int(row.argmax())), num_wanted, path)
            return
        for token_id, longer in path.split((len(prefix) + len(draft), Draw.DRAFT), row):
            yield from _draft(setup, prefix, (*draft, token_id), num_wanted, longer)
        return
    if setup.confidence is not None:
        confidences: tuple[float, ...] = ()
        for slot in range(len(draft)):
            confidences += (setup.confidence(prefix + draft[:slot]),)
            if confidences[-1] < setup.p_min or not setup.keeps(confidences):
                draft = draft[:slot]
                break
    yield draft, path


def _verify(
    setup: Setup, prefix: tuple[int, ...], draft: tuple[int, ...], slot: int, path: Path
) -> Iterator[tuple[tuple[int, ...], Path]]:
    """Yield the tokens a round emits from `slot` on, drafts and the target's own."""
    here = prefix + draft[:slot]
    position = len(here)
    p = setup.target(here)
    if slot == len(draft):
        for token_id, longer in path.split((position, Draw.TARGET), p):
            yield (*draft, token_id), longer
        return
    x = draft[slot]
    if setup.rule == "match":
        for token_id, longer in path.split((position, Draw.TARGET), p):
            if token_id == x:
                yield from _verify(setup, prefix, draft, slot + 1, longer)
            else:
                yield (*draft[:slot], token_id), longer
        return
    q = np.eye(len(p))[x] if setup.deterministic else setup.draft(here)
    kept = min(1.0, p[x] / q[x])
    for outcome, longer in path.split((position, Draw.ACCEPT), np.array([kept, 1 - kept])):
        if outcome == 0:
            yield from _verify(setup, prefix, draft, slot + 1, longer)
            continue
        for token_id, ended in longer.split((position, Draw.RESIDUAL), np.maximum(p - q, 0)):
            yield (*draft[:slot], token_id), ended


def _cut(token_ids: tuple[int, ...], stop_ids: frozenset[int]) -> tuple[int, ...]:
    for index, token_id in enumerate(token_ids):
        if token_id in stop_ids:
            return token_ids[: index + 1]
    return token_ids


def target_joint(setup: Setup, prompt: tuple[int, ...]) -> dict[tuple[int, ...], float]:
    """Return the probability of every answer that the target alone would give."""
    finished: dict[tuple[int, ...], float] = {}
    growing: dict[tuple[int, ...], float] = {(): 1.0}
    while growing:
        answer, weight = growing.popitem()
        for token_id, probability in enumerate(setup.target(prompt + answer)):
            if probability == 0:
                continue
            longer = (*answer, token_id)
            over = token_id in setup.stop_ids or len(longer) == setup.max_tokens
            (finished if over else growing)[longer] = weight * probability
    return finished


class GivenRandom:
    """Stands in for `PositionalRandom` and hands out the draws of a path."""

    def __init__(self, intervals: dict[Key, tuple[float, float]], at: float) -> None:
        self._values = {key: low + at * (high - low) for key, (low, high) in intervals.items()}

    def uniforms(self, position: int, count: int) -> np.ndarray:
        return np.array(
            [[self._values.get((position + row, purpose), 0.5) for purpose in Draw] for row in range(count)]
        )
