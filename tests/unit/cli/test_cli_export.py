"""`blockdraft export`: the path on standard output, the rest beside it."""

import json
from pathlib import Path

import pytest

from blockdraft.models.load import load_target
from blockdraft.testing.tiny_drafters import TinyDrafter, write_tiny_drafter
from blockdraft.testing.tiny_gguf import write_tiny_gguf


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    target = write_tiny_gguf(tmp_path / "target.gguf")
    info = load_target(target, device="cpu", dtype="float32").info
    return target, write_tiny_drafter(tmp_path / "drafter", info, TinyDrafter())


def test_the_exported_file_is_named_and_drafts(run, pair: tuple[Path, Path], tmp_path: Path) -> None:
    target, drafter = pair
    result = run("export", drafter, "--to", "gguf", "--target", target, "--out", tmp_path / "out", "--type", "q8_0")
    assert result.exit_code == 0, result.output
    path = Path(result.stdout.strip())
    assert path == tmp_path / "out" / "dflash-draft-Q8_0.gguf"
    assert "draft tokens are those of the original" in result.stderr
    inspected = json.loads(run("inspect", target, path, "--json").stdout)
    assert (inspected["fits"], inspected["drafter"]["kind"]) == (True, "draft-dflash")
    answer = run("generate", "hello", "--model", target, "--drafter", path, "--max-tokens", "8", "--json")
    assert json.loads(answer.stdout)["drafter"]["layout"] == "gguf"


def test_json_holds_the_comparison(run, pair: tuple[Path, Path], tmp_path: Path) -> None:
    target, drafter = pair
    result = run("export", drafter, "--to", "z-lab", "--target", target, "--out", tmp_path / "out", "--json")
    report = json.loads(result.stdout)
    assert (report["layout"], report["stored_type"]) == ("z-lab", "bf16")
    assert 0 < report["comparison"]["share_equal"] <= 1


def test_what_the_layout_cannot_say_is_a_usage_error(run, pair: tuple[Path, Path], tmp_path: Path) -> None:
    target, drafter = pair
    result = run("export", drafter, "--to", "deepspec", "--target", target, "--out", tmp_path / "out")
    assert result.exit_code == 2
    assert "--to z-lab does" in result.stderr
