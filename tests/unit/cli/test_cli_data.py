"""`blockdraft data` makes a folder, says what is in it, and keeps it when it is stopped."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from blockdraft.models.tokenizer import load_tokenizer
from blockdraft.train.conversations import DataManifest, read_conversations


@pytest.fixture
def prompt_file(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps({"id": f"p{n}", "prompt": f"hello {n}"}) + "\n" for n in range(6)))
    return path


def test_it_fills_a_folder_and_reports(run, checkpoints, prompt_file: Path, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    arguments = ["data", folder, prompt_file, "-m", checkpoints.target, "-n", "5", "--held-out", "0.3", "--json"]
    result = run(*arguments)
    assert result.exit_code == 0, result.stderr
    report = json.loads(result.stdout)
    assert report["num_new"] == 6
    assert report["manifest"] == json.loads((folder / "manifest.json").read_text())
    assert report["manifest"]["num_conversations"] + report["manifest"]["num_held_out"] == 6
    assert f"{folder}: {report['manifest']['num_conversations']} conversations" in result.stderr
    DataManifest.read(folder).check_tokenizer(load_tokenizer(Path(checkpoints.target)))
    again = run(*arguments)
    assert json.loads(again.stdout)["num_new"] == 0


def test_other_settings_on_the_same_folder_are_refused(run, checkpoints, prompt_file: Path, tmp_path: Path) -> None:
    arguments = ["data", tmp_path / "data", prompt_file, "-m", checkpoints.target, "-n", "3"]
    assert run(*arguments).exit_code == 0
    result = run(*arguments, "--temperatures", "0")
    assert result.exit_code == 1
    assert "choose another folder" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "there is nothing to make"),
        (["--self-written", "1", "--temperatures", "warm"], "no mix of temperatures"),
        (["--self-written", "1", "--temperatures", "0:0"], "a share above 0"),
        (["--self-written", "1", "--held-out", "2"], "held-out share"),
        (["--self-written", "1", "--top-p", "3"], "top_p"),
        (["--self-written", "1", "--thinking"], "no switch for thinking"),
        (["none.jsonl"], "does not exist"),
    ],
)
def test_wrong_use_is_one_clear_line(run, checkpoints, tmp_path: Path, arguments: list[str], message: str) -> None:
    result = run("data", tmp_path / "data", "-m", checkpoints.target, *arguments)
    assert result.exit_code in (1, 2)
    assert message in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.slow
def test_an_interrupt_keeps_what_is_finished_and_exits_130(checkpoints, tmp_path: Path) -> None:
    prompts = tmp_path / "many.jsonl"
    prompts.write_text("".join(json.dumps({"id": f"p{n}", "prompt": f"hello {n}"}) + "\n" for n in range(3000)))
    folder = tmp_path / "data"
    command = [sys.executable, "-m", "blockdraft.cli.main", "data", folder, prompts, "-m", checkpoints.target]
    with subprocess.Popen(
        [*map(str, command), "-n", "60", "--batch-size", "8"],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    ) as process:
        rows = folder / "conversations.jsonl"
        deadline = time.monotonic() + 120
        while not (rows.exists() and rows.stat().st_size) and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "interrupted" in errors
    kept = list(read_conversations(folder))
    assert 0 < len(kept) < 3000
    assert DataManifest.read(folder).num_conversations == len(kept)
