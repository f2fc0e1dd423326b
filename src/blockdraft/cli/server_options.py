"""Options of the commands that talk to a server: which one, as whom, and how patiently."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from blockdraft.cli.options import gather, section
from blockdraft.errors import ConfigError

if TYPE_CHECKING:
    from blockdraft.bench.endpoint.connection import Connection

_server = section("Server")

USUAL_KEY = "OPENAI_API_KEY"
"""The environment variable that clients of such servers look into."""


@dataclass(frozen=True, kw_only=True)
class ServerOptions:
    """How a server is reached."""

    served_model: str | None
    api_key_env: str
    timeout: float

    def connect(self, url: str, *, model: str | None = None, num_in_flight: int = 1) -> Connection:
        """Return a connection for so many requests at once; `model` overrides the option.

        Raises:
            ConfigError: it is no URL, or what talks to servers is not installed.
        """
        need_httpx()
        from blockdraft.bench.endpoint.connection import Connection  # noqa: PLC0415 - httpx is an extra

        return Connection(
            url,
            model=model or self.served_model,
            api_key=api_key(self.api_key_env),
            num_in_flight=num_in_flight,
            timeout_s=self.timeout,
        )


def api_key(variable: str) -> str | None:
    """Return the key that an environment variable holds; None if the usual one is not set.

    Raises:
        ConfigError: a variable was named and is not set.
    """
    found = os.environ.get(variable)
    if found is None and variable != USUAL_KEY:
        raise ConfigError(f"--api-key-env {variable}: there is no such environment variable")
    return found


def need_httpx() -> None:
    """Check that what talks to servers is installed.

    Raises:
        ConfigError: it is not.
    """
    try:
        import httpx  # noqa: F401, PLC0415
    except ImportError as error:
        raise ConfigError("talking to servers needs httpx: pip install 'blockdraft[endpoint]'") from error


SERVER_OPTIONS = [
    _server("--served-model", metavar="NAME", help="The model to ask for.  [default: the only one served]"),
    _server(
        "--api-key-env",
        metavar="NAME",
        default=USUAL_KEY,
        show_default=True,
        help="Environment variable with the key, if the server wants one.",
    ),
    _server(
        "--timeout",
        metavar="SECONDS",
        type=click.FloatRange(min=0, min_open=True),
        default=600.0,
        show_default=True,
        help="How long an answer may take.",
    ),
]

server_options = gather(ServerOptions, "server", SERVER_OPTIONS)
