"""What each engine calls things: command lines are read into a `Deployment` and written from one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from blockdraft.deploy.deployment import Deployment, EngineName
from blockdraft.deploy.dialects import llamacpp, sglang, vllm
from blockdraft.deploy.dialects.notes import Note
from blockdraft.deploy.dialects.reading import Reading
from blockdraft.deploy.dialects.words import CommandLine, split_command

__all__ = ["Note", "Reading", "read_command", "read_command_line", "read_with_notes", "write_command"]

_READERS: Mapping[EngineName, Callable[[CommandLine], Reading]] = {
    "vllm": vllm.read,
    "sglang": sglang.read,
    "llamacpp": llamacpp.read,
}
_WRITERS: Mapping[EngineName, Callable[[Deployment], list[str]]] = {
    "vllm": vllm.write,
    "sglang": sglang.write,
    "llamacpp": llamacpp.write,
}


def read_command(command: str | Sequence[str]) -> Deployment:
    """Return what a command line means: of an engine, alone or in `docker run`, with variables before it.

    Args:
        command: text as a shell takes it, or words.

    Raises:
        ConfigError: it is no command of a known engine, or a part of it is wrong; the message names the flag.
    """
    return read_with_notes(command).deployment


def read_with_notes(command: str | Sequence[str]) -> Reading:
    """Return what a command line means, and what was outdated or unknown in it.

    Raises:
        ConfigError: as `read_command`.
    """
    return read_command_line(split_command(command))


def read_command_line(line: CommandLine) -> Reading:
    """Return what a command line that is already cut means.

    Raises:
        ConfigError: a part of it is wrong.
    """
    return _READERS[line.engine](line)


def write_command(deployment: Deployment) -> tuple[str, ...]:
    """Return the engine's command, ready to be started: program, flags, values.

    The environment and the container are not in it; `blockdraft.deploy.forms` writes those.

    Raises:
        ConfigError: the engine cannot say a part of the deployment.
    """
    return tuple(_WRITERS[deployment.engine](deployment))
