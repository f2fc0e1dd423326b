"""`blockdraft serve`: an engine as it was planned or written, started, watched, and asked what it really loaded."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Sequence
from contextlib import ExitStack, aclosing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING

import click
from rich.text import Text

from blockdraft.cli.options import SectionedCommand, debug_option, gather, section
from blockdraft.cli.plan import UseOptions, use_options
from blockdraft.cli.record import print_json
from blockdraft.cli.terminal import last_line, note, stderr_console
from blockdraft.errors import ConfigError, EndpointError

if TYPE_CHECKING:
    from blockdraft.bench.endpoint.readback import ReadBack
    from blockdraft.deploy.deployment import Deployment
    from blockdraft.deploy.launch import Event, Launch
    from blockdraft.deploy.rules import Examination

_what = section("What to run")
_watch = section("How it is watched")
_output = section("Output")

_EVERYWHERE = ("0.0.0.0", "::", "")
_INTERRUPTED = 130


@dataclass(frozen=True, kw_only=True)
class WatchOptions:
    """How patient to be with the child, and what of it to show."""

    ready_timeout: float
    stop_timeout: float
    max_restarts: int
    need_drafts: bool
    force: bool
    quiet: bool
    log: Path | None
    as_json: bool


@dataclass(frozen=True, kw_only=True)
class _Start:
    """What is started, and what the rules say of it."""

    deployment: Deployment
    words: Sequence[str]
    environment: dict[str, str]
    examination: Examination


watch_options = gather(
    WatchOptions,
    "watch",
    [
        _watch(
            "--ready-timeout",
            type=click.FloatRange(min=0, min_open=True),
            metavar="S",
            default=1800.0,
            show_default=True,
            help="Seconds until it must be healthy; engines download and compile first.",
        ),
        _watch(
            "--stop-timeout",
            type=click.FloatRange(min=0, min_open=True),
            metavar="S",
            default=30.0,
            show_default=True,
            help="Seconds it gets to end before it is killed.",
        ),
        _watch(
            "--max-restarts",
            type=click.IntRange(min=0),
            metavar="N",
            default=5,
            show_default=True,
            help="Restarts in a row after crashes, with growing pauses.",
        ),
        _watch("--need-drafts", is_flag=True, help="Stop with an error if it does not draft."),
        _watch("--force", is_flag=True, help="Start although the rules expect it to fail."),
        _output("--quiet", is_flag=True, help="Leave the engine's own log out."),
        _output(
            "--log", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help="Append its log to this."
        ),
        _output("--json", "as_json", is_flag=True, help="Print events as JSON, one a line."),
    ],
)


@click.command("serve", cls=SectionedCommand)
@click.argument("source", nargs=-1, required=True)
@_what(
    "--drafter",
    metavar="WHO",
    help="A model, `ngram-mod` or another search, a chain (ngram-mod,MODEL), or `none`.  [default: a registered one]",
)
@_what("--host", metavar="ADDRESS", help="Where to listen.  [default: the engine's]")
@_what("--port", type=click.IntRange(1, 65535), metavar="N", help="Where to listen.  [default: the engine's]")
@use_options
@watch_options
@debug_option
def command(
    *,
    source: tuple[str, ...],
    drafter: str | None,
    host: str | None,
    port: int | None,
    use: UseOptions,
    watch: WatchOptions,
) -> None:
    """Run SOURCE on an engine and keep it running: a model to plan for, or a command of vLLM, SGLang or llama.cpp.

    A model is planned as `blockdraft plan` does it and needs --engine. A command is run as it is written: in quotes, a
    file, or its words after `--`. The rules are applied first, and an error keeps it from starting. Once the engine is
    healthy it is asked what it loaded and for a short answer, to see whether it drafts. Clients talk to the engine
    itself. Ctrl-C or SIGTERM ends it and all that it started.

    \b
    blockdraft serve Qwen/Qwen3-8B --engine vllm --port 8000
    blockdraft serve -- llama-server -m model.gguf --spec-type ngram-mod --port 8080
    blockdraft serve compose.yaml --need-drafts
    """  # noqa: D301 - click wants the character itself
    from blockdraft.deploy.launch import Launch  # noqa: PLC0415 - --help does not need it

    start = _planned(source[0], drafter, host, port, use) if _is_model(source) else _written(source, use)
    if not _is_model(source) and (drafter or host or port):
        raise click.UsageError("--drafter, --host and --port are for plans; the command says its own")
    _refuse(start, watch)
    launch = Launch(
        command=start.words,
        url=_url(start.deployment),
        environment=start.environment,
        ready_timeout_s=watch.ready_timeout,
        stop_timeout_s=watch.stop_timeout,
        max_restarts=watch.max_restarts,
    )
    signal_number = asyncio.run(_serve(launch, bool(start.deployment.drafts), watch))
    if signal_number == signal.SIGINT:
        click.get_current_context().exit(_INTERRUPTED)


def _is_model(source: Sequence[str]) -> bool:
    return len(source) == 1 and not any(character.isspace() for character in source[0]) and not _is_text(source[0])


def _is_text(source: str) -> bool:
    """Return whether a word names a file with a command in it, or standard input; a GGUF file is a model."""
    return source == "-" or source.endswith((".yaml", ".yml", ".sh"))


def _planned(target: str, drafter: str | None, host: str | None, port: int | None, use: UseOptions) -> _Start:
    """Plan for the one engine that was asked for.

    Raises:
        ConfigError: no engine was named, or it cannot run the target.
    """
    from blockdraft.cli.plan import make_plans  # noqa: PLC0415 - it reads the models' facts
    from blockdraft.deploy.dialects import write_command  # noqa: PLC0415
    from blockdraft.deploy.hardware import resolve_hardware  # noqa: PLC0415

    if use.engine == "all":
        raise click.UsageError(f"name the engine that is to run {target}: --engine vllm, sglang or llamacpp")
    plans, _ = make_plans(target, drafter, (use.engine,), resolve_hardware(use.hardware), use)  # type: ignore[arg-type]
    deployment = replace(plans[0].deployment, host=host, port=port)
    for choice in plans[0].choices:
        note(f"{choice.setting} {choice.value}: {choice.why}")
    return _Start(
        deployment=deployment,
        words=write_command(deployment),
        environment=dict(deployment.environment),
        examination=plans[0].examination,
    )


def _written(source: Sequence[str], use: UseOptions) -> _Start:
    """Read a command; it is run in its own words."""
    from blockdraft.cli.command_source import read_source  # noqa: PLC0415 - --help does not need it
    from blockdraft.cli.plan_check import situation_of  # noqa: PLC0415
    from blockdraft.deploy.dialects.words import leading_environment, shell_words  # noqa: PLC0415
    from blockdraft.deploy.forms import docker_words  # noqa: PLC0415
    from blockdraft.deploy.hardware import resolve_hardware  # noqa: PLC0415
    from blockdraft.deploy.rules import examine  # noqa: PLC0415

    found = read_source(source, None)
    for one in found.reading.notes:
        note(str(one))
    deployment = found.reading.deployment
    if found.form == "compose":
        environment: dict[str, str] = {}
        words: Sequence[str] = docker_words(deployment)
    else:
        environment, words = leading_environment(shell_words(found.text))
    examination = examine(situation_of(found, resolve_hardware(use.hardware), use))
    return _Start(deployment=deployment, words=words, environment=environment, examination=examination)


def _refuse(start: _Start, watch: WatchOptions) -> None:
    """Tell what the rules found.

    Raises:
        ConfigError: they expect it to fail, and that was not to be overlooked.
    """
    for finding in start.examination.findings:
        note(f"{finding.severity} {finding.rule}, {finding.flag}: {finding.effect}; {finding.fix}")
    errors = start.examination.of("error")
    if errors and not watch.force:
        raise ConfigError(
            f"the engine would fail ({errors[0].rule}): {errors[0].effect}; {errors[0].fix}; --force starts it "
            "all the same"
        )


def _url(deployment: Deployment) -> str:
    """Return where the engine will answer, as seen from here."""
    from blockdraft.deploy.launch import DEFAULT_PORTS  # noqa: PLC0415

    port = str(deployment.port or DEFAULT_PORTS[deployment.engine])
    if deployment.container is not None:
        outer = {inner.partition("/")[0]: left for left, _, inner in map(_ports, deployment.container.ports)}
        port = outer.get(port, port).rpartition(":")[2]
    host = "127.0.0.1" if (deployment.host or "") in _EVERYWHERE else str(deployment.host)
    return f"http://{host}:{port}"


def _ports(mapping: str) -> tuple[str, str, str]:
    return mapping.rpartition(":")


async def _serve(launch: Launch, wants_drafts: bool, watch: WatchOptions) -> int | None:
    """Run until the end; return the signal that asked for it.

    Raises:
        LaunchError: the engine cannot be kept running.
        EndpointError: it was to draft and does not.
    """
    from blockdraft.deploy.launch import Supervisor, stop_on_signals  # noqa: PLC0415

    supervisor = Supervisor(launch)
    came = stop_on_signals(supervisor.request_stop)
    with ExitStack() as files:
        log = files.enter_context(watch.log.open("a", encoding="utf-8")) if watch.log else None
        async with aclosing(supervisor.events()) as events:
            async for event in events:
                _show(event, watch, log)
                if event.name == "ready":
                    await _ask(launch.url, wants_drafts, watch)
    return came()


async def _ask(url: str, wants_drafts: bool, watch: WatchOptions) -> None:
    """Ask the engine what it loaded, and tell.

    Raises:
        EndpointError: it was to draft and does not.
    """
    from blockdraft.bench.endpoint.connection import Connection  # noqa: PLC0415
    from blockdraft.bench.endpoint.readback import read_back  # noqa: PLC0415

    try:
        async with Connection(url, api_key=os.environ.get("OPENAI_API_KEY"), timeout_s=120.0) as connection:
            found = await read_back(connection)
    except EndpointError as error:
        if watch.need_drafts:
            raise
        note(f"it is healthy, but what it loaded is not known: {error}")
        return
    if watch.as_json:
        print_json({"name": "serving", "url": url, **found.to_dict()}, indent=None)
    else:
        last_line(f"serving {found.describe()}; {url}/v1")
    _complain(found, wants_drafts, watch)


def _complain(found: ReadBack, wants_drafts: bool, watch: WatchOptions) -> None:
    if found.does_draft or not (wants_drafts or watch.need_drafts):
        return
    if found.does_draft is None and not watch.need_drafts:
        note("it was to draft, and does not tell whether it does; `blockdraft doctor --url` looks closer")
        return
    message = "the engine was to draft, and drafted nothing for an answer that copies its prompt"
    if watch.need_drafts:
        raise EndpointError(f"{message}; look at its log, or at `blockdraft doctor --url`")
    note(f"{message}; `blockdraft doctor --url` looks closer")


def _show(event: Event, watch: WatchOptions, log: IO[str] | None) -> None:
    if event.name == "log":
        if log is not None:
            log.write(event.text + "\n")
            log.flush()
        if watch.quiet:
            return
    if watch.as_json:
        print_json(event.to_dict(), indent=None)
        return
    style, prefix = ("dim", "  | ") if event.name == "log" else ("bold", f"[{event.seconds:.1f} s] {event.name}: ")
    stderr_console().print(Text(prefix + event.text, style=style))
