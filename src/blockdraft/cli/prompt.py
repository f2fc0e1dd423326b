"""Where the prompt comes from: the argument, files and standard input, in this order, a blank line between."""

from __future__ import annotations

import select
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from blockdraft.cli.terminal import note

STDIN = "-"
_PATIENCE_S = 1.0


def read_prompt(argument: str | None, files: Sequence[Path]) -> str:
    """Return the prompt.

    Standard input is read if it is not a terminal, or if the argument is "-".

    Raises:
        UsageError: there is none, or a file is no text.
    """
    parts = [] if argument in (None, STDIN) else [argument]
    parts += [_read_file(file) for file in files]
    if sys.stdin is not None and (argument == STDIN or not sys.stdin.isatty()):  # None: it was closed
        parts.append(_read_stdin())
    prompt = "\n\n".join(part.rstrip("\n") for part in parts if part.strip())
    if not prompt:
        raise click.UsageError(
            'no prompt: give it as an argument (blockdraft generate "Why is the sky blue?"), '
            "with --file PATH, or on standard input"
        )
    return prompt


def _read_file(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise click.UsageError(f"{file} is no text in UTF-8 ({error.reason} at byte {error.start})") from error


def _read_stdin() -> str:
    if not sys.stdin.isatty() and _is_silent():
        note("waiting for standard input to end, it is part of the prompt; `< /dev/null` leaves it out")
    try:
        return sys.stdin.read()
    except UnicodeDecodeError as error:
        raise click.UsageError(f"standard input is no text in UTF-8 ({error.reason})") from error


def _is_silent() -> bool:
    """True if nothing comes for a second, as from a pipe that somebody left open."""
    try:
        return not select.select([sys.stdin], [], [], _PATIENCE_S)[0]
    except (OSError, ValueError):  # not everything that can be read can be waited for
        return False
