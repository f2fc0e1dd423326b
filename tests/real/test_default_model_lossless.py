"""The lossless gate on the real default model, as `benchmarks/lossless_default_model.py` runs it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.network]

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "lossless_default_model.py"


@pytest.mark.parametrize(("dtype", "num_prompts"), [("auto", 20), ("float32", 6)])
def test_greedy_answers_equal_plain_decoding_except_at_near_ties(dtype, num_prompts):
    """Short answers, to keep the test to minutes; docs/benchmarks.md has longer ones."""
    command = [sys.executable, str(SCRIPT), "--dtypes", dtype]
    command += ["--num-prompts", str(num_prompts), "--max-tokens", "16"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout, done.stderr
    reports = json.loads(done.stdout.splitlines()[-1])["results"]["by_dtype"][dtype]
    assert len(reports) == 8
    assert {name: report["differences"] for name, report in reports.items() if not report["is_lossless"]} == {}
    assert all(report["num_prompts"] == num_prompts for report in reports.values())
    # The gate says little if nothing was drafted or nothing was rolled back.
    drafted = {name: report["num_drafted"] for name, report in reports.items()}
    assert drafted["random draft-dflash"] > 50 * num_prompts
    assert drafted["random draft-dspark"] > 50 * num_prompts
    assert drafted["ngram-mod, n 3"] > 0
    scripted = reports["scripted, right 0 to 8 of 8"]
    assert 0 < scripted["num_accepted"] < scripted["num_drafted"]
    assert done.returncode == 0


@pytest.mark.native
def test_on_the_native_kernels_no_bit_differs_alone_or_in_a_batch():
    command = [sys.executable, str(SCRIPT), "--runtime", "native", "--dtypes", "auto", "--bitwise"]
    command += ["--num-prompts", "4", "--max-tokens", "32", "--batch-sizes", "1", "4"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout, done.stderr
    reports = json.loads(done.stdout.splitlines()[-1])["results"]["by_dtype"]["auto"]
    assert len(reports) == 22
    assert {name: report["differences"] for name, report in reports.items() if report["differences"]} == {}
    assert all(reports[name]["num_accepted"] > 0 for name in ("default", "default, 4 at once", "draft-dspark"))
    assert done.returncode == 0
