"""Standard output is for the answer; everything else goes through here, to standard error."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.text import Text

Notify = Callable[[str], None]


def stderr_console() -> Console:
    """Return a console on standard error as it is now; tests and shells redirect it."""
    return Console(stderr=True, highlight=False, soft_wrap=True)


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
