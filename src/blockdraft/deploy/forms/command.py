"""A deployment as a command of a shell, alone or in `docker run`."""

from __future__ import annotations

from collections.abc import Sequence

from blockdraft.deploy.deployment import Deployment
from blockdraft.deploy.dialects import write_command
from blockdraft.deploy.dialects.words import quote
from blockdraft.deploy.forms.containers import Accelerator, contained, container_words

_WIDTH = 100


def command_words(deployment: Deployment) -> list[str]:
    """Return the words of a command with the variables before it; `docker run` where there is a container.

    Raises:
        ConfigError: the engine cannot say a part of the deployment.
    """
    if deployment.container is not None:
        return docker_words(deployment)
    variables = [f"{name}={value}" for name, value in deployment.environment.items()]
    return [*variables, *write_command(deployment)]


def docker_words(deployment: Deployment, accelerator: Accelerator | None = None) -> list[str]:
    """Return the words of a `docker run` command, with the engine's own image where none is given.

    Raises:
        ConfigError: there is no image, or the engine cannot say a part of the deployment.
    """
    deployment = contained(deployment, accelerator)
    container = deployment.container
    assert container is not None
    words = ["docker", "run"]
    words += ["--gpus", container.gpus] if container.gpus else []
    words += ["--ipc=host"] if container.shares_ipc else []
    words += [word for port in container.ports for word in ("-p", port)]
    words += [word for mount in container.mounts for word in ("-v", mount)]
    words += [word for name, value in deployment.environment.items() for word in ("-e", f"{name}={value}")]
    return [*words, *container.other, container.image, *container_words(deployment)]


def command(deployment: Deployment) -> str:
    """Return a deployment as text for a shell.

    Raises:
        ConfigError: the engine cannot say a part of the deployment.
    """
    return _docker_text(deployment) if deployment.container else shell_text(command_words(deployment))


def docker(deployment: Deployment, accelerator: Accelerator | None = None) -> str:
    """Return a deployment as a `docker run` command.

    Raises:
        ConfigError: there is no image, or the engine cannot say a part of the deployment.
    """
    return _docker_text(contained(deployment, accelerator))


def _docker_text(deployment: Deployment) -> str:
    """Return `docker run` with the image, and the program in it, on a line of their own."""
    words = docker_words(deployment)
    image = words.index(deployment.container.image) if deployment.container else 0
    around, within = shell_text(words[:image]), shell_text(words[image:])
    if len(around) + len(within) <= _WIDTH:
        return f"{around.rstrip()} {within}"
    return f"{around.rstrip()} \\\n  {within}"


def shell_text(words: Sequence[str]) -> str:
    """Return words as text for a shell, with a line for each flag where one line would be too long."""
    quoted = [quote(word) for word in words]
    if len(" ".join(quoted)) <= _WIDTH:
        return " ".join(quoted) + "\n"
    lines: list[list[str]] = [[]]
    for word, text in zip(words, quoted, strict=True):
        is_flag = word.startswith("-") and not word[1:2].isdigit() and word != "-m"
        if is_flag and len(lines[0]) > 1:
            lines.append([])
        lines[-1].append(text)
    return " \\\n  ".join(" ".join(line) for line in lines) + "\n"
