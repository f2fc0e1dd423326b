"""Which n-gram setting serves best when nothing is asked for?

First every setting is replayed on recorded greedy answers: the rounds are exact, and the time is that of the
target's passes over as many rows, measured in the same run. Then the best few are run for real against plain
decoding, turn by turn. A default must not cost anything: no category may fall below a ratio of 0.99.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from statistics import median
from time import perf_counter, process_time

from blockdraft.bench.compare import compare
from blockdraft.bench.replay import replay
from blockdraft.drafters.build import build_drafter
from blockdraft.drafters.config import NgramMapK, NgramMapK4v, NgramMod, NgramSimple, SpecConfig
from blockdraft.engine import Engine, Generation
from blockdraft.engine.load import DEFAULT_SPEC
from blockdraft.engine.workloads import Workload
from blockdraft.models.base import Segment, Target
from common import emit, first_turn, idle_check, load, make_parser, print_table, say, workloads

FLOOR = 0.99
"""A default may not make any kind of prompt slower than this."""

CONTEXT = 256
"""Tokens before the rows whose pass is timed."""


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """A prompt and its greedy answer."""

    workload: Workload
    answer: Generation


@dataclass(frozen=True, kw_only=True)
class Score:
    """How much faster one setting is, by category."""

    by_category: Mapping[str, float]

    @property
    def overall(self) -> float:
        """Geometric mean of the categories."""
        return prod(self.by_category.values()) ** (1 / len(self.by_category))

    @property
    def is_safe(self) -> bool:
        return min(self.by_category.values()) >= FLOOR


def settings(lengths: Sequence[int]) -> Iterator[tuple[str, SpecConfig]]:
    """Yield a name and a configuration for each setting of the sweep; `lengths` are the longest drafts."""
    for m in lengths:
        for n in range(2, 7):
            for n_min in sorted({n, 3, 2} & set(range(2, n + 1))):
                simple = NgramSimple(size_n=n, size_n_min=n_min, size_m=m, min_draft=1)
                yield f"ngram-simple n {n} to {n_min}, m {m}", SpecConfig(types=("ngram-simple",), ngram_simple=simple)
            for hits in (1, 2):
                map_k = NgramMapK(size_n=n, size_m=m, min_hits=hits)
                yield f"ngram-map-k n {n}, m {m}, hits {hits}", SpecConfig(types=("ngram-map-k",), ngram_map_k=map_k)
            map_k4v = NgramMapK4v(size_n=n, size_m=m)
            yield f"ngram-map-k4v n {n}, m {m}", SpecConfig(types=("ngram-map-k4v",), ngram_map_k4v=map_k4v)
            mod = NgramMod(n_match=n, n_min=1, n_max=m)
            yield f"ngram-mod n {n}, m {m}", SpecConfig(types=("ngram-mod",), ngram_mod=mod)


def pass_costs(target: Target, sizes: Sequence[int], repeats: int, read: Callable[[], float]) -> dict[int, float]:
    """Return the median seconds of a pass over so many rows, all sizes taking turns."""
    cache = target.new_cache(CONTEXT + max(sizes))
    target.forward([Segment(token_ids=[1] * CONTEXT, cache=cache, num_logits=1)])
    times: dict[int, list[float]] = {size: [] for size in sizes}
    for _ in range(repeats + 1):
        for size in sizes:
            started = read()
            logits = target.forward([Segment(token_ids=[1] * size, cache=cache, num_logits=size)]).logits
            logits.argmax(-1).tolist()
            times[size].append(read() - started)
            cache.rollback(CONTEXT)
    return {size: median(values[1:]) for size, values in times.items()}


def predict(spec: SpecConfig, recorded: Iterable[Recorded], costs: Mapping[int, float], target: Target) -> Score:
    """Replay one setting on every answer; the score of a category is the median of its prompts."""
    ratios: dict[str, list[float]] = {}
    for item in recorded:
        drafter = build_drafter(spec, target, None)
        assert drafter is not None
        rounds = replay(drafter, item.answer.prompt_ids, item.answer.token_ids)
        if rounds:
            plain_s = costs[1] * sum(record.num_emitted for record in rounds)
            ratio = plain_s / sum(costs[1 + record.num_drafted] for record in rounds)
            ratios.setdefault(item.workload.category, []).append(ratio)
    return Score(by_category={category: median(values) for category, values in ratios.items()})


def run_for_real(
    spec: SpecConfig, baseline: Engine, recorded: Iterable[Recorded], args: argparse.Namespace
) -> tuple[Score, int]:
    """Run one setting against plain decoding; return its score and how many answers were identical."""
    drafter = build_drafter(spec, baseline.target, baseline.tokenizer)
    engine = Engine(baseline.target, baseline.tokenizer, drafter, spec=spec)
    ratios: dict[str, list[float]] = {}
    num_identical = 0
    for item in recorded:
        request = first_turn(engine, item.workload, max_tokens=args.max_tokens)
        comparison = compare(engine, request, repeats=args.repeats)
        num_identical += bool(comparison.identical)
        if comparison.speed_ratio is not None:
            ratios.setdefault(item.workload.category, []).append(comparison.speed_ratio)
    return Score(by_category={category: median(values) for category, values in ratios.items()}), num_identical


def show(title: str, scores: Mapping[str, Score]) -> None:
    categories = list(next(iter(scores.values())).by_category)
    print_table(
        title,
        ("setting", "overall", *categories),
        [(name, score.overall, *(score.by_category[c] for c in categories)) for name, score in scores.items()],
    )


def best_first(scores: Mapping[str, Score]) -> list[str]:
    """Return the names, safe settings before others, then by their overall score."""
    return sorted(scores, key=lambda name: (scores[name].is_safe, scores[name].overall), reverse=True)


def main() -> int:
    parser = make_parser(__doc__, num_prompts=24, max_tokens=160)
    parser.add_argument("--lengths", type=int, nargs="+", default=[4, 6, 8, 9, 12, 15, 20, 24], help="longest drafts")
    parser.add_argument(
        "--finalists",
        type=int,
        default=2,
        help="how many of the best are run for real, the present default beside them",
    )
    parser.add_argument("--repeats", type=int, default=1, help="pairs of runs for each prompt of a finalist")
    parser.add_argument(
        "--cpu-time", action="store_true", help="cost passes in seconds of CPU, on a machine that is busy"
    )
    args = parser.parse_args()
    idle = idle_check()
    loaded = load(args)
    baseline = Engine(loaded.target, loaded.tokenizer)
    recorded = []
    for workload in workloads(args):
        request = first_turn(baseline, workload, max_tokens=args.max_tokens)
        recorded.append(Recorded(workload=workload, answer=baseline.run([request])[0]))
    sweep = {"default": DEFAULT_SPEC, **dict(settings(args.lengths))}
    longest = max(DEFAULT_SPEC.ngram_simple.size_m, *args.lengths)
    costs = pass_costs(loaded.target, range(1, longest + 2), 15, process_time if args.cpu_time else perf_counter)
    say("cost of a pass, relative to one row: " + ", ".join(f"{n}: {costs[n] / costs[1]:.2f}" for n in costs))
    predicted = {name: predict(spec, recorded, costs, loaded.target) for name, spec in sweep.items()}
    ranking = best_first(predicted)
    show("Predicted from replays, the best 20", {name: predicted[name] for name in ["default", *ranking[:20]]})
    measured: dict[str, Score] = {}
    num_identical: dict[str, int] = {}
    for name in dict.fromkeys(["default", *ranking[: args.finalists]]) if args.finalists else ():
        measured[name], num_identical[name] = run_for_real(sweep[name], baseline, recorded, args)
        show(
            f"Measured against plain decoding, {num_identical[name]} of {len(recorded)} identical",
            {name: measured[name]},
        )
    plain = {
        stage: {
            name: {"overall": score.overall, "by_category": dict(score.by_category)} for name, score in scores.items()
        }
        for stage, scores in (("predicted", predicted), ("measured", measured))
    }
    emit(
        "ngram_default", args, idle, {**plain, "num_identical": num_identical, "pass_cost_s": costs, "ranking": ranking}
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
