"""`blockdraft advise`: what runs of `blockdraft bench` recommend."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from blockdraft.cli.options import ARGUMENTS_KEY, SectionedCommand, debug_option, section
from blockdraft.cli.record import print_json
from blockdraft.cli.terminal import stdout_console

if TYPE_CHECKING:
    from blockdraft.bench.speed.advise import Advice, Evidence


@click.command("advise", cls=SectionedCommand)
@click.argument("runs", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@section("Output")("--json", "as_json", is_flag=True, help="Print one JSON object.")
@debug_option
def command(*, runs: tuple[Path, ...], as_json: bool) -> None:
    """Say whether to draft, and with what, from RUNS that `blockdraft bench --out` wrote.

    Several runs are ways to draft that compete: the best one is named. The evidence is listed, and where it does not
    reach; "do not speculate" is an answer like any other.

    \b
    blockdraft advise run.json
    blockdraft advise dflash.json ngram.json --json
    """  # noqa: D301 - click wants the character itself
    from blockdraft.bench.speed.advise import advise  # noqa: PLC0415 - they import numpy
    from blockdraft.bench.speed.records import read_run  # noqa: PLC0415

    advice = advise([(_name(path, runs), read_run(path)) for path in runs])
    if as_json:
        print_json({"command": click.get_current_context().meta.get(ARGUMENTS_KEY), **advice.to_dict()})
    else:
        _show(advice)


def _name(path: Path, paths: Sequence[Path]) -> str:
    """Return a short name that tells the run from the others."""
    return path.stem if [other.stem for other in paths].count(path.stem) == 1 else str(path)


def _show(advice: Advice) -> None:
    from blockdraft.cli.bench_view import plain_table  # noqa: PLC0415 - it imports rich

    out = stdout_console()
    out.print(f"recommendation: {advice.verdict}", style="bold", markup=False)
    for sentence in advice.sentences:
        out.print(sentence, markup=False)
    if advice.evidence:
        table = plain_table(
            "evidence", ["run", "prompts", "conditions", "times as fast", "pairs", "tokens/round", "verdict"]
        )
        for one in advice.evidence:
            table.add_row(*_row(one))
        out.print(table)
    for limit in advice.limits:
        out.print(f"limit: {limit}", style="dim", markup=False)


def _row(one: Evidence) -> tuple[str, ...]:
    length = "-" if one.acceptance_length is None else f"{one.acceptance_length:.2f}"
    return one.run, one.scope, one.conditions, str(one.ratio), str(one.ratio.num_pairs), length, one.verdict
