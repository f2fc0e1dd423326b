"""How options are declared: in sections of the help page, and gathered into one dataclass per group."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any, TypeVar

import click

DEBUG_KEY = "blockdraft.debug"
ARGUMENTS_KEY = "blockdraft.arguments"
"""Where the context keeps --debug, and the command line as it was written."""

Function = TypeVar("Function", bound=Callable[..., Any])
Decorator = Callable[[Function], Function]


class SectionedOption(click.Option):
    """An option that is listed under a title of its own on the help page."""

    def __init__(self, *args: Any, section: str = "Options", **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        self.section = section


class SectionedCommand(click.Command):
    """A command whose help page lists the options by section, and which remembers its arguments."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[ARGUMENTS_KEY] = [*ctx.command_path.split(), *args]
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            hidden = {flag for option in self.params if getattr(option, "hidden", False) for flag in option.opts}
            near = [flag for flag in error.possibilities or () if flag not in hidden]
            raise click.NoSuchOption(error.option_name, possibilities=near, ctx=ctx) from None

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            # Arguments are explained in the text above.
            if isinstance(parameter, click.Option) and (record := parameter.get_help_record(ctx)):
                sections.setdefault(getattr(parameter, "section", "Options"), []).append(record)
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records)


def section(title: str) -> Callable[..., Decorator[Any]]:
    """Return `click.option` for the options of one section."""
    return functools.partial(click.option, cls=SectionedOption, section=title)


def gather(kind: type[Any], parameter: str, options: Sequence[Decorator[Any]]) -> Decorator[Any]:
    """Return a decorator that adds `options` to a command and hands their values over as one `kind`.

    The names of the options are the names of the dataclass's fields.
    """
    names = [field.name for field in fields(kind)]

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def with_group(**values: Any) -> Any:
            group = kind(**{name: values.pop(name) for name in names})
            return function(**{parameter: group}, **values)

        return functools.reduce(lambda command, option: option(command), reversed(options), with_group)

    return decorate


def number_list(_ctx: click.Context, _parameter: click.Parameter, text: str) -> tuple[int, ...]:
    """Read an option's whole numbers with commas between them, each once.

    Raises:
        click.BadParameter: it is something else.
    """
    try:
        return tuple(dict.fromkeys(int(part) for part in text.split(",")))
    except ValueError as error:
        raise click.BadParameter(f"{text!r} is not a list of whole numbers, like 0,4096,16384") from error


def _remember_debug(ctx: click.Context, _parameter: click.Parameter, value: bool) -> None:
    ctx.meta[DEBUG_KEY] = value


debug_option = click.option(
    "--debug",
    is_flag=True,
    envvar="BLOCKDRAFT_DEBUG",
    show_envvar=True,
    expose_value=False,
    is_eager=True,
    callback=_remember_debug,
    help="Show where an error came from.",
)
"""Parsed first, so that errors in other options are shown in full too."""
