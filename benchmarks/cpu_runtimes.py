"""The native core beside general runtimes: a pass of the default model at 1 to 32 rows.

    python benchmarks/cpu_runtimes.py --peers-python PATH [--runtimes NAME ...]

Of the others only the matrix products are timed, see `products_in_a_runtime.py`; the native core runs its whole pass
behind 128 tokens. Each runtime has a process of its own, in the Python of `--peers-python`, where it is installed
(`pip install onnx onnxruntime openvino torch`). They run one after another, all numbers of rows of one in turns. Cold
start is from the program's beginning to the first result: imports, making weights, compilation. One that is not
installed or fails is listed with its reason.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median, quantiles

from blockdraft.models.base import Segment
from blockdraft.models.packed_decoder import PackedDecoder
from common import emit, idle_check, load, make_parser, print_table, say
from products_in_a_runtime import RUNTIMES

ROWS = (1, 2, 4, 8, 16, 32)
DEPTH = 128
NATIVE = "native, whole pass"
WARM_UPS = 3


@dataclass(frozen=True, kw_only=True)
class Timed:
    """What one runtime took."""

    seconds: dict[int, list[float]]
    """Of each call, by the number of rows."""
    cold_s: float | None = None
    peak_bytes: int | None = None
    version: str | None = None

    def median_s(self, rows: int) -> float:
        return median(self.seconds[rows])

    def cells(self) -> list[str]:
        """Return the table's cells: median and middle half by rows, cold start, peak of memory."""
        found = []
        for rows in ROWS:
            low, middle, high = quantiles(self.seconds[rows], n=4)
            found.append(f"{1000 * middle:.1f} ({1000 * low:.1f} to {1000 * high:.1f})")
        cold = "-" if self.cold_s is None else f"{self.cold_s:.1f}"
        peak = "-" if self.peak_bytes is None else f"{self.peak_bytes / (1 << 20):.0f}"
        return [*found, cold, peak]


def native(target: PackedDecoder, repeats: int) -> Timed:
    """Time whole passes of the native core, all numbers of rows in turns."""
    cache = target.new_cache(DEPTH + max(ROWS))
    target.forward([Segment(token_ids=[1] * DEPTH, cache=cache, num_logits=1)])
    seconds: dict[int, list[float]] = {rows: [] for rows in ROWS}
    for repeat in range(WARM_UPS + repeats):
        for rows in ROWS:
            start = time.perf_counter()
            target.forward([Segment(token_ids=[1] * rows, cache=cache, num_logits=rows)])
            if repeat >= WARM_UPS:
                seconds[rows].append(time.perf_counter() - start)
            cache.rollback(DEPTH)
    return Timed(seconds=seconds)


def peer(python: Path, name: str, target: PackedDecoder, repeats: int) -> Timed | str:
    """Run one runtime in its own process; return why it failed, if it did."""
    config = target.config
    asked = {
        "runtime": name,
        "layers": config.num_layers,
        "widths": {
            "hidden": config.hidden_size,
            "keys": config.num_kv_heads * config.head_dim,
            "mlp": config.intermediate_size,
            "vocab": config.vocab_size,
        },
        "rows": ROWS,
        "repeats": repeats,
        "threads": target.core.num_threads,
    }
    program = Path(__file__).with_name("products_in_a_runtime.py")
    done = subprocess.run([python, program], input=json.dumps(asked), capture_output=True, text=True, check=False)
    if done.returncode:
        return (done.stderr.strip() or f"exit code {done.returncode}").splitlines()[-1]
    found = json.loads(done.stdout.splitlines()[-1])
    return Timed(**{**found, "seconds": {int(rows): times for rows, times in found["seconds"].items()}})


def main() -> int:
    parser = make_parser(__doc__, num_prompts=0, max_tokens=0)
    parser.add_argument("--peers-python", type=Path, required=True, help="where the other runtimes are installed")
    parser.add_argument("--runtimes", nargs="+", choices=RUNTIMES, default=list(RUNTIMES))
    parser.add_argument("--repeats", type=int, default=40)
    parser.set_defaults(runtime="native")
    args = parser.parse_args()
    idle = idle_check()
    target = load(args).target
    assert isinstance(target, PackedDecoder), "the native runtime was asked for"
    args.threads = target.core.num_threads
    timed, failed = {NATIVE: native(target, args.repeats)}, {}
    for name in args.runtimes:
        found = peer(args.peers_python, name, target, args.repeats)
        if isinstance(found, str):
            say(f"{name}: {found}")
            failed[name] = found
        else:
            timed[name] = found
    heads = [f"{rows} rows" for rows in ROWS]
    print_table(
        f"milliseconds, {args.threads} threads: median (middle half)",
        ["runtime", *heads, "cold start, s", "peak, MiB"],
        [[name, *one.cells()] for name, one in timed.items()],
    )
    ratios = {
        name: {rows: one.median_s(rows) / timed[NATIVE].median_s(rows) for rows in ROWS} for name, one in timed.items()
    }
    table = [[name, *(f"{ratio:.2f}" for ratio in by_rows.values())] for name, by_rows in ratios.items()]
    print_table("time by that of the native whole pass", ["runtime", *heads], table)
    results = {"depth": DEPTH, "timed": {name: asdict(one) for name, one in timed.items()}}
    emit("cpu_runtimes", args, idle, {**results, "ratios": ratios, "failed": failed})
    return 0


if __name__ == "__main__":
    sys.exit(main())
