"""`blockdraft calibrate`: the command around the fit, which tests/unit/train/test_confidence.py looks at."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

from blockdraft.models import load


@pytest.fixture
def drafter(checkpoints, tmp_path) -> Path:
    return Path(shutil.copytree(checkpoints.dspark, tmp_path / "drafter"))


@pytest.fixture
def prompts(tmp_path) -> Path:
    path = tmp_path / "held_out.jsonl"
    lines = [json.dumps({"id": str(n), "category": "chat", "turns": [f"prompt {n}"]}) for n in range(6)]
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


@pytest.fixture
def often_right(monkeypatch) -> None:
    """Let the target know two tokens only, so that a random drafter is often right."""
    load_model = load.load_model

    def load_two_tokens(*arguments, **options):
        model = load_model(*arguments, **options)
        head = model.target.head_weight
        direction = 50 * head[70]
        head.zero_()
        head[70], head[80] = direction, -direction
        return model

    monkeypatch.setattr(load, "load_model", load_two_tokens)


@pytest.fixture
def calibrate(run, checkpoints, drafter, prompts):
    def calibrate(*arguments: str):
        common = ("--target", checkpoints.target, "--dtype", "float32", "--max-tokens", "200")
        return run("calibrate", str(drafter), *common, "--prompts", str(prompts), *arguments)

    return calibrate


@pytest.mark.usefixtures("often_right")
class TestCalibrate:
    def test_it_shows_and_saves_what_it_found(self, calibrate, drafter) -> None:
        result = calibrate()
        assert result.exit_code == 0, result.output
        assert "ECE" in result.stdout
        assert f"saved in {drafter}" in result.stdout
        record = json.loads((drafter / "calibration.json").read_text())
        config = json.loads((drafter / "config.json").read_text())
        assert config["confidence_temperatures"] == record["confidence_temperatures"]
        assert record["prompts"][0]["name"] == "held_out.jsonl"

    def test_json_and_the_plot(self, calibrate, tmp_path) -> None:
        result = calibrate("--json", "--plot", str(tmp_path / "plot.png"))
        assert result.exit_code == 0, result.output
        record = json.loads(result.stdout)
        assert record["saved"] is True
        assert len(record["before"]) == len(record["after"]) == len(record["confidence_temperatures"])
        assert (tmp_path / "plot.png").exists()

    def test_a_dry_run_leaves_the_drafter_alone(self, calibrate, drafter) -> None:
        before = (drafter / "config.json").read_bytes()
        result = calibrate("--dry-run", "--json")
        assert json.loads(result.stdout)["saved"] is False
        assert (drafter / "config.json").read_bytes() == before
        assert not (drafter / "calibration.json").exists()


def test_a_drafter_that_is_never_right_is_told_so(calibrate, drafter) -> None:
    before = (drafter / "config.json").read_bytes()
    result = calibrate()
    assert result.exit_code == 1
    assert "more prompts" in result.output
    assert (drafter / "config.json").read_bytes() == before


def test_a_dflash_drafter_has_no_head_to_calibrate(run, checkpoints, prompts) -> None:
    result = run("calibrate", checkpoints.dflash, "--target", checkpoints.target, "--prompts", str(prompts))
    assert result.exit_code == 2
    assert "draft-dflash" in result.output


def test_a_plot_is_refused_before_the_work_if_it_cannot_be_drawn(calibrate, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = calibrate("--plot", "x.png")
    assert result.exit_code == 2
    assert "blockdraft[plots]" in result.output
