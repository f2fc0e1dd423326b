"""docs/cli.md lists the options that the commands have, no more and no fewer."""

import re

import click
import pytest
from markdown_pages import ROOT

from blockdraft.cli.main import main

PAGE = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
CONTEXT = click.Context(main)
COMMANDS = {name: main.get_command(CONTEXT, name) for name in main.list_commands(CONTEXT)}


def long_options(command: click.Command) -> set[str]:
    """Return the options that the help page of a command shows."""
    return {
        flag
        for parameter in command.get_params(click.Context(command))
        if isinstance(parameter, click.Option) and not parameter.hidden
        for flag in (*parameter.opts, *parameter.secondary_opts)
        if flag.startswith("--")
    }


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_of_a_command_is_on_the_page(name: str) -> None:
    assert f"blockdraft {name}" in PAGE
    missing = {flag for flag in long_options(COMMANDS[name]) if not re.search(rf"{flag}(?![\w-])", PAGE)}
    assert not missing


def test_every_option_on_the_page_exists() -> None:
    known = {
        flag
        for command in (main, *COMMANDS.values())
        for parameter in command.get_params(click.Context(command))
        for flag in (*parameter.opts, *parameter.secondary_opts)  # hidden ones too, which say what replaced them
    }
    named = set(re.findall(r"(?<![\w-])--[a-z][\w-]*\w", PAGE))
    assert named - known == set()
