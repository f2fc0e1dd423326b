"""A picture of what `tune` found: what rows cost, and how fast each draft length is.

Needs matplotlib, which the extra `plots` installs.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from blockdraft.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from blockdraft.bench.tune import Tuning


def check_plots() -> None:
    """Check that pictures can be made here.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    try:
        import matplotlib  # noqa: F401, PLC0415 - an extra
    except ImportError as error:
        raise ConfigError("a plot needs matplotlib: pip install 'blockdraft[plots]', or leave the plot out") from error


def plot_tuning(tuning: Tuning, path: Path) -> None:
    """Draw both halves and save them.

    Raises:
        ConfigError: matplotlib is not installed, or the file cannot be written.
    """
    check_plots()
    from matplotlib.figure import Figure  # noqa: PLC0415 - an extra

    figure = Figure(figsize=(9.5, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    _draw_costs(left, tuning)
    _draw_speeds(right, tuning)
    try:
        figure.savefig(path, dpi=130)
    except (OSError, ValueError) as error:
        raise ConfigError(f"the plot {path} cannot be written: {error}") from error


def _draw_costs(axes: Axes, tuning: Tuning) -> None:
    costs = tuning.costs
    for depth in costs.depths:
        milliseconds = [1000 * costs.target(size, depth) for size in costs.num_rows]
        axes.plot(costs.num_rows, milliseconds, "o-", label=f"behind {depth:,} tokens")
    axes.set(xlabel="rows of a pass", ylabel="milliseconds", title="What a pass of the target costs")
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False)
    axes.grid(alpha=0.3)


def _draw_speeds(axes: Axes, tuning: Tuning) -> None:
    colours = {name: f"C{index}" for index, name in enumerate(tuning.acceptance)}
    for name, colour in colours.items():
        points = sorted(
            (one.candidate.num_tokens, one.ratio) for one in tuning.predicted if one.candidate.method == name
        )
        axes.plot(*zip(*points, strict=True), "o-", color=colour, markersize=3, label=f"{name}, predicted")
    for one in tuning.checked:
        candidate = one.candidate
        if candidate.num_tokens:
            axes.plot(candidate.num_tokens, one.ratio, "D", color=colours[candidate.method], markersize=8)
        else:
            axes.axhline(one.ratio, color="0.3", linestyle="--", label=f"{candidate}, measured")
    axes.plot([], [], "D", color="0.5", label="measured")
    axes.axhline(1, color="0.6", linewidth=1)
    axes.set(xlabel="draft tokens", ylabel="times as fast as plain decoding", title="What drafting brings")
    axes.legend(frameon=False, fontsize=8)
    axes.grid(alpha=0.3)
