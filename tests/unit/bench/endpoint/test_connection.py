"""A connection finds both bases, is patient with a busy server, and says what to do about any other."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from blockdraft.bench.endpoint import connection as module
from blockdraft.bench.endpoint.connection import Connection
from blockdraft.errors import ConfigError, EndpointError, EndpointRefusedError

MODELS = {"data": [{"id": "the-model"}]}


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_FIRST_PAUSE_S", 0.0)


def ask(handler: Callable[[httpx.Request], httpx.Response], do: Callable[[Connection], Any], **options: Any) -> Any:
    async def run() -> Any:
        async with Connection("http://here", transport=httpx.MockTransport(handler), **options) as connection:
            return await do(connection)

    return asyncio.run(run())


@pytest.mark.parametrize(
    ("url", "api", "root"),
    [
        ("http://here:8000", "http://here:8000/v1", "http://here:8000"),
        ("http://here:8000/v1/", "http://here:8000/v1", "http://here:8000"),
        ("https://here/models/a/v1", "https://here/models/a/v1", "https://here/models/a"),
    ],
)
def test_both_bases_follow_from_one_url(url: str, api: str, root: str) -> None:
    connection = Connection(url)
    assert (connection.api_url, connection.root_url) == (api, root)


@pytest.mark.parametrize("url", ["localhost:8000", "http://", "ftp://here"])
def test_what_is_no_url_is_refused_before_anything_is_sent(url: str) -> None:
    with pytest.raises(ConfigError, match="is no URL of a server"):
        Connection(url)


def test_the_only_model_is_found_and_the_key_is_sent() -> None:
    seen: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(f"{request.method} {request.url} {request.headers['authorization']}")
        return httpx.Response(200, json=MODELS)

    assert ask(answer, lambda connection: connection.model(), api_key="k") == "the-model"
    assert seen == ["GET http://here/v1/models Bearer k"]


@pytest.mark.parametrize(
    ("listing", "message"),
    [
        ({"data": [{"id": "a"}, {"id": "b"}]}, "serves a, b; choose one with --served-model"),
        ({"data": []}, "serves no model"),
        ({"status": "ok"}, "lists no models; is this the URL"),
        ([], "lists no models"),
    ],
)
def test_a_listing_that_does_not_name_one_model_says_what_to_do(listing: Any, message: str) -> None:
    with pytest.raises(EndpointError, match=message):
        ask(lambda _: httpx.Response(200, json=listing), lambda connection: connection.model())


def test_a_busy_server_is_asked_again_and_a_refusal_is_not() -> None:
    statuses = [503, 429, 200]
    assert ask(lambda _: httpx.Response(statuses.pop(0), json={"a": 1}), lambda one: one.get_json("/x")) == {"a": 1}
    calls = []

    def refuse(request: httpx.Request) -> httpx.Response:
        calls.append(request)
        return httpx.Response(400, json={"error": {"message": "min_p is\nnot supported"}})

    with pytest.raises(EndpointRefusedError, match="min_p is not supported") as caught:
        ask(refuse, lambda one: one.post_json("/completions", {"min_p": 0.1}))
    assert caught.value.status == 400
    assert len(calls) == 1
    assert json.loads(calls[0].content) == {"min_p": 0.1}


def test_a_server_that_is_away_is_named_with_its_address() -> None:
    def away(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("connection refused", request=request)

    with pytest.raises(EndpointError, match=r"http://here/v1/models gave no answer in 4 tries .*is the server running"):
        ask(away, lambda one: one.models())


def test_a_locked_door_asks_for_the_key() -> None:
    with pytest.raises(EndpointRefusedError, match="--api-key-env"):
        ask(lambda _: httpx.Response(401, text="no"), lambda one: one.models())


def test_an_html_page_is_no_answer() -> None:
    with pytest.raises(EndpointError, match="not JSON: is the URL right"):
        ask(lambda _: httpx.Response(200, text="<html>"), lambda one: one.models())


def test_a_route_that_is_not_there_is_nothing() -> None:
    assert ask(lambda _: httpx.Response(404, json={}), lambda one: one.find_json("/props")) is None


def test_no_more_requests_are_in_flight_than_allowed() -> None:
    open_now = most = 0

    async def slow(request: httpx.Request) -> httpx.Response:
        nonlocal open_now, most
        open_now += 1
        most = max(most, open_now)
        await asyncio.sleep(0.005)
        open_now -= 1
        return httpx.Response(200, json={})

    async def many(connection: Connection) -> None:
        await asyncio.gather(*(connection.get_json("/x") for _ in range(12)))

    ask(slow, many, num_in_flight=3)
    assert most == 3
