"""`blockdraft verify`: the command around tests/unit/bench/endpoint."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest

from blockdraft.bench.endpoint import connection
from blockdraft.testing.scripted_server import TIES, Faults, ScriptedServer

URL, OTHER_URL = "http://drafts", "http://plain"
QUICK = ("--bias", "0.1", "--max-tokens", "16", "--num-prompts", "6")


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch):
    """Return a function that puts scripted servers at URL and OTHER_URL; elsewhere is nothing."""

    def serve(server: ScriptedServer, other: ScriptedServer | None = None) -> None:
        transports = {"drafts": server.transport(), "plain": other.transport() if other else None}

        async def handle(_self: httpx.AsyncHTTPTransport, request: httpx.Request) -> httpx.Response:
            transport = transports.get(request.url.host)
            if transport is None:
                raise httpx.ConnectError("connection refused", request=request)
            return await transport.handle_async_request(request)

        monkeypatch.setattr(httpx.AsyncHTTPTransport, "handle_async_request", handle)
        monkeypatch.setattr(connection, "_FIRST_PAUSE_S", 0.0)

    return serve


def test_a_sound_server_passes_and_each_check_says_why(serve, run) -> None:
    serve(ScriptedServer())
    result = run("verify", URL, *QUICK)
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0] == "scripted, vllm 0.33.0, /v1/completions of vLLM"
    assert lines[1] == "baseline: the server itself, one token at a time, which no engine drafts"
    assert [line.split()[:2] for line in lines[2:5]] == [
        ["pass", f"{name}:"] for name in ("greedy", "sampling", "drafts")
    ]
    assert "96 places of 6 prompts are what the baseline says" in lines[2]
    assert "a bias of 10 points in the most likely token is found with power 0.9" in lines[3]
    assert lines[5:] == ["verdict: pass"]
    assert result.stderr == ""


def test_a_lossy_server_fails_and_the_places_are_shown(serve, run) -> None:
    serve(ScriptedServer(faults=Faults(greedy_error_rate=0.2)))
    result = run("verify", URL, "--no-sampling", "--max-tokens", "32")
    assert result.exit_code == 1
    shown = [line for line in result.stdout.splitlines() if line.startswith("  fault: ")]
    assert len(shown) == 8
    assert " instead of " in shown[0]
    assert shown[0].endswith(" nat)")
    assert " more (--json has all)" in result.stdout
    assert "sampling" not in result.stdout
    assert result.stdout.endswith("verdict: fail\n")


def test_what_cannot_be_told_has_its_own_exit_code(serve, run) -> None:
    serve(ScriptedServer(only_chats=True))
    result = run("verify", URL)
    assert result.exit_code == 3
    assert "name a server of the same target without drafts with --baseline" in result.stdout
    assert result.stdout.endswith("verdict: inconclusive\n")


def test_a_baseline_server_is_asked_under_its_own_name(serve, run) -> None:
    server, baseline = ScriptedServer(only_chats=True), ScriptedServer(faults=Faults(never_drafts=True))
    serve(server, baseline)
    arguments = ("verify", URL, "--baseline", OTHER_URL, "--baseline-model", "scripted", "--no-sampling")
    assert run(*arguments).exit_code == 0
    assert baseline.num_requests > server.num_requests > 12


def test_the_bound_of_near_ties_is_the_users(serve, run) -> None:
    serve(ScriptedServer(shapes=TIES, faults=Faults(tips_ties=True)))
    quick = ("verify", URL, "--no-sampling", "--max-tokens", "24")
    default, strict = run(*quick), run(*quick, "--near-tie", "0.01")
    assert (default.exit_code, strict.exit_code) == (0, 1)
    assert "near-ties aside" in default.stdout
    assert "(bound 0.01)" in strict.stdout


def test_json_is_one_object_with_the_command(serve, run) -> None:
    serve(ScriptedServer(engine="openai"))
    result = run("verify", URL, *QUICK, "--json")
    assert result.exit_code == 0
    record = json.loads(result.stdout)
    assert (record["verdict"], record["url"]) == ("pass", URL)
    assert record["command"][1:3] == ["verify", URL]
    assert record["sampling"]["plan"]["bias"] == 0.1
    assert record["greedy"]["num_places"] == 6 * 16
    assert any("does not tell how much it drafts" in text for text in record["notes"])


def test_notes_go_to_the_other_stream(serve, run) -> None:
    serve(ScriptedServer(engine="openai"))
    result = run("verify", URL, "--no-sampling")
    assert "note: the server does not tell how much it drafts" in result.stderr
    assert "note:" not in result.stdout


def test_prompts_can_be_the_users_own(serve, run, tmp_path: Path) -> None:
    serve(ScriptedServer())
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"id": "mine", "category": "chat", "turns": ["Hello you"]}\n', encoding="utf-8")
    record = json.loads(run("verify", URL, "--no-sampling", "--prompts", str(path), "--json").stdout)
    assert record["greedy"]["num_prompts"] == 1


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("localhost:8000",), 2, "is no URL of a server"),
        (("http://nowhere",), 1, "is the server running"),
        ((URL, "--baseline", "http://nowhere"), 1, "http://nowhere/v1/models gave no answer"),
        ((URL, "--baseline", "nowhere"), 2, "is no URL of a server"),
        ((URL, "--max-tokens", "1"), 2, "max_tokens must be 2 or more"),
        ((URL, "--near-tie", "-1"), 2, "near_tie is a distance"),
        ((URL, "--bias", "0.6"), 2, "bias must be between 0 and 0.5"),
        ((URL, "--power", "1"), 2, "power must be between 0.5 and 1"),
        ((URL, "--false-alarm", "0"), 2, "false_alarm must be between 0 and 0.5"),
        ((URL, "--sample-tokens", "1"), 2, "at least 2 tokens"),
        ((URL, "--baseline-model", "scripted"), 2, "--baseline-model needs --baseline"),
        ((URL, "--no-sampling", "--bias", "0.1"), 2, "--no-sampling leaves nothing for --bias"),
        ((URL, "--prompts", "no.jsonl"), 2, "does not exist"),
        ((), 2, "Missing argument"),
    ],
)
def test_wrong_use_is_told_in_one_line(serve, run, arguments: tuple[str, ...], code: int, message: str) -> None:
    serve(ScriptedServer())
    result = run("verify", *arguments)
    assert result.exit_code == code, result.output
    assert message in result.stderr
    assert "Traceback" not in result.output
