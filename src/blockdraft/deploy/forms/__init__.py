"""A deployment in the forms that people run: a command, docker, compose, systemd, Kubernetes, several machines."""

from collections.abc import Callable, Mapping

from blockdraft.deploy.deployment import Deployment
from blockdraft.deploy.forms.command import command, command_words, docker, docker_words, shell_text
from blockdraft.deploy.forms.nodes import NodeCommand, node_commands
from blockdraft.deploy.forms.systemd import systemd

__all__ = [
    "FORMS",
    "NodeCommand",
    "command",
    "command_words",
    "docker",
    "docker_words",
    "node_commands",
    "shell_text",
    "systemd",
]


def _compose(deployment: Deployment) -> str:
    from blockdraft.deploy.forms.compose import compose  # noqa: PLC0415 - it imports yaml

    return compose(deployment)


def _kubernetes(deployment: Deployment) -> str:
    from blockdraft.deploy.forms.kubernetes import kubernetes  # noqa: PLC0415 - it imports yaml

    return kubernetes(deployment)


FORMS: Mapping[str, Callable[[Deployment], str]] = {
    "command": command,
    "docker": docker,
    "compose": _compose,
    "systemd": systemd,
    "kubernetes": _kubernetes,
}
"""By name, what writes a form; each ends with a newline and takes `#` for a comment."""
