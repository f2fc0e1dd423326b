"""What passes of a target and drafts of a drafter cost on this machine, measured once and looked up ever after.

Whether speculation pays is a matter of two curves: how much longer the target takes for more rows, and what a draft
takes. Both are nearly the same for all texts, so a table of a few sizes, measured in under a second, is enough.

Ref: arXiv:2607.05147, Sec. 4 (there the table is of the target alone, in steps per second).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np
import torch

from blockdraft.cache.rows import RowCache
from blockdraft.core.random import PositionalRandom
from blockdraft.core.sampling import SamplingParams, greedy_ids
from blockdraft.drafters.base import Ask, Drafter, Observation
from blockdraft.models.base import Segment, Target

NUM_ROWS = (1, 2, 3, 4, 6, 8, 12, 16)
"""Rows of a pass that are measured; between them the curve is taken as straight, and beyond the last as well."""

DEPTHS = (64, 1024)
"""Tokens in the cache when they are measured."""

NUM_WARM_UPS = 2
NUM_REPEATS = 9

FIRST_CONTEXT = 64
"""Tokens behind which the first draft is made."""

LONGEST_CONTEXT = 256
"""Behind more tokens than this it begins anew."""

LONG_DRAFT = 8
"""Drafts of so many tokens are timed beside short ones; beyond them their cost is taken as straight."""

SLOW_PASS_S = 0.02
"""Passes that take longer are timed once: there is less to disturb them, and more to wait for."""


@dataclass(frozen=True, kw_only=True)
class DraftCost:
    """Seconds that a draft takes: of the first token, and what each further one adds."""

    first_s: float
    further_s: float = 0.0

    def of(self, num_tokens: int) -> float:
        """Return the seconds of a draft; none for no tokens."""
        return self.first_s + self.further_s * (num_tokens - 1) if num_tokens > 0 else 0.0


@dataclass(frozen=True, kw_only=True)
class PassCosts:
    """Seconds of passes by rows and depth, and of drafts by drafter. Shapes: target_s [depths, num_rows]."""

    num_rows: tuple[int, ...]
    depths: tuple[int, ...]
    target_s: tuple[tuple[float, ...], ...]
    draft_s: Mapping[str, DraftCost] = field(default_factory=dict)

    def target(self, num_rows: int, depth: int = 0) -> float:
        """Return the seconds of a pass over so many rows behind `depth` tokens."""
        curves = [_straight(num_rows, self.num_rows, curve) for curve in self.target_s]
        return max(_straight(depth, self.depths, curves), 1e-9)

    def draft(self, drafter: str, num_tokens: int) -> float:
        """Return the seconds of a draft; those of a drafter that was not measured count as nothing."""
        cost = self.draft_s.get(drafter)
        return cost.of(num_tokens) if cost else 0.0

    def to_dict(self) -> dict[str, object]:
        """Return plain data that `from_dict` reads."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> PassCosts:
        """Read what `to_dict` returned.

        Raises:
            KeyError, TypeError, ValueError: it is something else.
        """
        costs = cls(
            num_rows=tuple(map(int, data["num_rows"])),
            depths=tuple(map(int, data["depths"])),
            target_s=tuple(tuple(map(float, curve)) for curve in data["target_s"]),
            draft_s={name: DraftCost(**cost) for name, cost in data["draft_s"].items()},
        )
        if len(costs.target_s) != len(costs.depths) or any(len(row) != len(costs.num_rows) for row in costs.target_s):
            raise ValueError("a table of pass costs has another shape than its sizes say")
        return costs


def _straight(x: float, sizes: Sequence[int], values: Sequence[float]) -> float:
    """Interpolate, and go on straight beyond the last two sizes."""
    if x <= sizes[-1] or len(sizes) == 1:
        return float(np.interp(x, sizes, values))
    slope = max(values[-1] - values[-2], 0.0) / (sizes[-1] - sizes[-2])
    return values[-1] + slope * (x - sizes[-1])


@torch.inference_mode()
def measure_pass_costs(
    target: Target,
    drafter: Drafter | None = None,
    *,
    num_rows: Sequence[int] = NUM_ROWS,
    depths: Sequence[int] = DEPTHS,
    num_repeats: int = NUM_REPEATS,
    num_warm_ups: int = NUM_WARM_UPS,
) -> PassCosts:
    """Time passes and drafts: lower quartiles of `num_repeats` sweeps, after `num_warm_ups` that do not count.

    Other work on the machine only ever adds to a time, so the quicker ones are nearer to what a pass costs, and as a
    sweep is over all sizes, what disturbs a while does not disturb one size alone. A draft is timed behind a pass, as
    in a round; its cost is that and what the pass behind it takes longer, as the draft displaced weights. Targets whose
    caches cannot be filled without computing are measured at the first depth only.
    """
    room = target.info.context_length - max(num_rows)
    depths = sorted({min(depth, room) for depth in depths})
    caches = [_filled_cache(target, depth, max(num_rows)) for depth in depths]
    if any(cache is None for cache in caches):
        depths, caches = depths[:1], [_computed_cache(target, depths[0], max(num_rows))]
    tapped = drafter.traits.target_layer_ids if drafter else ()
    if min(_run(target, caches[0], 1, tapped) for _ in range(3)) > SLOW_PASS_S:
        num_repeats = num_warm_ups = 1
    works: dict[Any, Callable[[], float]] = {
        (depth, size): partial(_run, target, cache, size, tapped)
        for depth, cache in zip(depths, caches, strict=True)
        for size in num_rows
    }
    lengths = {
        part: (min(2, part.traits.max_draft_tokens), min(LONG_DRAFT, part.traits.max_draft_tokens))
        for part in (drafter.parts if drafter else ())
    }
    for part, (few, many) in lengths.items():
        drafts = _TimedDrafts(target, part)
        behind = partial(_run, target, caches[0], few + 1, tapped)
        works[part, few] = partial(drafts.draft, few)
        works[part, "pass behind"] = behind
        if many > few:
            works[part, many] = partial(drafts.draft, many)
            works[part, "another pass"] = behind
    seconds = _typical(works, num_warm_ups, num_repeats)
    # More rows never cost less: what says so is noise.
    curves = [
        np.minimum.accumulate([seconds[depth, size] for size in num_rows][::-1])[::-1].tolist() for depth in depths
    ]
    costs = PassCosts(num_rows=tuple(num_rows), depths=tuple(depths), target_s=tuple(map(tuple, curves)))
    draft_s = {}
    for part, (few, many) in lengths.items():
        displaced_s = 0.0
        if seconds[part, few] > costs.target(1, depths[0]) / 10:
            displaced_s = max(seconds[part, "pass behind"] - costs.target(few + 1, depths[0]), 0.0)
        draft_s[part.traits.name] = _line({count: seconds[part, count] + displaced_s for count in sorted({few, many})})
    return replace(costs, draft_s=draft_s)


def _typical(works: Mapping[Any, Callable[[], float]], num_warm_ups: int, num_repeats: int) -> dict[Any, float]:
    """Return the lower quartile of what each work takes, in sweeps over all of them."""
    sweeps = [{key: work() for key, work in works.items()} for _ in range(num_warm_ups + num_repeats)]
    counted = sweeps[num_warm_ups:]
    return {key: sorted(sweep[key] for sweep in counted)[(num_repeats - 1) // 4] for key in works}


def _line(seconds: Mapping[int, float]) -> DraftCost:
    """Return the straight line through one or two points."""
    (few, first), *rest = seconds.items()
    if not rest:
        return DraftCost(first_s=first)
    ((many, last),) = rest
    slope = max(last - first, 0.0) / (many - few)
    return DraftCost(first_s=max(first - slope * (few - 1), 0.0), further_s=slope)


def _filled_cache(target: Target, depth: int, room: int) -> Any:
    """Return a cache that holds `depth` rows of zeros; None for a kind that cannot."""
    cache = target.new_cache(depth + room)
    if not isinstance(cache, RowCache):
        return None
    cache.reserve(depth)
    cache.advance(depth)
    return cache


def _computed_cache(target: Target, depth: int, room: int) -> Any:
    cache = target.new_cache(depth + room)
    target.forward([Segment(token_ids=_some_ids(target, depth), cache=cache, num_logits=1)])
    return cache


def _some_ids(target: Target, count: int) -> list[int]:
    return [(7 * place + 11) % target.info.vocab_size for place in range(count)]


def _run(target: Target, cache: Any, num_rows: int, tapped: Sequence[int]) -> float:
    """Return the seconds of a pass and of choosing from its rows."""
    held = cache.length
    segment = Segment(token_ids=_some_ids(target, num_rows), cache=cache, num_logits=num_rows, only_greedy=True)
    started = perf_counter()
    output = target.forward([segment], tapped)
    if output.greedy_ids is None:
        greedy_ids(output.logits).tolist()
    seconds = perf_counter() - started
    cache.rollback(held)
    return seconds


class _TimedDrafts:
    """Drafts of one drafter, two committed tokens being observed after each."""

    def __init__(self, target: Target, drafter: Drafter) -> None:
        self._drafter = drafter
        self._prompt_ids = _some_ids(target, min(FIRST_CONTEXT, target.info.context_length))
        cache = target.new_cache(len(self._prompt_ids))
        segment = Segment(token_ids=self._prompt_ids, cache=cache, num_logits=1)
        self._hidden = target.forward([segment], drafter.traits.target_layer_ids).target_hidden
        self._begin()

    def _begin(self) -> None:
        self._ids = list(self._prompt_ids)
        self._state = self._drafter.begin(self._prompt_ids)
        self._commit(len(self._prompt_ids), 1)

    def draft(self, num_tokens: int) -> float:
        """Make one draft; return its seconds."""
        if len(self._ids) > LONGEST_CONTEXT:
            self._begin()
        ask = Ask(
            state=self._state,
            token_ids=self._ids,
            num_draft_tokens=num_tokens,
            sampling=SamplingParams(),
            random=PositionalRandom(0, 0),
        )
        started = perf_counter()
        self._drafter.propose([ask])
        seconds = perf_counter() - started
        self._commit(2, 2)
        return seconds

    def _commit(self, num_rows: int, num_tokens: int) -> None:
        self._ids += self._ids[:num_tokens]
        hidden = None if self._hidden is None else self._hidden[:num_rows]
        self._drafter.observe(self._state, Observation(committed_ids=self._ids[-num_tokens:], target_hidden=hidden))
