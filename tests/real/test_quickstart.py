"""The five-minute story, run as a user runs it: in an empty folder, with the command that is on the PATH."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.network]

SCRIPT = Path(__file__).parents[2] / "recipes" / "quickstart_cpu.sh"


def run_script(folder: Path, path: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PATH": path}
    return subprocess.run(
        ["bash", str(SCRIPT)], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


def test_a_drafter_is_trained_found_lossless_and_served(tmp_path: Path) -> None:
    here = Path(sys.executable).parent
    done = run_script(tmp_path, f"{here}{os.pathsep}{os.environ['PATH']}")
    assert done.returncode == 0, done.stderr
    said = done.stdout + done.stderr
    assert re.search(r"texts +identical, \d+ tokens", said), said
    drafter = tmp_path / "quickstart" / "run" / "best"
    assert f"{drafter.relative_to(tmp_path)} is used as draft-dspark" in said
    # It has learnt something: an untrained drafter of this kind is at 1.00 to 1.02.
    assert json.loads((drafter / "acceptance.json").read_text())["mean_acceptance_length"] > 1.05
    assert float(re.findall(r"(\d+\.\d+) tokens/round", said)[-1]) > 1


def test_without_the_package_it_says_what_to_install(tmp_path: Path) -> None:
    done = run_script(tmp_path, "/usr/bin:/bin")
    assert done.returncode == 1
    assert "pip install ." in done.stderr
    assert not list(tmp_path.iterdir())
