"""`blockdraft translate`: one engine's command line or compose file as another's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import click

from blockdraft.cli.command_source import FoundCommand, read_source
from blockdraft.cli.options import ARGUMENTS_KEY, SectionedCommand, debug_option, section

if TYPE_CHECKING:
    from blockdraft.deploy.deployment import Deployment, EngineName
    from blockdraft.deploy.dialects import Note

_ENGINES: tuple[EngineName, ...] = ("vllm", "sglang", "llamacpp")
_FORMS = ("command", "docker", "compose", "systemd", "kubernetes")

_into = section("Translation")
_output = section("Output")


@dataclass(frozen=True, kw_only=True)
class _Written:
    """One translation, ready to be printed."""

    engine: str
    form: str
    text: str
    deployment: Deployment
    notes: tuple[Note, ...]


@click.command("translate", cls=SectionedCommand)
@click.argument("source", nargs=-1, required=True)
@_into(
    "--to",
    "targets",
    type=click.Choice([*_ENGINES, "all"]),
    default="all",
    show_default="the other two",
    help="Engine to translate to; its own gives the command in today's words.",
)
@_into(
    "--form",
    type=click.Choice(_FORMS),
    help="How the result is run.  [default: a compose file for one, a command otherwise]",
)
@_into("--service", metavar="NAME", help="Service of a compose file, if several run an engine.")
@_output("--json", "as_json", is_flag=True, help="Print one JSON object.")
@debug_option
def command(*, source: tuple[str, ...], targets: str, form: str | None, service: str | None, as_json: bool) -> None:
    """Translate SOURCE, a command line of vLLM, SGLang or llama.cpp, or a compose file, to the other engines.

    SOURCE is the command in quotes, a file, `-` for standard input, or the words of the command after `--`. The result
    is printed to standard output; what was outdated, what was converted and what has no equivalent, to standard error.
    The comment in the result holds the original: translated back, nothing is lost.

    \b
    blockdraft translate "vllm serve Qwen/Qwen3-8B --spec-method ngram --spec-tokens 4" --to llamacpp
    blockdraft translate compose.yaml --to sglang
    blockdraft translate --to vllm --form kubernetes -- llama-server -hf ORG/NAME-GGUF -np 2
    """  # noqa: D301 - click wants the character itself
    found = read_source(source, service)
    engine = found.reading.deployment.engine
    wanted = [name for name in _ENGINES if name == targets or (targets == "all" and name != engine)]
    written = [_translate(found, name, form or found.form) for name in wanted]
    if as_json:
        _print_json(found, written)
    else:
        _print(found, written)


def _translate(found: FoundCommand, to: EngineName, form: str) -> _Written:
    from blockdraft.deploy.forms import FORMS  # noqa: PLC0415 - --help does not need it
    from blockdraft.deploy.translation import (  # noqa: PLC0415
        as_comment,
        read_origin,
        restored_source,
        translate,
    )

    current = found.reading.deployment
    source, restored = restored_source(current, read_origin(found.text), to)
    translation = translate(source, to)
    text = FORMS[form](translation.deployment)
    comment = as_comment(source) if source.engine != to else ""
    return _Written(
        engine=to,
        form=form,
        text=comment + text,
        deployment=translation.deployment,
        notes=(*restored, *translation.notes),
    )


def _print(found: FoundCommand, written: Sequence[_Written]) -> None:
    """Print the results to standard output, and the remarks to standard error."""
    source = found.reading.deployment.engine
    _print_notes(f"{source}: as it was read", found.reading.notes)
    for number, one in enumerate(written):
        if len(written) > 1:
            click.echo(f"{chr(10) if number else ''}# {one.engine}")
        click.echo(one.text, nl=False)
        _print_notes(f"{source} -> {one.engine}", one.notes)


def _print_notes(title: str, notes: Sequence[Note]) -> None:
    from rich.text import Text  # noqa: PLC0415

    from blockdraft.cli.terminal import stderr_console  # noqa: PLC0415 - it imports rich

    if not notes:
        return
    console = stderr_console()
    console.print(Text(title, style="bold"))
    order = ("outdated", "unknown", "converted", "restored", "no-equivalent", "by-hand", "note")
    for note in sorted(notes, key=lambda one: order.index(one.kind)):
        console.print(Text(f"  {note.kind.replace('-', ' '):14}{note}"))


def _print_json(found: FoundCommand, written: Sequence[_Written]) -> None:
    from blockdraft.cli.record import print_json  # noqa: PLC0415
    from blockdraft.deploy.dialects import write_command  # noqa: PLC0415 - --help does not need it
    from blockdraft.deploy.forms import command_words  # noqa: PLC0415

    print_json(
        {
            "command": click.get_current_context().meta.get(ARGUMENTS_KEY),
            "source": {
                "command": command_words(found.reading.deployment),
                "deployment": asdict(found.reading.deployment),
                "notes": _notes(found.reading.notes),
            },
            "translations": [
                {
                    "engine": one.engine,
                    "form": one.form,
                    "text": one.text,
                    "command": list(write_command(one.deployment)),
                    "deployment": asdict(one.deployment),
                    "notes": _notes(one.notes),
                }
                for one in written
            ],
        }
    )


def _notes(notes: Sequence[Note]) -> list[dict[str, Any]]:
    return [asdict(note) for note in notes]
