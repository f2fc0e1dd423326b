"""`blockdraft doctor` on files and on servers, as a user meets it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from blockdraft.bench.endpoint.connection import Connection
from blockdraft.cli.server_options import ServerOptions
from blockdraft.testing.scripted_server import Faults, ScriptedServer


@pytest.fixture
def serve(monkeypatch):
    """Return a function that puts a scripted server behind every URL."""

    def put(**faults: object) -> ScriptedServer:
        server = ScriptedServer(faults=Faults(**faults))

        def connect(self: ServerOptions, url: str, **_: object) -> Connection:
            return Connection(url, transport=server.transport())

        monkeypatch.setattr(ServerOptions, "connect", connect)
        return server

    return put


def edited(drafter: str, folder: Path, **changes: object) -> Path:
    shutil.copytree(drafter, folder)
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return folder


def test_a_sound_pair_is_told_so(run, checkpoints, tmp_path) -> None:
    drafter = edited(checkpoints.dspark, tmp_path / "sound", mask_token_id=0)  # a special token, no word
    result = run("doctor", checkpoints.target, str(drafter))
    assert result.exit_code == 0
    assert "on paper nothing is wrong" in result.stdout


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"target_layer_ids": [0, 99]}, "layer-ids"),
        ({"target_layer_ids": [0]}, "fc-width"),
        ({"mask_token_id": 999_999}, "mask-token"),
        ({"num_target_layers": 40}, "target-depth"),
    ],
)
def test_a_broken_pair_is_named_and_exits_with_1(run, checkpoints, tmp_path, change, name) -> None:
    result = run("doctor", checkpoints.target, str(edited(checkpoints.dspark, tmp_path / "bad", **change)))
    assert result.exit_code == 1
    assert f"error   {name}: " in result.stdout
    assert "fix: " in result.stdout


def test_measuring_prints_every_reading(run, checkpoints) -> None:
    result = run("doctor", checkpoints.target, checkpoints.dspark, "--measure", "--num-prompts", 1, "--json")
    found = json.loads(result.stdout)["pair"]
    assert found["readings"][0]["variant"] == "as written"
    assert {one["num_places"] for one in found["readings"]} == {found["readings"][0]["num_places"]}
    assert len(found["readings"]) > 2


def test_what_cannot_be_loaded_is_told_and_not_measured(run, checkpoints, tmp_path) -> None:
    bad = edited(checkpoints.dspark, tmp_path / "bad", target_layer_ids=[0])
    result = run("doctor", checkpoints.target, str(bad), "--measure")
    assert "error   not-measured: nothing was measured: " in result.stdout
    assert result.exit_code == 1


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], "name a target and a drafter, or a server"),
        (["TARGET"], "name a target and a drafter"),
        (["--url", "http://x", "--measure"], "--measure needs"),
        (["--url", "here"], "is no URL"),
        (["--url", "http://x", "--api-key-env", "NOT_SET_HERE"], "there is no such environment variable"),
        (["--url", "http://x", "--lengths", "a"], "not a list of whole numbers"),
        (["--url", "http://x", "--lengths", "90,30"], "lengths must rise"),
        (["--url", "http://x", "--expect", "0.5"], "more than 1"),
    ],
)
def test_wrong_input_is_told_before_anything_is_asked(run, checkpoints, arguments, expected) -> None:
    result = run("doctor", *(checkpoints.target if one == "TARGET" else one for one in arguments))
    assert result.exit_code == 2
    assert expected in result.stderr


def test_no_block_drafter_is_refused(run, checkpoints) -> None:
    result = run("doctor", checkpoints.target, checkpoints.other)
    assert result.exit_code == 2
    assert "is a language model; looked at are DFlash and DSpark drafters" in result.stderr


def test_a_sound_server_holds(run, serve) -> None:
    serve()
    result = run("doctor", "--url", "http://scripted")
    assert result.exit_code == 0, result.stdout
    assert "drafting holds wherever it was probed" in result.stdout
    assert "tokens of an answer 200 to 400: " in result.stdout


@pytest.mark.parametrize(
    ("fault", "name"),
    [({"never_drafts": True}, "never-drafts"), ({"collapses_after": 200}, "late-collapse")],
)
def test_a_server_that_quietly_stops_drafting_is_named(run, serve, fault, name) -> None:
    serve(**fault)
    result = run("doctor", "--url", "http://scripted", "--json")
    assert result.exit_code == 1
    assert name in [one["name"] for one in json.loads(result.stdout)["server"]["findings"]]


def test_a_pair_and_a_server_at_once(run, serve, checkpoints) -> None:
    serve()
    result = run("doctor", checkpoints.target, checkpoints.dspark, "--url", "http://scripted", "--json")
    found = json.loads(result.stdout)
    assert found["pair"]["num_rules"] >= 10
    assert found["server"]["drafts"]["num_accepted"] > 0
