"""A command of an engine as people have it: words, a file, standard input, or a service of a compose file."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from blockdraft.errors import ConfigError

if TYPE_CHECKING:
    from blockdraft.deploy.dialects import Reading


@dataclass(frozen=True, kw_only=True)
class FoundCommand:
    """What was given, and in which form to write it if nothing is said."""

    reading: Reading
    text: str
    form: str


def read_source(source: Sequence[str], service: str | None) -> FoundCommand:
    """Return what the source says.

    Raises:
        ConfigError: it is no command of a known engine and no compose file of one.
    """
    from blockdraft.deploy.dialects import read_with_notes  # noqa: PLC0415 - --help does not need it
    from blockdraft.deploy.forms.compose import is_compose, read_compose  # noqa: PLC0415

    text = source_text(source[0]) if len(source) == 1 else ""
    if not is_compose(text):
        if service is not None:
            raise ConfigError("--service picks one of a compose file, and this is none")
        reading = read_with_notes(text if len(source) == 1 else source)
        return FoundCommand(reading=reading, text=text or shlex.join(source), form="command")
    services, notes = read_compose(text)
    chosen = [one for one in services if service in (None, one.name)]
    if len(chosen) != 1:
        names = ", ".join(one.name for one in services)
        raise ConfigError(f"the file runs engines in {names}; pick one with --service NAME")
    reading = chosen[0].reading
    reading = type(reading)(deployment=reading.deployment, notes=(*notes, *reading.notes))
    return FoundCommand(reading=reading, text=text, form="compose")


def source_text(source: str) -> str:
    """Return the text of a file, of standard input, or the argument itself.

    Raises:
        ConfigError: the file cannot be read.
    """
    if source == "-":
        return sys.stdin.read()
    if not _is_file(source):
        if " " not in source and source.endswith((".yaml", ".yml", ".sh")):
            raise ConfigError(f"there is no file {source}")
        return source
    try:
        return Path(source).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{source} cannot be read as text: {error}") from error


def _is_file(source: str) -> bool:
    try:
        return Path(source).is_file()
    except (OSError, ValueError):  # a command is longer than a path may be, or holds what none may
        return False
