"""Time of a round divided by the time of its model passes, at batch 1.

Passes are: the target's forward; of a block drafter the projection of the context, the block with its output head
and (DSpark) the Markov and confidence heads, or the walk on the native kernels. Everything else is overhead:
proposing, masks and lists, sampling, verification, bookkeeping, text. A round is timed as `Engine.step`, without the
one that prefills. Drafters are random, so that every round drafts and rejects; the time of a round does not depend on
what is accepted.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter, process_time
from typing import Any

import torch

from blockdraft.bench.random_drafter import RandomDrafter, write_random_drafter
from blockdraft.core.sampling import SamplingParams
from blockdraft.drafters.base import Drafter
from blockdraft.drafters.block_drafter import BlockDrafter
from blockdraft.drafters.build import build_drafter
from blockdraft.drafters.config import NgramMod, SpecConfig
from blockdraft.engine import Engine, Request
from blockdraft.engine.load import DEFAULT_SPEC
from blockdraft.models.load import LoadedModel
from common import emit, first_turn, idle_check, load, make_parser, print_table, workloads

LIMIT = 1.10
"""A greedy round may take this many times its passes."""

SAMPLED = SamplingParams(temperature=0.8, top_p=0.95, seed=1)

HEADS = ("embed", "bias", "from_hidden", "probability", "choose")
"""Methods of DSpark's two heads, and of the walk through them."""


@dataclass
class PassClock:
    """Adds up the time spent in wrapped calls; calls inside wrapped calls count once."""

    device: torch.device
    read: Callable[[], float]
    seconds: float = 0.0
    _depth: int = 0

    def timed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if self._depth:
                return call(*args, **kwargs)
            self._depth = 1
            started = self.now()
            try:
                return call(*args, **kwargs)
            finally:
                self.seconds += self.now() - started
                self._depth = 0

        return wrapper

    def now(self) -> float:
        """Return the time after all work that was given to the device."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return self.read()


@dataclass
class Rounds:
    """What was measured of one drafter and one kind of request."""

    round_s: list[float] = field(default_factory=list)
    pass_s: list[float] = field(default_factory=list)

    @property
    def ratio(self) -> float:
        """The median over rounds."""
        return median(whole / passes for whole, passes in zip(self.round_s, self.pass_s, strict=True))

    def to_dict(self) -> dict[str, float]:
        overhead_s = [whole - passes for whole, passes in zip(self.round_s, self.pass_s, strict=True)]
        return {
            "num_rounds": len(self.round_s),
            "round_ms": 1e3 * median(self.round_s),
            "passes_ms": 1e3 * median(self.pass_s),
            "overhead_ms": 1e3 * median(overhead_s),
            "ratio": self.ratio,
        }


@contextmanager
def clocked(engine: Engine, read: Callable[[], float]) -> Iterator[PassClock]:
    """Time the model passes of an engine while the context is open."""
    clock = PassClock(engine.target.info.device, read)
    owners: list[tuple[Any, str]] = [(engine.target, "forward")]
    drafter = engine.drafter
    if isinstance(drafter, BlockDrafter):
        owners.append((drafter.runner, "predict"))  # extends the context too
        for head in (getattr(drafter, name, None) for name in ("_markov", "_confidence", "_packed_walk")):
            owners += [(head, name) for name in HEADS if hasattr(head, name)]
    for owner, name in owners:
        setattr(owner, name, clock.timed(getattr(owner, name)))
    try:
        yield clock
    finally:
        for owner, name in owners:
            delattr(owner, name)


def measure(engine: Engine, requests: list[Request], read: Callable[[], float]) -> Rounds:
    """Serve the requests one by one and time their rounds."""
    engine.run([requests[0]])
    rounds = Rounds()
    for request in requests:
        with clocked(engine, read) as clock:
            sequence = engine.submit(request)
            engine.step()
            while not sequence.is_finished:
                clock.seconds = 0.0
                started = clock.now()
                engine.step()
                sequence.take_chunk()
                rounds.round_s.append(clock.now() - started)
                rounds.pass_s.append(clock.seconds)
    return rounds


def drafters(loaded: LoadedModel, args: argparse.Namespace, folder: Path) -> Iterator[tuple[str, Drafter | None]]:
    target, tokenizer = loaded.target, loaded.tokenizer
    yield "none", None
    yield "ngram-simple", build_drafter(DEFAULT_SPEC, target, tokenizer)
    small = SpecConfig(types=("ngram-mod",), ngram_mod=NgramMod(n_match=3, n_min=1, n_max=16))
    yield "ngram-mod", build_drafter(small, target, tokenizer)
    for method in ("dflash", "dspark"):
        shape = RandomDrafter(method=method, num_layers=args.draft_layers, block_size=args.block_size)
        path = write_random_drafter(folder / method, target.info, shape)
        spec = SpecConfig(types=(f"draft-{method}",), draft_model=str(path))
        yield f"draft-{method}", build_drafter(spec, target, tokenizer)


def main() -> int:
    parser = make_parser(__doc__, num_prompts=4, max_tokens=64)
    parser.add_argument("--draft-layers", type=int, default=2)
    parser.add_argument("--block-size", type=int, default=8)
    parser.add_argument(
        "--cpu-time", action="store_true", help="count seconds of CPU instead of wall-clock, on a machine that is busy"
    )
    parser.add_argument("--only", help="only the drafters whose name contains this")
    args = parser.parse_args()
    idle = idle_check()
    loaded = load(args)
    results: dict[str, dict[str, dict[str, float]]] = {"greedy": {}, "sampled": {}}
    with TemporaryDirectory() as folder:
        for name, drafter in drafters(loaded, args, Path(folder)):
            if args.only and args.only not in name:
                continue
            engine = Engine(loaded.target, loaded.tokenizer, drafter)
            for kind, sampling in (("greedy", SamplingParams()), ("sampled", SAMPLED)):
                requests = [
                    first_turn(engine, workload, max_tokens=args.max_tokens, sampling=sampling, ignore_eos=True)
                    for workload in workloads(args)
                ]
                results[kind][name] = measure(
                    engine, requests, process_time if args.cpu_time else perf_counter
                ).to_dict()
    columns = ("num_rounds", "round_ms", "passes_ms", "overhead_ms", "ratio")
    print_table(
        f"A round and its model passes (limit for greedy rounds: ratio {LIMIT})",
        ("request, drafter", "rounds", "round ms", "passes ms", "outside ms", "ratio"),
        [
            (f"{kind}, {name}", *(row[column] for column in columns))
            for kind, by_name in results.items()
            for name, row in by_name.items()
        ],
    )
    emit("engine_overhead", args, idle, {**results, "limit": LIMIT})
    return int(any(row["ratio"] > LIMIT for row in results["greedy"].values()))


if __name__ == "__main__":
    sys.exit(main())
