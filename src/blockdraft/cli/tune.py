"""`blockdraft tune`: what to draft with on this machine, and whether to draft at all."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich import box
from rich.table import Table

from blockdraft.cli.loading import check_speculation, load_engine, model_reference
from blockdraft.cli.model_options import ModelOptions, model_options, runtime_option
from blockdraft.cli.options import ARGUMENTS_KEY, SectionedCommand, debug_option, section
from blockdraft.cli.record import print_json
from blockdraft.cli.speculation_options import SpeculationOptions, speculation_options
from blockdraft.cli.terminal import note, stdout_console, working

if TYPE_CHECKING:
    from blockdraft.bench.tune import Tuning
    from blockdraft.engine import Engine
    from blockdraft.models.load import Runtime

_effort = section("Effort")
_output = section("Output")


@click.command("tune", cls=SectionedCommand)
@model_options
@runtime_option
@speculation_options
@_effort(
    "--prompts",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    multiple=True,
    help="JSON Lines with `id`, `category` and `turns`; may be repeated.  [default: blockdraft's own]",
)
@_effort("--num-prompts", type=click.IntRange(min=1), default=12, show_default=True, help="How many in all.")
@_effort("--max-tokens", type=click.IntRange(min=8), default=96, show_default=True, help="Of each answer.")
@_effort("--finalists", type=click.IntRange(min=1), default=3, show_default=True, help="Settings to check for real.")
@_effort("--repeats", type=click.IntRange(min=1), default=2, show_default=True, help="Turns of each prompt.")
@_output("--plot", metavar="PNG", type=click.Path(dir_okay=False, path_type=Path), help="Draw costs and predictions.")
@_output("--json", "as_json", is_flag=True, help="Print one JSON object.")
@debug_option
def command(
    *,
    model: ModelOptions,
    runtime: Runtime,
    speculation: SpeculationOptions,
    prompts: tuple[Path, ...],
    num_prompts: int,
    max_tokens: int,
    finalists: int,
    repeats: int,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Measure what passes cost and drafts keep here, and say what to use.

    Passes of the target are timed by rows and depth, and kept for the adaptive policy, which default drafters use.
    Each kind of drafter answers the prompts once. From both the speed of every draft length is predicted; the best few
    and the adaptive policy are then checked against plain decoding, in turns. Leave the machine alone meanwhile.

    \b
    blockdraft tune
    blockdraft tune --model Qwen/Qwen3-8B --drafter z-lab/Qwen3-8B-DFlash-b16 --prompts my_prompts.jsonl
    """  # noqa: D301 - click wants the character itself
    spec = check_speculation(model, speculation)
    from blockdraft.bench.tune import Prompt, tune  # noqa: PLC0415 - they import torch, which --help must not wait for
    from blockdraft.bench.tune_plot import check_plots, plot_tuning  # noqa: PLC0415
    from blockdraft.engine.kept_costs import kept_pass_costs  # noqa: PLC0415
    from blockdraft.engine.workloads import pick, read_workloads  # noqa: PLC0415

    if plot:
        check_plots()
    # As an adaptive one, the engine would measure costs on its own account.
    engine = load_engine(model, replace(spec, policy="fixed"), runtime)
    found = [workload for path in prompts or (None,) for workload in read_workloads(path)]
    chosen = [
        Prompt(
            category=workload.category,
            request=engine.request([{"role": "user", "content": workload.turns[0]}], max_tokens=max_tokens),
        )
        for workload in pick(found, num_prompts)
    ]
    with working("timing passes and drafts") as tell:
        costs = kept_pass_costs(engine.target, engine.drafter, notify=note, anew=True)
        tuning = tune(engine, costs, chosen, num_finalists=finalists, repeats=repeats, notify=tell)
    if plot:
        plot_tuning(tuning, plot)
    if as_json:
        print_json(
            {
                "command": click.get_current_context().meta.get(ARGUMENTS_KEY),
                "model": model_reference(model),
                "spec": spec.to_dict(),
                "num_prompts": len(chosen),
                **tuning.to_dict(),
            }
        )
    else:
        _show(tuning, engine)


def _show(tuning: Tuning, engine: Engine) -> None:
    from blockdraft.bench.tune import ADAPTIVE, PLAIN  # noqa: PLC0415 - imports torch

    console = stdout_console()
    costs = tuning.costs
    table = _table("a pass over so many rows, in milliseconds (to one row)", ["behind", *map(str, costs.num_rows)])
    for depth in costs.depths:
        one_row = costs.target(1, depth)
        table.add_row(
            f"{depth} tokens",
            *(
                f"{1000 * costs.target(size, depth):.2f} ({costs.target(size, depth) / one_row:.2f})"
                for size in costs.num_rows
            ),
        )
    console.print(table)
    for name in tuning.acceptance:
        few, many = 1000 * costs.draft(name, 1), 1000 * costs.draft(name, 8)
        console.print(f"a draft of {name}: {few:.2f} ms for 1 token, {many:.2f} for 8")
    console.print()
    for name, rows in tuning.acceptance.items():
        slots = min(max(map(len, rows.values()), default=0), 8)
        table = _table(
            f"drafts of {name} that kept so many tokens or more", ["prompts", *map(str, range(1, slots + 1))]
        )
        for category, shares in rows.items():
            table.add_row(category, *(f"{share:.2f}" for share in shares[:slots]))
        console.print(table)
    categories = list(tuning.checked[0].ratios)
    table = _table(
        "times as fast as plain decoding, measured", ["", "all", "half of the turns", "predicted", *categories]
    )
    for one in tuning.checked:
        table.add_row(
            str(one.candidate),
            f"{one.ratio:.2f}",
            "{:.2f} to {:.2f}".format(*one.quartiles),
            "-" if one.predicted_ratio is None else f"{one.predicted_ratio:.2f}",
            *(f"{one.ratios[category]:.2f}" for category in categories),
        )
    console.print(table)
    best, first = tuning.best, tuning.checked[0]
    if best.method == PLAIN:
        console.print(
            f"recommendation: do not speculate (--drafter none); the best, {first.candidate}, is {first.ratio:.2f} "
            "times as fast as plain decoding"
        )
        return
    how = "--spec-policy adaptive" if best.method == ADAPTIVE else _flags(best.method, best.num_tokens, engine)
    console.print(f"recommendation: {best}, {first.ratio:.2f} times as fast as plain decoding here: {how}")


def _flags(method: str, num_tokens: int, engine: Engine) -> str:
    """Return the options that ask for one part with a fixed length."""
    if method.startswith("draft-"):
        return f"--drafter {engine.spec.draft_model} --spec-draft-n-max {num_tokens}"
    settings = engine.spec.ngram_simple
    if method == "ngram-simple" and settings.size_n_min is not None:
        return (
            f'--speculative-config \'{{"method": "ngram", "num_speculative_tokens": {num_tokens}, '
            f'"prompt_lookup_max": {settings.size_n}, "prompt_lookup_min": {settings.size_n_min}}}\''
        )
    name = "n-max" if method == "ngram-mod" else "size-m"
    return f"--drafter {method} --spec-{method}-{name} {num_tokens}"


def _table(title: str, columns: list[str]) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for index, column in enumerate(columns):
        table.add_column(column, justify="right" if index else "left")
    return table
