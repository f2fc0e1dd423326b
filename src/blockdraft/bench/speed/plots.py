"""The pictures of a report: SVG whose colours are those of the page, light or dark.

Needs matplotlib, which the extra `plots` installs.
"""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from blockdraft.bench.speed.drafts import DraftCounts
from blockdraft.bench.speed.records import Role, Run
from blockdraft.bench.speed.statistics import Ratio, Spread
from blockdraft.bench.speed.summary import WINDOW_TOKENS, Crossover, Summary, speed_inside_answers
from blockdraft.bench.speed.summary import Axis as Direction

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_INK, _MUTED, _GRID, _BASE, _OWN = "#010101", "#020202", "#030303", "#040404", "#050505"
_VARIABLES = {_INK: "ink", _MUTED: "muted", _GRID: "grid", _BASE: "base", _OWN: "own"}
"""Stand-ins that matplotlib takes for colours, and the variables of the page that replace them."""

_SERIES = ("#060601", "#060602", "#060603", "#060604", "#060605", "#060606", "#060607", "#060608")
_VARIABLES |= {colour: f"series-{number}" for number, colour in enumerate(_SERIES, 1)}

_DASHES = ("-", "--", ":")

_WIDTH, _NARROW = 7.2, 3.8
"""Inches of a picture for a window, and of the same for a telephone, where letters have to stay legible."""
_ROW = 0.34
_MOST_SLOTS, _FEWEST_DRAFTS = 16, 5


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A picture and what it shows."""

    title: str
    caption: str
    svg: str
    narrow_svg: str
    """The same for narrow screens."""


def draw(run: Run, summary: Summary) -> list[Picture]:
    """Return the pictures that the run has figures for."""
    return [
        *_ratios(summary),
        *_speeds(run, summary),
        *_crossovers(summary),
        *_acceptance(summary),
        *_inside_answers(run),
    ]


def _ratios(summary: Summary) -> list[Picture]:
    if not summary.conditions:
        return []
    first = summary.conditions[0]
    rows: list[tuple[str, Ratio]] = [
        (cell.cell.category, cell.decode_ratio)
        for cell in summary.cells
        if cell.decode_ratio and (cell.cell.depth, cell.cell.concurrency) == (first.depth, first.concurrency)
    ]
    if not rows:
        return []
    if first.decode_ratio and len(rows) > 1:
        rows.append(("all", first.decode_ratio))
    figure, axes = _axes(height=0.9 + _ROW * len(rows))
    axes.axvline(1, color=_BASE, linewidth=1.4)
    for place, (name, ratio) in enumerate(reversed(rows)):
        colour = _INK if name == "all" else _OWN
        if ratio.low is not None and ratio.high is not None:
            axes.plot([ratio.low, ratio.high], [place, place], color=colour, linewidth=2, solid_capstyle="butt")
        axes.plot(ratio.value, place, "o", color=colour, markersize=6)
        axes.annotate(
            f"{ratio.value:.2f}",
            (ratio.value, place),
            xytext=(0, 6),
            textcoords="offset points",
            ha="center",
            fontsize=8,
            color=_INK,
        )
    axes.set_yticks(range(len(rows)), [name for name, _ in reversed(rows)])
    axes.set_ylim(-0.6, len(rows) - 0.2)
    axes.set_xlabel("times as fast as the baseline")
    axes.grid(axis="x", color=_GRID, linewidth=0.6)
    return [
        Picture(
            title="What drafting brings, by kind of prompt",
            caption="Median of pairs, after the first token, with its 95 % interval; the line is the baseline. "
            f"{_where(first.depth)}, "
            f"{first.concurrency} at once.",
            **_svgs(figure, "ratios"),
        )
    ]


def _speeds(run: Run, summary: Summary) -> list[Picture]:
    if not summary.conditions:
        return []
    first = summary.conditions[0]
    cells = [c for c in summary.cells if (c.cell.depth, c.cell.concurrency) == (first.depth, first.concurrency)]
    names = [cell.cell.category for cell in reversed(cells)]
    figure, axes = _axes(height=1.1 + _ROW * len(cells))
    sides: list[tuple[Role, str, str, float]] = [("speculative", "with drafts", _OWN, -0.12)]
    if run.has_baseline:
        sides.append(("baseline", "baseline", _BASE, 0.12))
    for role, label, colour, shift in sides:
        spreads: list[Spread | None] = [
            figures.request_tokens_per_second if (figures := cell.sides.get(role)) else None for cell in reversed(cells)
        ]
        known = [(place + shift, one) for place, one in enumerate(spreads) if one]
        for place, one in known:
            axes.plot([one.low, one.high], [place, place], color=colour, linewidth=2, solid_capstyle="butt")
        axes.plot([one.median for _, one in known], [p for p, _ in known], "o", color=colour, markersize=5, label=label)
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(-0.6, len(names) - 0.4)
    axes.set_xlim(left=0)
    axes.set_xlabel("tokens per second of one answer")
    axes.grid(axis="x", color=_GRID, linewidth=0.6)
    if run.has_baseline:
        _legend(axes)
    return [
        Picture(
            title="Speeds",
            caption="Medians, after the first token; half of the answers lie within the bars. "
            f"{_where(first.depth)}, "
            f"{first.concurrency} at once.",
            **_svgs(figure, "speeds"),
        )
    ]


def _crossovers(summary: Summary) -> list[Picture]:
    directions: tuple[Direction, ...] = ("concurrency", "depth")
    by_axis = {axis: [cross for cross in summary.crossovers if cross.axis == axis] for axis in directions}
    return [_crossover(axis, crosses) for axis, crosses in by_axis.items() if crosses]


def _crossover(axis: Direction, crosses: Sequence[Crossover]) -> Picture:
    figure, axes = _axes(height=3.2)
    values = sorted({value for cross in crosses for value, _ in cross.points})
    axes.axhline(1, color=_BASE, linewidth=1.4)
    for number, cross in enumerate(crosses):
        colour, dashes = _line(number)
        # Intervals of several lines stand beside each other.
        places = [values.index(value) + 0.06 * (number - (len(crosses) - 1) / 2) for value, _ in cross.points]
        for place, (_, ratio) in zip(places, cross.points, strict=True):
            if ratio.low is not None and ratio.high is not None:
                axes.plot([place, place], [ratio.low, ratio.high], color=colour, linewidth=2, solid_capstyle="butt")
        label = _where(cross.fixed) if axis == "concurrency" else f"{cross.fixed} at once"
        axes.plot(
            places, [one.value for _, one in cross.points], "o", ls=dashes, color=colour, linewidth=1, label=label
        )
    axes.set_xticks(range(len(values)), [f"{value:,}" for value in values])
    axes.set_xlim(-0.4, len(values) - 0.6)
    what = "conversations at once" if axis == "concurrency" else "tokens in front of the conversation"
    axes.set(xlabel=what, ylabel="times as fast as the baseline")
    axes.grid(axis="y", color=_GRID, linewidth=0.6)
    _legend(axes)
    return Picture(
        title=f"How the gain changes with {'load' if axis == 'concurrency' else 'depth'}",
        caption=f"All kinds of prompts, 95 % intervals; the line is the baseline. {' '.join(map(_found, crosses))}",
        **_svgs(figure, axis),
    )


def _found(cross: Crossover) -> str:
    """Say where one line falls under the baseline."""
    fixed = _where(cross.fixed) if cross.axis == "concurrency" else f"{cross.fixed} at once"
    if cross.first_below is None:
        return f"{fixed}: above 1 up to {cross.points[-1][0]:,}."
    is_clear = cross.first_clearly_below == cross.first_below
    return f"{fixed}: under 1 from {cross.first_below:,} on, {'' if is_clear else 'not '}with its whole interval."


def _acceptance(summary: Summary) -> list[Picture]:
    by_category: dict[str, list[DraftCounts | None]] = {}
    for cell in summary.cells:
        if figures := cell.sides.get("speculative"):
            by_category.setdefault(cell.cell.category, []).append(figures.drafts)
    merged = {name: one for name, parts in by_category.items() if (one := DraftCounts.merge(parts))}
    curves = {name: shares for name, one in merged.items() if (shares := _shares(one))}
    if not curves:
        return []
    figure, axes = _axes(height=3.0)
    for number, (name, shares) in enumerate(curves.items()):
        colour, dashes = _line(number)
        axes.plot(range(1, len(shares) + 1), shares, "o", ls=dashes, color=colour, ms=3.5, linewidth=1.2, label=name)
    axes.set(xlabel="place in the draft", ylabel="share kept, if all before were", ylim=(0, 1.02))
    axes.set_xticks(range(1, 1 + max(map(len, curves.values()))))
    axes.grid(color=_GRID, linewidth=0.6)
    _legend(axes)
    exact = all(merged[name].is_conditional_exact for name in curves)
    limit = "" if exact else " The engine does not tell how long drafts were, so later places are lower bounds."
    return [
        Picture(
            title="What the target keeps",
            caption="Share of the drafts that reached a place and kept it, over all conditions; places that fewer than "
            f"{_FEWEST_DRAFTS} drafts reached are left out.{limit}",
            **_svgs(figure, "acceptance"),
        )
    ]


def _shares(drafts: DraftCounts) -> list[float]:
    """Return what is kept at each place that enough drafts reached."""
    before = drafts.reached_at or (drafts.num_rounds or 0, *drafts.accepted_at[:-1])
    known = zip(drafts.conditional_acceptance[:_MOST_SLOTS], before, strict=False)
    return [share for share, num_drafts in known if num_drafts >= _FEWEST_DRAFTS]


def _inside_answers(run: Run) -> list[Picture]:
    lowest = min((one.cell.concurrency for one in run.passes), default=1)
    points = speed_inside_answers([one for one in run.passes if one.cell.concurrency == lowest])
    if len(points) < 2:
        return []
    figure, axes = _axes(height=2.4)
    axes.axhline(1, color=_BASE, linewidth=1.4)
    axes.plot([start for start, _ in points], [ratio for _, ratio in points], "o-", color=_OWN, markersize=5)
    axes.set(
        xlabel=f"place in the answer, in tokens (stretches of {WINDOW_TOKENS})", ylabel="times as fast as baseline"
    )
    axes.set_ylim(0, 1.1 * max(1, *(ratio for _, ratio in points)))
    axes.grid(axis="y", color=_GRID, linewidth=0.6)
    return [
        Picture(
            title="Speed inside answers",
            caption=f"Median ratios, {lowest} at once. A fall means that drafts stop being kept inside long answers.",
            **_svgs(figure, "inside"),
        )
    ]


def _axes(height: float) -> tuple[Figure, Axes]:
    from matplotlib.figure import Figure  # noqa: PLC0415 - an extra

    figure = Figure(figsize=(_WIDTH, height), layout="constrained")
    axes: Axes = figure.subplots()
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("bottom", "left"):
        axes.spines[side].set_color(_GRID)
    axes.tick_params(colors=_MUTED, labelcolor=_INK, labelsize=9, length=3)
    axes.xaxis.label.set(color=_MUTED, size=9)
    axes.yaxis.label.set(color=_MUTED, size=9)
    return figure, axes


def _line(number: int) -> tuple[str, str]:
    """Return colour and dashes of a line; colours come again with other dashes."""
    again, place = divmod(number, len(_SERIES))
    return _SERIES[place], _DASHES[again % len(_DASHES)]


def _legend(axes: Axes) -> None:
    """Put the names above the picture, in columns that a narrow one has room for."""
    longest = max(len(label) for label in axes.get_legend_handles_labels()[1])
    axes.legend(
        frameon=False,
        fontsize=8,
        labelcolor=_INK,
        ncols=3 if longest <= 10 else 2 if longest <= 20 else 1,
        loc="lower right",
        bbox_to_anchor=(1, 1),
        borderaxespad=0.1,
    )


def _svgs(figure: Figure, name: str) -> dict[str, str]:
    """Return both sizes of a picture."""
    wide = _svg(figure, name)
    figure.set_size_inches(_NARROW, figure.get_figheight())
    return {"svg": wide, "narrow_svg": _svg(figure, f"{name}-narrow")}


def _svg(figure: Figure, name: str) -> str:
    """Return a picture to put into a page: its colours are variables, its text is text, its names are its own."""
    from matplotlib import rc_context  # noqa: PLC0415 - an extra

    buffer = io.StringIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": name, "font.family": "sans-serif"}):
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    for colour, variable in _VARIABLES.items():
        text = text.replace(colour, f"var(--{variable})")
    # Elements are named alike in every picture of matplotlib, and a page must have each name once.
    text = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{name}-", text)
    return re.sub(r"font:\s*([\d.]+)px[^;\"]*", r"font-size: \1px", text)


def _where(depth: int) -> str:
    return f"Behind {depth:,} tokens" if depth else "No prefix"
