"""`blockdraft data`: conversations in which the target gave the answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from blockdraft.cli.loading import model_reference
from blockdraft.cli.model_options import ModelOptions, model_options
from blockdraft.cli.options import SectionedCommand, debug_option, section
from blockdraft.cli.record import print_json
from blockdraft.cli.terminal import last_line, note, stderr_console, working

if TYPE_CHECKING:
    from blockdraft.models.tokenizer import Tokenizer
    from blockdraft.train.generate.dialogue import GenerationSettings, Runtime
    from blockdraft.train.generate.make import Outcome, Progress

_source = section("Prompts")
_answer = section("Answers")
_endpoint = section("Endpoint")
_output = section("Output")

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_REPORT_EVERY_S = 30.0


def _parse_mix(_ctx: click.Context, _parameter: click.Parameter, text: str) -> tuple[tuple[float, float], ...]:
    try:
        pairs = [part.partition(":") for part in text.split(",")]
        return tuple((float(temperature), float(share) if share else 1.0) for temperature, _, share in pairs)
    except ValueError as error:
        raise click.BadParameter(f"{text!r} is no mix of temperatures and shares, like 0:0.75,0.7:0.25") from error


@click.command("data", cls=SectionedCommand)
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@click.argument("prompts", nargs=-1, type=_FILE)
@_source(
    "--import", "imports", metavar="PATH", type=_FILE, multiple=True, help="Take over answered prompts. Repeatable."
)
@_source(
    "--self-written",
    type=click.IntRange(min=0),
    metavar="N",
    default=0,
    help="Let the model write N user messages itself.",
)
@_source("--limit", type=click.IntRange(min=1), metavar="N", help="Most prompts taken from the files.")
@_source(
    "--exclude", metavar="PATH", type=_FILE, multiple=True, help="Leave out the ids in this JSONL file. Repeatable."
)
@_source(
    "--held-out", type=float, metavar="SHARE", default=0.0, show_default=True, help="Set aside, never to be trained on."
)
@_answer("-n", "--max-tokens", type=int, metavar="N", default=512, show_default=True, help="Longest answer.")
@_answer(
    "--temperatures",
    metavar="MIX",
    default="0:0.75,0.7:0.25",
    show_default=True,
    callback=_parse_mix,
    help="Temperatures and their shares; 0 is greedy.",
)
@_answer("--top-p", type=float, metavar="X", default=0.95, show_default=True, help="Probability mass kept.")
@_answer("--top-k", type=int, metavar="N", default=50, show_default=True, help="Most likely tokens kept; 0 for all.")
@_answer("--seed", type=int, metavar="N", default=0, show_default=True, help="The same seed gives the same answers.")
@_answer("-s", "--system", metavar="TEXT", help="System message for prompts without one.")
@_answer("--thinking/--no-thinking", default=None, help="Set the chat template's switch for thinking.")
@_answer(
    "--batch-size",
    type=click.IntRange(min=1),
    metavar="N",
    default=256,
    show_default=True,
    help="Conversations answered at once.",
)
@_endpoint("--endpoint", metavar="URL", help="Ask an OpenAI-compatible server, like http://localhost:8000/v1.")
@_endpoint("--endpoint-model", metavar="NAME", help="What the server calls the model.  [default: its only one]")
@_endpoint(
    "--api-key-env", metavar="NAME", default="OPENAI_API_KEY", show_default=True, help="Variable that holds the key."
)
@_output("--json", "as_json", is_flag=True, help="Print one JSON object: manifest, counts, speed.")
@model_options
@debug_option
def command(
    *,
    folder: Path,
    prompts: tuple[Path, ...],
    imports: tuple[Path, ...],
    self_written: int,
    limit: int | None,
    exclude: tuple[Path, ...],
    held_out: float,
    max_tokens: int,
    temperatures: tuple[tuple[float, float], ...],
    top_p: float,
    top_k: int,
    seed: int,
    system: str | None,
    thinking: bool | None,
    batch_size: int,
    endpoint: str | None,
    endpoint_model: str | None,
    api_key_env: str,
    as_json: bool,
    model: ModelOptions,
) -> None:
    """Fill FOLDER with conversations in which the model answers PROMPTS.

    PROMPTS are JSON Lines (plain or .gz) with `turns`, `prompt` or `messages`. The same command goes on where it
    stopped: what is finished is kept after an interrupt, a kill or a full disk.

    \b
    blockdraft data answers prompts.jsonl.gz --limit 1000
    blockdraft data answers --self-written 1000
    blockdraft data answers prompts.jsonl --model Qwen/Qwen3-8B --endpoint http://localhost:8000/v1
    """  # noqa: D301 - click wants the character itself
    with working("starting"):
        from blockdraft.train.generate.dialogue import GenerationSettings  # noqa: PLC0415 - it imports torch
        from blockdraft.train.generate.make import DataMaker, DataPlan  # noqa: PLC0415

        plan = DataPlan(
            prompt_files=prompts,
            answer_files=imports,
            num_self_written=self_written,
            limit=limit,
            exclude=exclude,
            held_out=held_out,
        )
        settings = GenerationSettings(
            max_tokens=max_tokens,
            temperatures=temperatures,
            top_p=top_p,
            top_k=top_k,
            seed=seed,
            system=system,
            thinking=thinking,
        )
    tokenizer = _load_tokenizer(model)
    maker = DataMaker(
        folder,
        plan,
        settings,
        tokenizer,
        target=model_reference(model),
        origin=_origin(model, endpoint, endpoint_model),
    )
    runtime: Runtime | None = None
    if maker.num_pending and endpoint:
        runtime = _endpoint_runtime(endpoint, endpoint_model, api_key_env, tokenizer, settings, batch_size)
    elif maker.num_pending:
        runtime = _own_runtime(model, tokenizer, batch_size)
    try:
        with _progress(maker.num_pending) as report:
            maker.run(runtime, report)
    finally:
        _tell(folder, maker.outcome)
    if as_json:
        print_json(maker.outcome.to_dict())


def _load_tokenizer(options: ModelOptions) -> Tokenizer:
    from blockdraft.models.references import resolve  # noqa: PLC0415 - it imports the hub's client
    from blockdraft.models.tokenizer import load_tokenizer  # noqa: PLC0415

    resolved = resolve(model_reference(options), offline=options.offline or None, notify=note)
    with working("loading the tokenizer"):
        return load_tokenizer(resolved.path)


def _origin(options: ModelOptions, endpoint: str | None, endpoint_model: str | None) -> dict[str, object]:
    if endpoint:
        return {"runtime": "endpoint", "endpoint": endpoint, "endpoint_model": endpoint_model}
    return {"runtime": "blockdraft", "dtype": options.dtype}


def _own_runtime(options: ModelOptions, tokenizer: Tokenizer, batch_size: int) -> Runtime:
    from blockdraft.models.load import load_model  # noqa: PLC0415 - it imports torch
    from blockdraft.train.generate.own import OwnRuntime  # noqa: PLC0415

    reference = model_reference(options)
    with working(f"loading {reference}"):
        if options.threads is not None:
            import torch  # noqa: PLC0415

            torch.set_num_threads(options.threads)
        loaded = load_model(reference, device=options.device, dtype=options.dtype, offline=True, notify=note)
    return OwnRuntime(loaded.target, tokenizer, batch_size=batch_size, notify=note)


def _endpoint_runtime(
    url: str,
    name: str | None,
    api_key_env: str,
    tokenizer: Tokenizer,
    settings: GenerationSettings,
    num_in_flight: int,
) -> Runtime:
    import os  # noqa: PLC0415

    from blockdraft.train.generate.endpoint import EndpointRuntime  # noqa: PLC0415 - it imports httpx

    return EndpointRuntime(
        url,
        tokenizer,
        model=name,
        api_key=os.environ.get(api_key_env),
        num_in_flight=num_in_flight,
        thinking=settings.thinking,
        notify=note,
    )


@contextmanager
def _progress(num_total: int) -> Iterator[Callable[[Progress], None]]:
    """Show a bar on a terminal, and a line now and then elsewhere."""
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn  # noqa: PLC0415
    from rich.progress import Progress as Bar  # noqa: PLC0415

    console = stderr_console()
    if not console.is_terminal:
        yield _line_reporter()
        return
    columns = (TextColumn("answering"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[figures]}"))
    with Bar(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=num_total, figures="")
        yield lambda progress: bar.update(task, completed=progress.num_done, figures=_figures(progress))


def _line_reporter() -> Callable[[Progress], None]:
    told = 0.0

    def report(progress: Progress) -> None:
        nonlocal told
        if progress.seconds - told >= _REPORT_EVERY_S:
            told = progress.seconds
            stderr_console().print(f"{progress.num_done} of {progress.num_total}: {_figures(progress)}")

    return report


def _figures(progress: Progress) -> str:
    left = progress.seconds_left
    hours, seconds = divmod(int(left or 0), 3600)
    rest = "" if left is None else f", {hours}:{seconds // 60:02d}:{seconds % 60:02d} left"
    return f"{progress.tokens_per_second:.0f} tokens/s{rest}"


def _tell(folder: Path, outcome: Outcome) -> None:
    manifest, progress = outcome.manifest, outcome.progress
    for reason, number in outcome.num_discarded.items():
        note(f"{number} conversations came to nothing: {reason}")
    last_line(
        f"{folder}: {manifest.num_conversations} conversations"
        + (f" and {manifest.num_held_out} held out" if manifest.num_held_out else "")
        + f", {manifest.num_completion_tokens} answer tokens"
        + (f"; {progress.tokens_per_second:.0f} tokens/s" if progress.num_done else "")
    )
