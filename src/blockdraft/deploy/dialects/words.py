"""From a line of shell to the words of an engine: variables before it, the wrapper around it, and the program."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import Any

from blockdraft.deploy.deployment import Container, EngineName
from blockdraft.deploy.dialects.notes import Note
from blockdraft.errors import ConfigError

_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)
_PYTHON = re.compile(r"(python|pypy)[\d.]*(\.exe)?")
_SHELL_OPERATOR = re.compile(r"(\d?>{1,2}.*|\|{1,2}|&{1,2}|;|<)")
_RUNNERS = ("sudo", "exec", "nohup", "env", "time")
"""Words before a program that do not change what it means."""

_MODULES: dict[str, EngineName] = {
    "vllm.entrypoints.openai.api_server": "vllm",
    "vllm.entrypoints.cli.main": "vllm",
    "sglang.launch_server": "sglang",
}
_IMAGES: tuple[tuple[str, EngineName], ...] = (
    ("vllm", "vllm"),
    ("sglang", "sglang"),
    ("llama.cpp", "llamacpp"),
    ("llama-cpp", "llamacpp"),
)
"""What an image's name contains, and the engine that it starts without being told."""

_REFUSED = {
    "llama-bench": "llama-bench of llama.cpp measures a model and serves none, so there is no deployment to translate; "
    "give the llama-server command that runs the model",
    "llama-cli": "llama-cli of llama.cpp answers on a terminal and serves nothing; give a llama-server command",
    "llama-batched-bench": "llama-batched-bench of llama.cpp measures a model and serves none; give a llama-server "
    "command",
    "test_dflash": "test_dflash is the test program of Lucebox, a C++ engine that is none of vllm, sglang and "
    "llamacpp: it drafts trees (--ddtree) from a safetensors drafter on one GPU and has no server; its target and "
    "drafter can be given to llama-server with --spec-type draft-dflash, after the drafter is converted to GGUF",
}
"""Programs that one might take for a server, and why they are none."""

_DOCKER_SWITCHES = frozenset(
    [
        "--rm",
        "-d",
        "--detach",
        "-i",
        "--interactive",
        "-t",
        "--tty",
        "-it",
        "-ti",
        "-dit",
        "-itd",
        "-td",
        "-di",
        "--init",
        "--privileged",
        "--read-only",
        "-P",
        "--publish-all",
        "--no-healthcheck",
        "--oom-kill-disable",
        "--sig-proxy",
        "--disable-content-trust",
        "-q",
        "--quiet",
    ]
)
_DOCKER_SAID = {
    "-p": "ports",
    "--publish": "ports",
    "-v": "mounts",
    "--volume": "mounts",
    "-e": "environment",
    "--env": "environment",
    "--gpus": "gpus",
}
_TAG = re.compile(r":v?(\d+\.\d+(?:\.\d+)?(?:[.\w]*)?)(?:[-_].*)?$")


@dataclass(frozen=True, kw_only=True)
class CommandLine:
    """One engine's command line."""

    engine: EngineName
    words: tuple[str, ...]
    """After the program: flags, values and positional words."""
    environment: dict[str, str] = field(default_factory=dict)
    container: Container | None = None
    engine_version: str | None = None
    notes: tuple[Note, ...] = ()


def split_command(command: str | Sequence[str]) -> CommandLine:
    """Return the parts of a command line, given as text of a shell or as words.

    Raises:
        ConfigError: it is no command of an engine known here, or its quotes do not close.
    """
    words = shell_words(command) if isinstance(command, str) else list(command)
    words, notes = _until_operator(words)
    environment, words = leading_environment(words)
    if not words:
        raise ConfigError("there is no command; give one like: vllm serve MODEL, or a compose file")
    if PurePath(words[0]).name in ("docker", "podman", "nerdctl"):
        return _from_docker(words, environment, notes)
    engine, rest = recognise(words)
    return CommandLine(engine=engine, words=tuple(rest), environment=environment, notes=tuple(notes))


def shell_words(text: str) -> list[str]:
    r"""Return the words of shell text; lines end at newlines unless a `\` goes before, comments are left out.

    Raises:
        ConfigError: a quote is not closed.
    """
    lines = re.sub(r"\\\s*\n", " ", text).splitlines()
    kept = [line for line in lines if line.strip() and not line.lstrip().startswith("#")]
    try:
        return shlex.split("\n".join(kept))
    except ValueError as error:
        raise ConfigError(f"the command cannot be cut into words ({error}); check its quotes") from error


def recognise(words: Sequence[str]) -> tuple[EngineName, list[str]]:
    """Return the engine that a command starts, and the words after its program.

    Raises:
        ConfigError: it starts something else.
    """
    program = PurePath(words[0].replace("\\", "/")).name.removesuffix(".exe")
    rest = list(words[1:])
    if program in _REFUSED:
        raise ConfigError(_REFUSED[program])
    if _PYTHON.fullmatch(program) and len(rest) > 1 and rest[0] == "-m" and rest[1] in _MODULES:
        served = rest[2:]
        return _MODULES[rest[1]], served[1:] if rest[1].endswith("cli.main") and served[:1] == ["serve"] else served
    if program in ("vllm", "sglang") and rest[:1] == ["serve"]:
        return ("vllm" if program == "vllm" else "sglang"), rest[1:]
    if program in ("vllm", "sglang"):
        raise ConfigError(f"{program} {rest[0] if rest else ''} serves nothing; give a command like: {program} serve")
    if program in ("llama-server", "server") or (program == "llama" and rest[:1] == ["serve"]):
        return "llamacpp", rest[1:] if program == "llama" else rest
    raise ConfigError(
        f"{words[0]!r} starts no engine that is known here; known are vllm serve, python -m "
        "vllm.entrypoints.openai.api_server, sglang serve, python -m sglang.launch_server, llama-server, and docker "
        "run with an image of one of them"
    )


def _until_operator(words: list[str]) -> tuple[list[str], list[Note]]:
    for position, word in enumerate(words):
        if _SHELL_OPERATOR.fullmatch(word):
            left_out = shlex.join(words[position:])
            text = "the command ends here for blockdraft; what follows is for the shell and left out"
            return words[:position], [Note(kind="unknown", subject=left_out, text=text)]
    return words, []


def leading_environment(words: list[str]) -> tuple[dict[str, str], list[str]]:
    """Return the variables that stand before a command, and the command."""
    environment: dict[str, str] = {}
    position = 0
    for position, word in enumerate(words):
        if _ASSIGNMENT.fullmatch(word):
            name, _, value = word.partition("=")
            environment[name] = value
        elif word not in _RUNNERS:
            return environment, words[position:]
    return environment, []


def _from_docker(words: list[str], environment: dict[str, str], notes: list[Note]) -> CommandLine:
    """Return the command that a container runs; variables before `docker` are the client's and left out."""
    if len(words) < 2 or (words[1] not in ("run", "create") and words[1:3] != ["container", "run"]):
        raise ConfigError(f"{' '.join(words[:2])} starts no engine; give a command like: docker run IMAGE ...")
    if PurePath(words[0]).name != "docker":
        text = "written as docker run"
        notes.append(Note(kind="converted", subject=words[0], text=text))
    for name in environment:
        text = "stands before docker, which does not hand it to the container; left out"
        notes.append(Note(kind="unknown", subject=name, text=text))
    said, image, rest = _cut_docker(words[2 if words[1] != "container" else 3 :])
    entrypoint = [word for word in said["--entrypoint"] if word]
    gpus = said["gpus"][-1] if said["gpus"] else None
    container = Container(
        image=image,
        ports=tuple(said["ports"]),
        mounts=tuple(said["mounts"]),
        gpus=gpus,
        shares_ipc=bool(said["shares_ipc"]),
        other=tuple(said["other"]),
    )
    variables = dict(_variable(one) for one in said["environment"])
    engine, rest = in_image(image, [*entrypoint, *rest])
    return CommandLine(
        engine=engine,
        words=tuple(rest),
        environment=variables,
        container=container,
        engine_version=version_of(image),
        notes=tuple(notes),
    )


def _cut_docker(words: list[str]) -> tuple[dict[str, list[str]], str, list[str]]:
    """Return what `docker run` is told by kind, the image, and the words after it."""
    kinds = ("ports", "mounts", "environment", "gpus", "shares_ipc", "other", "--entrypoint")
    said: dict[str, list[str]] = {kind: [] for kind in kinds}
    position = 0
    while position < len(words):
        word = words[position]
        position += 1
        if not word.startswith("-"):
            return said, word, words[position:]
        name, equals, value = word.partition("=") if word.startswith("--") else (word, "", "")
        if name in _DOCKER_SWITCHES:
            said["other"].append(word)
            continue
        if not equals:
            if position == len(words):
                raise ConfigError(f"{name} of docker run lacks its value")
            value = words[position]
            position += 1
        if name == "--ipc" and value == "host":
            said["shares_ipc"].append(value)
        elif name == "--entrypoint":
            said[name].append(value)
        elif name in _DOCKER_SAID:
            said[_DOCKER_SAID[name]].append(value)
        else:
            said["other"] += [word] if equals else [word, value]
    raise ConfigError("docker run names no image")


def in_image(image: str, words: Sequence[str]) -> tuple[EngineName, list[str]]:
    """Return the engine that an image runs with these words, and what the words leave after its program.

    Raises:
        ConfigError: neither the words nor the image say which engine it is.
    """
    if words and not words[0].startswith("-"):
        try:
            return recognise(words)
        except ConfigError:
            if PurePath(words[0]).name in _REFUSED:
                raise
    for part, engine in _IMAGES:
        if part in image.lower():
            return engine, list(words)
    raise ConfigError(f"the image {image!r} is of no engine known here (vllm, sglang, llama.cpp); give its command")


def version_of(image: str) -> str | None:
    """Return the engine's version that an image's tag names, or None."""
    match = _TAG.search(image)
    return match[1] if match else None


def _variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    return name, value if equals else f"${{{name}}}"


def with_notes(line: CommandLine, *notes: Note) -> CommandLine:
    """Return the line with more remarks."""
    return replace(line, notes=(*line.notes, *notes))


def join(value: Any) -> str:
    """Return words as text of a shell; variables and a leading `~` keep their meaning."""
    return " ".join(quote(str(word)) for word in value)


def quote(word: str) -> str:
    """Return one word as a shell reads it; `$NAME` and a leading `~/` stay what they are."""
    if word.startswith("~/"):
        return f"~/{quote(word[2:])}" if len(word) > 2 else word
    name, equals, value = word.partition("=")
    if equals and _ASSIGNMENT.fullmatch(word) and shlex.quote(word) != word:
        return f"{name}={quote(value)}"
    if re.search(r"\$([A-Za-z_]|\{)", word) and not re.search(r"[\"`\\!]", word):
        return f'"{word}"'
    return shlex.quote(word)
