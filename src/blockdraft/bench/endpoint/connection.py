"""A connection to an OpenAI-compatible server: requests, patience, and errors that say what to do.

A server has two bases: the interface of OpenAI (`.../v1`), and its root, where engines keep what is their own
(`/metrics`, `/props`, `/version`). Both follow from the one URL that a user gives.
"""

from __future__ import annotations

import asyncio
import json
import re
from types import TracebackType
from typing import Any, Literal

import httpx

from blockdraft.errors import ConfigError, EndpointError, EndpointRefusedError

Base = Literal["api", "root"]

_NUM_TRIES = 4
_FIRST_PAUSE_S = 0.5
_TRY_AGAIN = (408, 409, 425, 429)
_NOT_LET_IN = (401, 403)
_VERSIONED = re.compile(r"/v\d+$")


class Connection:
    """An async connection to one model of one server; use it with `async with`.

    Raises:
        ConfigError: the URL is none.
    """

    def __init__(
        self,
        url: str,
        *,
        model: str | None = None,
        api_key: str | None = None,
        num_in_flight: int = 8,
        timeout_s: float = 600.0,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """`url` is that of the server or of its `/v1`; `timeout_s` is the longest pause inside an answer.

        `transport` is for tests.
        """
        address = url.rstrip("/")
        if not re.match(r"https?://[^/\s]+", address):
            raise ConfigError(f"{url!r} is no URL of a server; write it as in http://localhost:8000/v1")
        self.api_url = address if _VERSIONED.search(address) else f"{address}/v1"
        self.root_url = _VERSIONED.sub("", address)
        self._model = model
        self._limit = asyncio.Semaphore(num_in_flight)
        self._client = httpx.AsyncClient(
            timeout=httpx.Timeout(timeout_s, connect=10.0, pool=None),
            headers={"Authorization": f"Bearer {api_key}"} if api_key else {},
            transport=transport,
            limits=httpx.Limits(max_connections=num_in_flight),
        )

    async def __aenter__(self) -> Connection:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.aclose()

    async def models(self) -> list[dict[str, Any]]:
        """Return what the server says about its models.

        Raises:
            EndpointError: it cannot be reached or does not list them.
        """
        listing = await self.get_json("/models")
        entries = listing.get("data") if isinstance(listing, dict) else None
        if not isinstance(entries, list) or not all(isinstance(entry, dict) and "id" in entry for entry in entries):
            raise EndpointError(f"{self.api_url}/models lists no models; is this the URL of an OpenAI-compatible API?")
        return entries

    async def model(self) -> str:
        """Return the model that requests name: the one asked for, or the only one there is.

        Raises:
            EndpointError: the server cannot be reached, or serves several models or none.
        """
        if self._model is None:
            names = [str(entry["id"]) for entry in await self.models()]
            if len(names) != 1:
                raise EndpointError(
                    f"{self.api_url} serves {', '.join(names) or 'no model'}; choose one with --served-model"
                )
            self._model = names[0]
        return self._model

    async def get_json(self, path: str, base: Base = "api") -> Any:
        """Return the parsed answer to a GET.

        Raises:
            EndpointRefusedError: there is no such route, or it is not for us.
            EndpointError: the server cannot be reached or answers something else than JSON.
        """
        return self._parsed(await self._send("GET", path, base), path)

    async def get_text(self, path: str, base: Base = "root") -> str:
        """Return the text that answers a GET.

        Raises:
            EndpointRefusedError: there is no such route.
            EndpointError: the server cannot be reached.
        """
        return (await self._send("GET", path, base)).text

    async def post_json(self, path: str, body: dict[str, Any], base: Base = "api") -> dict[str, Any]:
        """Return the parsed answer to a POST of one JSON object.

        Raises:
            EndpointRefusedError: the server does not take this request.
            EndpointError: it cannot be reached or answers something else than a JSON object.
        """
        parsed = self._parsed(await self._send("POST", path, base, body), path)
        if not isinstance(parsed, dict):
            raise EndpointError(f"{path} of {self.root_url} answers with {type(parsed).__name__}, not an object")
        return parsed

    async def find_json(self, path: str, base: Base = "root") -> dict[str, Any] | None:
        """Return the object that answers a GET; None if the server has no such route or does not show it."""
        try:
            parsed = await self.get_json(path, base)
        except EndpointError:
            return None
        return parsed if isinstance(parsed, dict) else None

    async def find_json_list(self, path: str, base: Base = "root") -> list[Any] | None:
        """Return the array that answers a GET; None if the server has no such route or does not show it."""
        try:
            parsed = await self.get_json(path, base)
        except EndpointError:
            return None
        return parsed if isinstance(parsed, list) else None

    def stream(self, path: str, body: dict[str, Any]) -> Any:
        """Return a context manager around an `httpx.Response` whose lines come as the server sends them.

        Requests are not repeated: what is timed must not hide a second try.
        """
        return self._client.stream("POST", self.api_url + path, json=body)

    async def _send(self, method: str, path: str, base: Base, body: dict[str, Any] | None = None) -> httpx.Response:
        """Send a request, again after a while if the server is busy or away for a moment."""
        address = (self.api_url if base == "api" else self.root_url) + path
        problem = ""
        for attempt in range(_NUM_TRIES):
            if attempt:
                await asyncio.sleep(_FIRST_PAUSE_S * 2 ** (attempt - 1))
            try:
                async with self._limit:
                    response = await self._client.request(method, address, json=body)
            except httpx.InvalidURL as error:
                raise ConfigError(f"{address} is no URL: {error}") from error
            except httpx.ReadTimeout as error:
                raise EndpointError(
                    f"{address} gave no answer within the time allowed ({error or 'timeout'})"
                ) from error
            except httpx.TransportError as error:
                problem = f"{type(error).__name__} {error}".strip()
                continue
            if response.status_code in _NOT_LET_IN:
                raise EndpointRefusedError(
                    f"{address} does not let us in ({response.status_code}); put its key into the variable that "
                    "--api-key-env names",
                    response.status_code,
                )
            if response.status_code in _TRY_AGAIN or response.status_code in (502, 503, 504):
                problem = f"{response.status_code} {message_of(response)}"
                continue
            if not response.is_success:
                raise EndpointRefusedError(
                    f"{address} refuses the request ({response.status_code}): {message_of(response)}",
                    response.status_code,
                )
            return response
        raise EndpointError(
            f"{address} gave no answer in {_NUM_TRIES} tries ({problem}); is the server running, and the URL right?"
        )

    def _parsed(self, response: httpx.Response, path: str) -> Any:
        try:
            return response.json()
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise EndpointError(
                f"{path} of {self.root_url} answers something that is not JSON: is the URL right?"
            ) from error


def message_of(response: httpx.Response) -> str:
    """Return what an error answer says, in one short line."""
    try:
        error = response.json()
        error = error.get("error", error)
        text = error.get("message", error) if isinstance(error, dict) else error
    except (ValueError, AttributeError):
        text = response.text
    return " ".join(str(text).split())[:200]
