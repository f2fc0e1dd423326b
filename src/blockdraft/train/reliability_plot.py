"""A picture of a calibration: stated chance against frequency, slot by slot, before and after.

Needs matplotlib, which the extra `plots` installs.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from blockdraft.errors import ConfigError
from blockdraft.train.calibration import Reliability
from blockdraft.train.confidence import Calibration

_BEFORE, _AFTER = "#b25d00", "#00592b"
_SIZE = 2.4  # inches of one slot's picture


def check_plots() -> None:
    """Raise before anything is computed if plots cannot be drawn.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    try:
        import matplotlib  # noqa: F401, PLC0415 - an extra
    except ImportError as error:
        raise ConfigError("a plot needs matplotlib: pip install 'blockdraft[plots]', or leave the plot out") from error


def plot_reliability(calibration: Calibration, path: Path) -> Path:
    """Write a picture; the upper row shows the products up to a slot, the lower one each slot's own confidence.

    Raises:
        ConfigError: matplotlib is not installed, or the file cannot be written.
    """
    check_plots()
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415 - an extra
    from matplotlib.figure import Figure  # noqa: PLC0415

    num_slots = len(calibration.temperatures)
    figure = Figure(figsize=(_SIZE * num_slots, 2 * _SIZE + 0.6), layout="constrained")
    FigureCanvasAgg(figure)  # draws to a file without a window system
    axes = figure.subplots(2, num_slots, sharex=True, sharey=True, squeeze=False)
    for slot, (before, after) in enumerate(zip(calibration.before, calibration.after, strict=True)):
        axes[0, slot].set_title(f"slots 1 to {slot + 1}" if slot else "slot 1")
        _draw(axes[0, slot], before.cumulative, after.cumulative)
        _draw(axes[1, slot], before.conditional, after.conditional)
        axes[1, slot].set_title(f"slot {slot + 1} alone, T = {calibration.temperatures[slot]:.2f}", fontsize="small")
        axes[1, slot].set_xlabel("confidence")
    for row in axes[:, 0]:
        row.set_ylabel("share kept")
    axes[0, 0].legend(loc="upper left", fontsize="x-small")
    try:
        figure.savefig(path, dpi=120)
    except (OSError, ValueError) as error:
        raise ConfigError(f"the plot cannot be written to {path} ({error}); name another .png file") from error
    return path


def _draw(axis: Any, before: Reliability, after: Reliability) -> None:
    axis.plot([0, 1], [0, 1], color="#808080", linewidth=0.8, linestyle=":")
    for label, colour, found in (("before", _BEFORE, before), ("after", _AFTER, after)):
        confidence, kept, counts = zip(*found.bins, strict=True)
        axis.plot(confidence, kept, color=colour, linewidth=1, label=f"{label}, ECE {100 * found.ece:.1f} %")
        axis.scatter(confidence, kept, s=_areas(counts), color=colour, linewidths=0)
    axis.set(xlim=(0, 1), ylim=(0, 1), aspect="equal")


def _areas(counts: Sequence[int]) -> list[float]:
    """Dots grow with the share of rounds in their bin."""
    return [3 + 60 * count / sum(counts) for count in counts]
