"""`blockdraft`: finds the command, runs it, and turns errors into one line and an exit code.

Exit codes: 0 all is well; 1 it could not be done, or what was checked does not hold; 2 the command line, a
configuration or a model reference is wrong; 130 interrupted.
"""

from __future__ import annotations

import difflib
from importlib import import_module
from typing import Any

import click

from blockdraft import __version__
from blockdraft.cli.options import DEBUG_KEY
from blockdraft.errors import BlockdraftError, ConfigError, ModelReferenceError

_COMMANDS = (
    *("generate", "chat", "inspect", "tune"),
    *("plan", "translate", "serve", "verify", "doctor", "bench", "advise"),
    *("data", "train", "calibrate", "export"),
)
"""Modules of this package; each is imported when it is asked for."""

_INTERRUPTED = 130


class Failure(click.ClickException):
    """One of our errors, on its way to the terminal."""

    def __init__(self, error: BlockdraftError) -> None:
        super().__init__(str(error))


class WrongUse(Failure):
    """What was asked for cannot be: the same exit code as for a wrong command line."""

    exit_code = 2


class Commands(click.Group):
    """The group of all commands."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        command: click.Command = import_module(f"blockdraft.cli.{cmd_name}").command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and args[0] not in _COMMANDS:
            near = difflib.get_close_matches(args[0], _COMMANDS, n=1)
            # Somebody who types a prompt right after the program's name gets told where it goes.
            hint = f"did you mean {near[0]!r}?" if near else f"commands are {', '.join(_COMMANDS)}."
            if " " in args[0]:
                hint = f'to answer a prompt, write: blockdraft generate "{args[0]}"'
            raise click.UsageError(f"there is no command {args[0]!r}; {hint}", ctx)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BlockdraftError as error:
            if ctx.meta.get(DEBUG_KEY):
                raise
            is_usage = isinstance(error, ConfigError | ModelReferenceError)
            raise (WrongUse if is_usage else Failure)(error) from error
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)
            ctx.exit(_INTERRUPTED)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="blockdraft", message="%(prog)s %(version)s")
def main() -> None:
    """Lossless speculative decoding: the same answers, sooner.

    \b
    blockdraft generate "Why is the sky blue?"
    blockdraft generate "Why is the sky blue?" --compare
    blockdraft chat
    blockdraft inspect MODEL DRAFTER
    """  # noqa: D301 - click wants the character itself


if __name__ == "__main__":
    main()
