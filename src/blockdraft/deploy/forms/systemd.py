"""A deployment as a unit of systemd."""

from __future__ import annotations

from blockdraft.deploy.deployment import Deployment
from blockdraft.deploy.dialects import write_command
from blockdraft.deploy.forms.command import docker_words
from blockdraft.deploy.forms.names import service_name

_TEMPLATE = """\
[Unit]
Description={title}
Wants=network-online.target
After=network-online.target{after}

[Service]
{environment}ExecStart={start}
{stop}Restart=on-failure
RestartSec=10
TimeoutStopSec=60

[Install]
WantedBy=multi-user.target
"""


def systemd(deployment: Deployment, program: str | None = None) -> str:
    """Return a unit that runs a deployment and restarts it when it fails.

    Args:
        deployment: what runs; as a container where it has one.
        program: the engine's program by its whole path; None to have it found on systemd's path.

    Raises:
        ConfigError: the engine cannot say a part of the deployment.
    """
    name = service_name(deployment)
    stop = after = ""
    variables = "".join(
        f"Environment={_quote(f'{key}={value}', keep_dollar=True)}\n" for key, value in deployment.environment.items()
    )
    if deployment.container is not None:
        words = docker_words(deployment)
        words = ["/usr/bin/docker", "run", "--rm", "--name", name, *[w for w in words[2:] if w not in _FOR_A_TERMINAL]]
        stop, after, variables = f"ExecStop=/usr/bin/docker stop {name}\n", " docker.service", ""
    else:
        words = list(write_command(deployment))
        words = ["/usr/bin/env", *words] if program is None else [program, *words[1:]]
    start = " ".join(_quote(word) for word in words)
    title = f"{deployment.target} on {deployment.engine}".replace("%", "%%")
    return _TEMPLATE.format(title=title, after=after, environment=variables, start=start, stop=stop)


_FOR_A_TERMINAL = ("--rm", "-d", "--detach", "-it", "-ti", "-i", "-t", "--interactive", "--tty")
"""What `docker run` is told at a terminal and not by systemd, which waits for it."""


def _quote(word: str, *, keep_dollar: bool = False) -> str:
    """Return a word as systemd reads it: `%` and `$` doubled, quoted where a character wants it."""
    text = word.replace("%", "%%")
    text = text if keep_dollar else text.replace("$", "$$")
    if text and not any(mark in text for mark in " \t\n\"'\\;"):
        return text
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t")
    return f'"{escaped}"'
