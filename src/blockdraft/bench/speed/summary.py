"""What a run says: figures of each cell and side, ratios with intervals, and where drafting stops to pay.

The headline is the decode ratio: time per token of the baseline by that of the side in question, for the same message
of the same repeat. It leaves the prefill out; the request ratio has it in, and the throughput ratio is of all
conversations of a pass together. Without a baseline there are no ratios.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any, Literal

import numpy as np

from blockdraft.bench.speed.drafts import DraftCounts
from blockdraft.bench.speed.records import Pass, Role, Run, Sample
from blockdraft.bench.speed.statistics import Ratio, Spread, ratio_of, spread
from blockdraft.bench.speed.workload import Cell, prompt_of

Axis = Literal["concurrency", "depth"]
Measure = Callable[[Sample], float | None]

WINDOW_TOKENS = 64
"""How many tokens of an answer one point of the speed inside answers covers."""


def decode_s(sample: Sample) -> float | None:
    """Return the time per token after the first."""
    return sample.tpot_s


def request_s(sample: Sample) -> float | None:
    """Return the time per token from sending the request on."""
    if sample.failure or sample.e2e_s is None or not sample.num_tokens:
        return None
    return sample.e2e_s / sample.num_tokens


def first_s(sample: Sample) -> float | None:
    """Return the time to the first piece."""
    return None if sample.failure else sample.ttft_s


@dataclass(frozen=True, kw_only=True)
class SideFigures:
    """One side in one cell."""

    num_requests: int
    failures: dict[str, int]
    """How many requests failed, by kind."""
    ttft_ms: Spread | None
    tpot_ms: Spread | None
    gap_ms: Spread | None
    """Between pieces, which may hold several tokens."""
    gap_p99_ms: float | None
    request_tokens_per_second: Spread | None
    """Of each request, after its first token."""
    total_tokens_per_second: Spread | None
    """Of all conversations of a pass together."""
    answer_tokens: Spread | None
    prompt_tokens: Spread | None
    """Of first messages, with what stands in front of them."""
    cached_share: float | None
    """Of those tokens, how many a prefix cache knew."""
    joules_per_token: float | None
    drafts: DraftCounts | None
    mean_acceptance_length: float | None
    """Over all rounds, those without a draft among them; 1 is plain decoding."""

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "drafts": self.drafts.to_dict() if self.drafts else None}


@dataclass(frozen=True, kw_only=True)
class CellFigures:
    """One cell on both sides. Ratios above 1 mean that the side in question is faster than the baseline."""

    cell: Cell
    sides: dict[Role, SideFigures]
    decode_ratio: Ratio | None
    request_ratio: Ratio | None
    ttft_ratio: Ratio | None
    throughput_ratio: Ratio | None
    """Its pairs are passes, its prompts are repeats."""

    def to_dict(self) -> dict[str, Any]:
        return {
            "cell": self.cell.to_dict(),
            "sides": {role: figures.to_dict() for role, figures in self.sides.items()},
            "decode_ratio": _plain(self.decode_ratio),
            "request_ratio": _plain(self.request_ratio),
            "ttft_ratio": _plain(self.ttft_ratio),
            "throughput_ratio": _plain(self.throughput_ratio),
        }


@dataclass(frozen=True, kw_only=True)
class Condition:
    """All categories of one depth and concurrency together; each weighs the same."""

    depth: int
    concurrency: int
    decode_ratio: Ratio | None
    request_ratio: Ratio | None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class Crossover:
    """Where the decode ratio falls under 1 along one axis, the other one fixed."""

    axis: Axis
    fixed: int
    """The value of the other axis."""
    points: tuple[tuple[int, Ratio], ...]

    @property
    def first_below(self) -> int | None:
        """The first point whose ratio is under 1."""
        return next((value for value, ratio in self.points if ratio.value < 1), None)

    @property
    def first_clearly_below(self) -> int | None:
        """The first point whose whole interval is under 1."""
        return next((value for value, ratio in self.points if ratio.is_clearly_slower), None)

    @property
    def last_clearly_above(self) -> int | None:
        """The last point in front of `first_below` whose whole interval is over 1."""
        clear = [value for value, ratio in self.points if ratio.is_clearly_faster]
        limit = self.first_below
        return max((value for value in clear if limit is None or value < limit), default=None)

    def to_dict(self) -> dict[str, Any]:
        return {
            "axis": self.axis,
            "fixed": self.fixed,
            "points": [{"value": value, "decode_ratio": ratio.to_dict()} for value, ratio in self.points],
            "first_below": self.first_below,
            "first_clearly_below": self.first_clearly_below,
            "last_clearly_above": self.last_clearly_above,
        }


@dataclass(frozen=True, kw_only=True)
class Summary:
    """All figures of a run."""

    cells: tuple[CellFigures, ...]
    conditions: tuple[Condition, ...]
    crossovers: tuple[Crossover, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return all figures as plain data."""
        return {
            "cells": [one.to_dict() for one in self.cells],
            "conditions": [one.to_dict() for one in self.conditions],
            "crossovers": [one.to_dict() for one in self.crossovers],
        }


def summarise(run: Run) -> Summary:
    """Work out all figures of a run."""
    cells = list(dict.fromkeys(one.cell for one in run.passes))
    figures = [_cell_figures(run, cell) for cell in cells]
    conditions = [_condition(run, *where) for where in dict.fromkeys((c.depth, c.concurrency) for c in cells)]
    return Summary(cells=tuple(figures), conditions=tuple(conditions), crossovers=tuple(_crossovers(conditions)))


def pairs_of(passes: Iterable[Pass], measure: Measure) -> dict[str, dict[str, list[float]]]:
    """Return baseline by speculative, by category and prompt, of every message that both sides answered.

    Copies of a prompt count as more pairs of it, not as other prompts.
    """
    found: dict[tuple[Cell, str, int, int], dict[Role, float]] = {}
    for one in passes:
        for sample in one.samples:
            value = measure(sample)
            if value:
                found.setdefault((one.cell, *sample.key), {})[one.role] = value
    groups: dict[str, dict[str, list[float]]] = {}
    for (cell, prompt_id, *_), values in found.items():
        if len(values) == 2:
            ratio = values["baseline"] / values["speculative"]
            groups.setdefault(cell.category, {}).setdefault(prompt_of(prompt_id), []).append(ratio)
    return groups


def ratio_in(passes: Iterable[Pass], measure: Measure = decode_s) -> Ratio | None:
    """Return the ratio over all categories in some passes."""
    return ratio_of(pairs_of(passes, measure))


def speed_inside_answers(passes: Sequence[Pass]) -> list[tuple[int, float]]:
    """Return (first token, median ratio) of each stretch of `WINDOW_TOKENS` that three pairs or more have."""
    found: dict[int, dict[tuple[Cell, str, int, int], dict[Role, float]]] = {}
    for one in passes:
        for sample in one.samples:
            if not sample.failure:
                times = sample.token_times()
                for start in range(0, len(times) - WINDOW_TOKENS, WINDOW_TOKENS):
                    spent = times[start + WINDOW_TOKENS] - times[start]
                    found.setdefault(start, {}).setdefault((one.cell, *sample.key), {})[one.role] = spent
    points = []
    for start, by_key in sorted(found.items()):
        ratios = [v["baseline"] / v["speculative"] for v in by_key.values() if len(v) == 2 and v["speculative"] > 0]
        if len(ratios) >= 3:
            points.append((start, median(ratios)))
    return points


def _cell_figures(run: Run, cell: Cell) -> CellFigures:
    passes = [one for one in run.passes if one.cell == cell]
    by_role: dict[Role, list[Pass]] = {}
    for one in passes:
        by_role.setdefault(one.role, []).append(one)
    return CellFigures(
        cell=cell,
        sides={role: _side_figures(own) for role, own in by_role.items()},
        decode_ratio=ratio_in(passes, decode_s),
        request_ratio=ratio_in(passes, request_s),
        ttft_ratio=ratio_in(passes, first_s),
        throughput_ratio=_throughput_ratio(passes),
    )


def _side_figures(passes: Sequence[Pass]) -> SideFigures:
    samples = [sample for one in passes for sample in one.samples]
    good = [sample for sample in samples if not sample.failure]
    failed = [sample.failure.kind for sample in samples if sample.failure]
    tpot = [sample.tpot_s for sample in good if sample.tpot_s]
    gaps = [1000 * gap for sample in good for gap in sample.gaps_s]
    first = [sample for sample in good if sample.turn == 0]
    prompts = [sample.num_prompt_tokens for sample in first if sample.num_prompt_tokens]
    cached = [sample.num_cached_tokens for sample in first if sample.num_cached_tokens is not None]
    energies = [one.energy_j for one in passes if one.energy_j is not None]
    num_tokens = sum(one.num_tokens for one in passes)
    drafts = DraftCounts.merge([one.drafts for one in passes])
    num_after_first = sum(max(sample.num_tokens - 1, 0) for sample in samples)
    return SideFigures(
        num_requests=len(samples),
        failures={kind: failed.count(kind) for kind in sorted(set(failed))},
        ttft_ms=spread([1000 * sample.ttft_s for sample in good if sample.ttft_s]),
        tpot_ms=spread([1000 * value for value in tpot]),
        gap_ms=spread(gaps),
        gap_p99_ms=float(np.quantile(gaps, 0.99)) if gaps else None,
        request_tokens_per_second=spread([1 / value for value in tpot]),
        total_tokens_per_second=spread([one.tokens_per_second for one in passes if one.num_tokens]),
        answer_tokens=spread([sample.num_tokens for sample in good]),
        prompt_tokens=spread(prompts),
        cached_share=sum(cached) / sum(prompts) if prompts and len(cached) == len(prompts) else None,
        joules_per_token=sum(energies) / num_tokens if len(energies) == len(passes) and num_tokens else None,
        drafts=drafts,
        mean_acceptance_length=drafts.round_length(num_after_first) if drafts else None,
    )


def _throughput_ratio(passes: Sequence[Pass]) -> Ratio | None:
    speeds: dict[int, dict[Role, float]] = {}
    for one in passes:
        if one.tokens_per_second and not any(sample.failure for sample in one.samples):
            speeds.setdefault(one.repeat, {})[one.role] = one.tokens_per_second
    pairs = {str(n): [v["speculative"] / v["baseline"]] for n, v in speeds.items() if len(v) == 2}
    return ratio_of({"": pairs})


def _condition(run: Run, depth: int, concurrency: int) -> Condition:
    passes = [one for one in run.passes if (one.cell.depth, one.cell.concurrency) == (depth, concurrency)]
    return Condition(
        depth=depth,
        concurrency=concurrency,
        decode_ratio=ratio_in(passes, decode_s),
        request_ratio=ratio_in(passes, request_s),
    )


def _crossovers(conditions: Sequence[Condition]) -> list[Crossover]:
    axes: tuple[tuple[Axis, Axis], ...] = (("concurrency", "depth"), ("depth", "concurrency"))
    found = []
    for axis, other in axes:
        for fixed in sorted({getattr(one, other) for one in conditions}):
            points = [
                (getattr(one, axis), one.decode_ratio)
                for one in conditions
                if getattr(one, other) == fixed and one.decode_ratio is not None
            ]
            if len(points) > 1:
                points.sort(key=lambda point: point[0])
                found.append(Crossover(axis=axis, fixed=fixed, points=tuple(points)))
    return found


def _plain(ratio: Ratio | None) -> dict[str, Any] | None:
    return ratio.to_dict() if ratio else None
