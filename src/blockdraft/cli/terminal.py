"""Standard output is for the answer; everything else goes through here, to standard error."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import TextIO

from rich.console import Console
from rich.text import Text

_UNBROKEN = 10_000
"""A width that no line reaches."""

Notify = Callable[[str], None]


def stderr_console() -> Console:
    """Return the console on standard error, the same one as long as that is not redirected.

    A second one would write into the line of a spinner that runs on the first. While it runs, rich puts a proxy in
    the place of the stream.
    """
    return _console(getattr(sys.stderr, "rich_proxied_file", sys.stderr))


def stdout_console() -> Console:
    """Return a console on standard output whose lines are broken for readers, not for programs."""
    return Console(highlight=False, width=None if sys.stdout.isatty() else _UNBROKEN)


@lru_cache(maxsize=1)
def _console(stream: TextIO) -> Console:
    return Console(file=stream, highlight=False, soft_wrap=True)


def note(message: str) -> None:
    """Tell something that is worth knowing and not wrong."""
    stderr_console().print(Text(f"note: {message}", style="dim"))


@contextmanager
def working(what: str) -> Iterator[Notify]:
    """Show on a terminal that something takes time; yield a function that changes the text."""
    console = stderr_console()
    if not console.is_terminal:
        yield lambda _: None
        return
    with console.status(Text(what, style="dim"), spinner_style="dim") as status:
        yield lambda text: status.update(Text(text, style="dim"))


def last_line(figures: str) -> None:
    """End an answer with its figures; on a terminal, apart from the text above."""
    console = stderr_console()
    if console.is_terminal:
        console.print()
    console.print(Text(figures, style="dim"))
