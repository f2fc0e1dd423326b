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
            api_key=os.environ.get(self.api_key_env),
            num_in_flight=num_in_flight,
            timeout_s=self.timeout,
        )


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
        default="OPENAI_API_KEY",
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
