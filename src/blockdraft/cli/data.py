"""`blockdraft data`: conversations in which the target gave the answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from blockdraft.cli.data_options import (
    EXISTING_FILE,
    AnswerOptions,
    EndpointOptions,
    SourceOptions,
    answer_options,
    endpoint_options,
    source_options,
)
from blockdraft.cli.loading import model_reference
from blockdraft.cli.model_options import ModelOptions, model_options, runtime_option
from blockdraft.cli.options import SectionedCommand, debug_option, section
from blockdraft.cli.record import print_json
from blockdraft.cli.server_options import api_key
from blockdraft.cli.terminal import last_line, note, stderr_console, working
from blockdraft.errors import ConfigError

if TYPE_CHECKING:
    from blockdraft.models.load import Runtime as RuntimeName
    from blockdraft.models.tokenizer import Tokenizer
    from blockdraft.train.generate.dialogue import Runtime
    from blockdraft.train.generate.make import Outcome, Progress

_REPORT_EVERY_S = 30.0


@click.command("data", cls=SectionedCommand)
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@click.argument("prompts", nargs=-1, type=EXISTING_FILE)
@source_options
@answer_options
@endpoint_options
@section("Output")("--json", "as_json", is_flag=True, help="Print one JSON object: manifest, counts, speed.")
@model_options
@runtime_option
@debug_option
def command(
    *,
    folder: Path,
    prompts: tuple[Path, ...],
    source: SourceOptions,
    answer: AnswerOptions,
    server: EndpointOptions,
    as_json: bool,
    model: ModelOptions,
    runtime: RuntimeName,
) -> None:
    """Fill FOLDER with conversations in which the model answers PROMPTS.

    PROMPTS are JSON Lines (plain or .gz) with `turns`, `prompt` or `messages`. The same command goes on where it
    stopped: what is finished is kept after an interrupt, a kill or a full disk.

    \b
    blockdraft data answers prompts.jsonl.gz --limit 1000
    blockdraft data answers --self-written 1000
    blockdraft data answers prompts.jsonl --model Qwen/Qwen3-8B --endpoint http://localhost:8000/v1
    """  # noqa: D301 - click wants the character itself
    with working("starting"):  # the first import of torch takes seconds
        plan, settings = source.plan(prompts), answer.settings()
        from blockdraft.train.generate.make import DataMaker  # noqa: PLC0415
    tokenizer = _load_tokenizer(model)
    with working("reading prompts"):
        maker = DataMaker(
            folder, plan, settings, tokenizer, target=model_reference(model), origin=_origin(model, server, runtime)
        )
    answering = _runtime(model, server, answer, tokenizer, runtime) if maker.num_pending else None
    try:
        with _progress(maker.num_pending) as report:
            maker.run(answering, report)
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


def _origin(options: ModelOptions, server: EndpointOptions, runtime: RuntimeName) -> dict[str, object]:
    """Return how the target is run, for the manifest."""
    if server.endpoint:
        return {"runtime": "endpoint", "endpoint": server.endpoint, "endpoint_model": server.endpoint_model}
    return {"runtime": "blockdraft", "dtype": options.dtype, "computed_by": runtime}


def _runtime(
    options: ModelOptions, server: EndpointOptions, answer: AnswerOptions, tokenizer: Tokenizer, runtime: RuntimeName
) -> Runtime:
    if server.endpoint is None:
        return _own_runtime(options, tokenizer, answer.batch_size, runtime)
    try:
        from blockdraft.train.generate.endpoint import EndpointRuntime  # noqa: PLC0415 - it imports httpx
    except ImportError as error:
        raise ConfigError("--endpoint needs httpx; install it with: pip install 'blockdraft[endpoint]'") from error
    return EndpointRuntime(
        server.endpoint,
        tokenizer,
        model=server.endpoint_model,
        api_key=api_key(server.api_key_env),
        num_in_flight=answer.batch_size,
        thinking=answer.thinking,
        notify=note,
    )


def _own_runtime(options: ModelOptions, tokenizer: Tokenizer, batch_size: int, runtime: RuntimeName) -> Runtime:
    from blockdraft.models.load import load_model  # noqa: PLC0415 - it imports torch
    from blockdraft.train.generate.own import OwnRuntime  # noqa: PLC0415

    reference = model_reference(options)
    with working(f"loading {reference}"):
        if options.threads is not None:
            import torch  # noqa: PLC0415

            torch.set_num_threads(options.threads)
        loaded = load_model(
            reference, device=options.device, dtype=options.dtype, runtime=runtime, offline=True, notify=note
        )
    return OwnRuntime(loaded.target, tokenizer, batch_size=batch_size, notify=note)


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
