"""What `blockdraft bench` prints of a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich import box
from rich.table import Table
from rich.text import Text

from blockdraft.bench.speed.records import drafting_of
from blockdraft.cli.terminal import stdout_console

if TYPE_CHECKING:
    from blockdraft.bench.speed.caveats import Caveat
    from blockdraft.bench.speed.diff import Difference
    from blockdraft.bench.speed.records import Run
    from blockdraft.bench.speed.statistics import Ratio, Spread
    from blockdraft.bench.speed.summary import CellFigures, SideFigures, Summary

_MOST_SETTINGS = 12


def show_run(run: Run, summary: Summary, caveats: Sequence[Caveat]) -> None:
    """Print figures, crossovers and caveats."""
    out = stdout_console()
    for side in run.sides:
        drafts = f"; drafts: {how}" if (how := drafting_of(side)) else ""
        out.print(
            f"{side.role}: {side.engine or 'unknown engine'}, {side.model_name} ({side.where}){drafts}", markup=False
        )
    out.print(_speeds(run, summary))
    if any(figures.drafts for cell in summary.cells for figures in cell.sides.values()):
        out.print(_drafts(summary))
    for condition in summary.conditions:
        if condition.decode_ratio:
            ratio = condition.decode_ratio
            out.print(
                f"depth {condition.depth:,}, {condition.concurrency} at once: {ratio} times as fast as the baseline "
                f"after the first token, {_ratio(condition.request_ratio)} with it  "
                f"({ratio.num_prompts} prompts, {ratio.num_pairs} pairs)"
            )
    for cross in summary.crossovers:
        where = "never" if cross.first_below is None else f"from {cross.first_below:,} on"
        clear = "" if cross.first_clearly_below is None else f", clearly from {cross.first_clearly_below:,} on"
        other = "depth" if cross.axis == "concurrency" else "concurrency"
        out.print(f"slower than the baseline by {cross.axis}, at {other} {cross.fixed:,}: {where}{clear}")
    if run.energy_source is None:
        out.print("energy: not reported")
    for caveat in caveats:
        out.print(Text(f"{caveat.severity}: {caveat.text}", style="dim" if caveat.severity == "note" else ""))


def show_difference(difference: Difference) -> None:
    """Print what two runs do not have in common."""
    out = stdout_console()
    out.print()
    if difference.settings:
        table = plain_table("rigs and settings that differ", ["", "before", "after"])
        for setting in difference.settings[:_MOST_SETTINGS]:
            values = ("-" if one is None else str(one) for one in (setting.before, setting.after))
            table.add_row(setting.name, *values)
        out.print(table)
    else:
        out.print("rigs and settings are the same")
    if len(difference.settings) > _MOST_SETTINGS:
        out.print(f"and {len(difference.settings) - _MOST_SETTINGS} more; --json lists all")
    table = plain_table("figures", ["cell", "figure", "before", "after", "factor", ""])
    for change in difference.changes:
        clear = {True: "clear", False: "within the intervals", None: ""}[change.is_clear]
        factor = "-" if change.factor is None else f"{change.factor:.2f}"
        table.add_row(str(change.cell), change.figure, f"{change.before:.2f}", f"{change.after:.2f}", factor, clear)
    out.print(table)
    for name, cells in (("the first", difference.only_before), ("the second", difference.only_after)):
        if cells:
            out.print(f"only in {name} run: {'; '.join(map(str, cells))}")


def _speeds(run: Run, summary: Summary) -> Table:
    columns = ["prompts", "depth", "at once", "tok/s", "in all", "first token, ms"]
    title = "speeds: median (half of the answers)"
    if run.has_baseline:
        title += "; baseline, then the side in question"
        columns = [*columns[:3], "plain tok/s", "tok/s", "times as fast", "in all", "first token, ms"]
    if run.energy_source:
        columns.append("J/token")
    table = plain_table(title, columns)
    for cell in summary.cells:
        table.add_row(*_speed_row(run, cell))
    return table


def _speed_row(run: Run, cell: CellFigures) -> list[str]:
    base, own = cell.sides.get("baseline"), cell.sides.get("speculative")
    row = [cell.cell.category, f"{cell.cell.depth:,}", str(cell.cell.concurrency)]
    if run.has_baseline:
        row += [_spread(side.request_tokens_per_second if side else None) for side in (base, own)]
        row += [_ratio(cell.decode_ratio), _both(base, own, "total_tokens_per_second"), _both(base, own, "ttft_ms")]
    else:
        kinds = (own.request_tokens_per_second, own.total_tokens_per_second, own.ttft_ms) if own else (None,) * 3
        row += [_spread(one) for one in kinds]
    if run.energy_source:
        energies = [side.joules_per_token if side else None for side in ((base, own) if run.has_baseline else (own,))]
        row.append(" / ".join("-" if one is None else f"{one:.2f}" for one in energies))
    return row


def _drafts(summary: Summary) -> Table:
    columns = [
        "prompts",
        "depth",
        "at once",
        "tokens/round",
        "with a draft",
        "accepted",
        "of drafted",
        "kept at slot 1, 2, ... if reached",
    ]
    table = plain_table("drafts", columns)
    for cell in summary.cells:
        figures = cell.sides.get("speculative")
        drafts = figures.drafts if figures else None
        if drafts is None:
            continue
        slots = " ".join(f"{share:.2f}" for share in drafts.conditional_acceptance[:8])
        length, rate = figures.mean_acceptance_length if figures else None, drafts.acceptance_rate
        with_draft = drafts.drafted_round_length
        table.add_row(
            cell.cell.category,
            f"{cell.cell.depth:,}",
            str(cell.cell.concurrency),
            "-" if length is None else f"{length:.2f}",
            "-" if with_draft is None else f"{with_draft:.2f}",
            "-" if rate is None else f"{rate:.0%}",
            "-" if drafts.num_drafted is None else str(drafts.num_drafted),
            slots + ("" if drafts.is_conditional_exact or not slots else " (at least)"),
        )
    return table


def _spread(spread: Spread | None) -> str:
    if spread is None:
        return "-"
    digits = 0 if spread.median >= 100 else 1
    return f"{spread.median:.{digits}f} ({spread.low:.{digits}f} to {spread.high:.{digits}f})"


def _both(base: SideFigures | None, own: SideFigures | None, name: str) -> str:
    spreads = [getattr(side, name) if side else None for side in (base, own)]
    return " / ".join("-" if one is None else f"{one.median:.0f}" for one in spreads)


def _ratio(ratio: Ratio | None) -> str:
    return "-" if ratio is None else str(ratio)


def plain_table(title: str, columns: Sequence[str]) -> Table:
    """Return an empty table; all columns but the first are of numbers."""
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for index, column in enumerate(columns):
        table.add_column(column, justify="right" if index else "left")
    return table
