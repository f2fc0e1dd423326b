"""What does a pass of the target cost by rows and by depth, and how far is that from what the machine can do?

Passes of 1 to 64 rows behind 128 to 8,000 tokens, beside two lower bounds: the weights and the cache read once at the
measured speed of memory, and the multiplications at the measured speed of the target's own products.
"""

from __future__ import annotations

import sys
from pathlib import Path
from statistics import median
from time import perf_counter

import numpy as np
import torch

from blockdraft.engine.pass_costs import PassCosts, measure_pass_costs
from blockdraft.models.base import Target
from blockdraft.models.packed_decoder import PackedDecoder
from common import emit, idle_check, load, make_parser, print_table, say

NUM_BYTES = 512 << 20


def read_bytes_per_second(num_threads: int) -> float:
    """Measure how fast memory is read: sums over half a gigabyte."""
    numbers = torch.ones(NUM_BYTES // 4)
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        seconds = []
        for _ in range(5):
            started = perf_counter()
            numbers.sum()
            seconds.append(perf_counter() - started)
    finally:
        torch.set_num_threads(before)
    return NUM_BYTES / min(seconds)


def multiplications_per_second(target: PackedDecoder) -> float:
    """Measure the kernels where memory does not count: 48 rows with one matrix, again and again."""
    matrix = target.network.layers[0].gate_up
    rows = np.random.default_rng(0).normal(size=(48, matrix.num_cols)).astype(np.float32)
    seconds = []
    for _ in range(200):
        started = perf_counter()
        target.core.product(matrix, rows)
        seconds.append(perf_counter() - started)
    return 48 * matrix.padded_rows * matrix.num_cols / median(seconds)


def bounds(target: Target, num_rows: int, depth: int, bytes_per_second: float, products_per_second: float) -> float:
    """Return the seconds that a pass takes at least."""
    info = target.info
    assert isinstance(target, PackedDecoder)
    cache = target.new_cache(64)
    cache_bytes = cache.num_bytes / cache.capacity * depth
    # Attention multiplies each row with keys and values of all heads; they are half as wide as they are stored.
    attention = num_rows * depth * 2 * target.network.num_heads * target.network.head_dim * info.num_layers
    return max(
        (info.weight_bytes + cache_bytes) / bytes_per_second,
        (num_rows * info.num_parameters + attention) / products_per_second,
    )


def plot(costs: PassCosts, floors: dict[tuple[int, int], float], path: Path) -> None:
    """Draw the curves, each with its lower bound."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - only for the picture

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.add_subplot()
    for index, depth in enumerate(costs.depths):
        colour = f"C{index}"
        axes.plot(
            costs.num_rows,
            [1000 * costs.target(size, depth) for size in costs.num_rows],
            "o-",
            color=colour,
            label=f"behind {depth:,} tokens",
        )
        axes.plot(
            costs.num_rows, [1000 * floors[size, depth] for size in costs.num_rows], ":", color=colour, linewidth=1
        )
    axes.set(xscale="log", yscale="log", xlabel="rows of the pass", ylabel="milliseconds")
    axes.set_xticks(costs.num_rows, [str(size) for size in costs.num_rows])
    ticks = [2, 5, 10, 20, 50, 100, 200, 500]
    axes.set_yticks(ticks, [str(tick) for tick in ticks])
    axes.minorticks_off()
    axes.set_title("A pass of the target (dotted: what memory and arithmetic allow)", fontsize=10)
    axes.legend(frameon=False)
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=130)


def main() -> int:
    parser = make_parser(__doc__, num_prompts=0, max_tokens=0)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64])
    parser.add_argument("--depths", type=int, nargs="+", default=[128, 512, 2048, 8000])
    parser.add_argument(
        "--repeats", type=int, default=9, help="sweeps over all sizes, of which the lower quartile counts"
    )
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the curves")
    parser.set_defaults(runtime="native")
    args = parser.parse_args()
    idle = idle_check()
    target = load(args).target
    if not isinstance(target, PackedDecoder):
        say("the bounds are those of the native kernels; use --runtime native")
        return 1
    costs = measure_pass_costs(target, num_rows=args.rows, depths=args.depths, num_repeats=args.repeats)
    bytes_per_second = read_bytes_per_second(target.core.num_threads)
    products_per_second = multiplications_per_second(target)
    floors = {
        (size, depth): bounds(target, size, depth, bytes_per_second, products_per_second)
        for size in costs.num_rows
        for depth in costs.depths
    }
    print_table(
        f"milliseconds of a pass, and its lower bound ({bytes_per_second / 1e9:.1f} GB/s read, "
        f"{products_per_second / 1e9:.0f} G multiplications/s, kernels {target.core.kernels}, "
        f"{target.core.num_threads} threads)",
        ("rows", *(f"behind {depth}" for depth in costs.depths)),
        [
            (
                size,
                *(
                    f"{1000 * costs.target(size, depth):.2f} ({1000 * floors[size, depth]:.2f})"
                    for depth in costs.depths
                ),
            )
            for size in costs.num_rows
        ],
    )
    if args.plot:
        plot(costs, floors, args.plot)
    emit(
        "pass_scaling",
        args,
        idle,
        {
            "costs": costs.to_dict(),
            "lower_bounds_s": [[floors[size, depth] for size in costs.num_rows] for depth in costs.depths],
            "read_bytes_per_second": bytes_per_second,
            "multiplications_per_second": products_per_second,
            "kernels": target.core.kernels,
        },
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
