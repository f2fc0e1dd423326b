"""`blockdraft generate`: one prompt, one answer."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from blockdraft.cli.answer import AnswerInterrupted, stream_answer
from blockdraft.cli.loading import check_options, load_engine, model_reference
from blockdraft.cli.model_options import ModelOptions, model_options, runtime_option
from blockdraft.cli.options import SectionedCommand, debug_option, section
from blockdraft.cli.prompt import read_prompt
from blockdraft.cli.record import print_json, run_record
from blockdraft.cli.render import Figures, PlainView, RoundsView, comparison_lines, is_fault
from blockdraft.cli.sampling_options import SamplingOptions, sampling_options
from blockdraft.cli.speculation_options import SpeculationOptions, speculation_options
from blockdraft.cli.terminal import last_line, stderr_console, working

if TYPE_CHECKING:
    from blockdraft.bench.compare import Comparison
    from blockdraft.engine import Engine, Request
    from blockdraft.models.load import Runtime

_input = section("Prompt")
_output = section("Output")


@click.command("generate", cls=SectionedCommand)
@click.argument("prompt", required=False)
@_input(
    "-f",
    "--file",
    "files",
    metavar="PATH",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    multiple=True,
    help="Append this text to the prompt, after a blank line. Repeatable.",
)
@_input("--raw", is_flag=True, help="Continue the prompt as it is, without the chat template.")
@_output("--json", "as_json", is_flag=True, help="Print one JSON object: settings, tokens, rounds, statistics.")
@_output("--show-rounds", is_flag=True, help="Colour every token by its round and by how it came.")
@_output("--compare", is_flag=True, help="Also decode plainly; tell the speed ratio and whether the texts agree.")
@_output(
    "--repeats",
    type=click.IntRange(min=1),
    metavar="N",
    default=3,
    show_default=True,
    help="Runs of each in --compare.",
)
@model_options
@runtime_option
@sampling_options
@speculation_options
@debug_option
def command(
    *,
    prompt: str | None,
    files: tuple[Path, ...],
    raw: bool,
    as_json: bool,
    show_rounds: bool,
    compare: bool,
    repeats: int,
    model: ModelOptions,
    runtime: Runtime,
    sampling: SamplingOptions,
    speculation: SpeculationOptions,
) -> None:
    """Answer PROMPT as the model alone would, sooner.

    The answer goes to standard output, everything else to standard error. The prompt may also come from --file
    and from standard input ("-" reads it from a terminal, too).

    \b
    blockdraft generate "Why is the sky blue?"
    blockdraft generate "Fix the typos." --file letter.txt --show-rounds
    git diff | blockdraft generate "Write a commit message." --drafter ngram-mod
    """  # noqa: D301 - click wants the character itself
    if as_json and show_rounds:
        raise click.UsageError("--show-rounds is for readers; --json holds the round of every token already")
    text = read_prompt(prompt, files)
    spec = check_options(model, speculation, sampling)
    if compare and not spec.is_enabled:
        raise click.UsageError("--compare sets a drafter against plain decoding, but the drafter is `none`")
    engine = load_engine(model, spec, runtime)
    request = sampling.request(engine, text, raw=raw)
    comparison = _compare(engine, request, repeats) if compare else None
    if as_json:
        generation = comparison.speculative[0] if comparison else engine.run([request])[0]
        record = run_record(engine, model_reference(model), request, generation)
        print_json(record | ({"comparison": comparison.to_dict()} if comparison else {}))
    elif comparison:
        _show(engine, comparison, _view(show_rounds))
    else:
        _stream(engine, request, _view(show_rounds))
    if comparison and is_fault(comparison):
        click.get_current_context().exit(1)


def _view(show_rounds: bool) -> PlainView | RoundsView:
    if not show_rounds:
        return PlainView()
    view = RoundsView()
    stderr_console().print(view.legend(), end="\n\n")
    return view


def _stream(engine: Engine, request: Request, view: PlainView | RoundsView) -> None:
    try:
        generation = stream_answer(engine, request, view)
    except AnswerInterrupted as interrupt:
        last_line(interrupt.figures.line())
        raise
    last_line(Figures.of(generation).line())


def _compare(engine: Engine, request: Request, repeats: int) -> Comparison:
    from blockdraft.bench.compare import compare  # noqa: PLC0415 - it imports torch

    with working("comparing") as tell:
        return compare(engine, request, repeats=repeats, notify=lambda run: tell(f"comparing: {run}"))


def _show(engine: Engine, comparison: Comparison, view: PlainView | RoundsView) -> None:
    view.show(comparison.speculative[0].tokens)
    view.close()
    last_line(Figures.of(comparison.speculative[0]).line())
    stderr_console().print(*comparison_lines(comparison, engine), sep="\n", markup=False)
