"""What one request's times say, and that a run is the same after it was kept."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from made_runs import cells, made_run, made_sample

from blockdraft.bench.speed.records import SCHEMA, Failure, read_run, write_run
from blockdraft.errors import ConfigError


def sample(**changes):
    return replace(
        made_sample(0.1),
        **{
            "chunk_s": (0.5, 0.7, 1.5),
            "chunk_tokens": None,
            "chunk_characters": (4, 8, 28),
            "num_tokens": 11,
            **changes,
        },
    )


def test_time_per_token_leaves_the_first_token_and_its_wait_out() -> None:
    assert sample().tpot_s == pytest.approx((1.5 - 0.5) / 10)
    assert sample().ttft_s == 0.5
    assert sample().e2e_s == 1.5
    assert sample().gaps_s == pytest.approx([0.2, 0.8])


def test_a_first_piece_of_several_tokens_is_left_out_as_a_whole() -> None:
    assert sample(chunk_tokens=(3, 1, 7)).tpot_s == pytest.approx(1.0 / 8)


@pytest.mark.parametrize(
    "changes",
    [
        {"chunk_s": (0.5,), "chunk_characters": (4,), "num_tokens": 1},
        {"chunk_s": (), "chunk_characters": (), "num_tokens": 0},
        {"chunk_s": (0.5, 0.5), "chunk_characters": (1, 1), "num_tokens": 2},
        {"chunk_tokens": (11, 0, 0)},
        {"failure": Failure(kind="timeout", message="")},
    ],
)
def test_what_has_no_speed_has_none(changes) -> None:
    assert sample(**changes).tpot_s is None


def test_tokens_of_a_piece_come_together_and_are_shared_by_characters_if_not_told() -> None:
    assert sample(chunk_tokens=(1, 2, 8)).token_times() == [0.5] + [0.7] * 2 + [1.5] * 8
    by_characters = sample(num_tokens=10).token_times()
    assert by_characters == [0.5] + [0.7] * 2 + [1.5] * 7


def test_a_run_survives_being_kept(tmp_path: Path) -> None:
    run = made_run(dict.fromkeys(cells("code", "chat", depths=(0, 100)), 1.5), is_complete=False, energy_source="RAPL")
    path = tmp_path / "run.json"
    write_run(run, path)
    assert read_run(path) == run
    assert json.loads(path.read_text())["schema"] == SCHEMA
    assert [file.name for file in tmp_path.iterdir()] == ["run.json"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: data.pop("schema"), "no `schema`"),
        (lambda data: data.update(schema="blockdraft-bench/0"), "another schema"),
        (lambda data: data.update(machin={}), "did you mean 'machine'"),
        (lambda data: data["passes"][1]["samples"][0].update(nun_tokens=1), r"passes\.1\.samples\.0\.nun_tokens"),
        (lambda data: data.pop("passes"), "damaged at passes: "),
        (lambda data: data.update(passes=3), "damaged at passes: "),
        (lambda data: data["passes"][0].update(cell=None), r"damaged at passes\.0\.cell: "),
        (lambda data: data["passes"][0].update(role="both"), r"damaged at passes\.0\.role: .*'baseline'"),
        (lambda data: data["passes"][2].update(wall_s="1"), r"damaged at passes\.2\.wall_s: .*; faults in all: 1"),
        (lambda data: data["passes"][0]["samples"][0].pop("chunk_s"), r"damaged at passes\.0\.samples\.0: .*a time"),
        (lambda data: data["passes"][0]["samples"][0].update(num_tokens=None), r"samples\.0\.num_tokens"),
    ],
)
def test_what_is_no_run_is_refused(tmp_path: Path, change, message: str) -> None:
    path = tmp_path / "run.json"
    write_run(made_run(dict.fromkeys(cells("code"), 1.5)), path)
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))
    with pytest.raises(ConfigError, match=message):
        read_run(path)
