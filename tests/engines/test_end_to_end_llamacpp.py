"""plan, serve, verify and bench against llama.cpp's server, as users run them, for each way that it drafts.

BLOCKDRAFT_LLAMA_SERVER names llama-server if it is not on the PATH. `make engines` builds one and runs this.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from served import Served, blockdraft, is_alive, write_prompts

from blockdraft.models.references import DEFAULT_MODEL, resolve

pytestmark = [pytest.mark.engines, pytest.mark.slow, pytest.mark.network]

VARIANTS = {
    "plain": "none",
    "ngram-mod": "ngram-mod",
    "draft-dflash": "{dflash}",
    "draft-dspark": "{dspark}",
    "ngram-mod,draft-dflash": "ngram-mod,{dflash}",
}
"""What llama-server calls it, and what `--drafter` is given."""

SIZES = ("--max-tokens", "48", "--num-prompts", "2", "--bias", "0.2", "--power", "0.8")
DRAFTING = [name for name in VARIANTS if name != "plain"]


@pytest.fixture(scope="session")
def environment() -> dict[str, str]:
    """Return variables that put llama-server on the PATH, and keep it to one thread.

    Without LLAMA_ARG_REPACK=0 a server that GCC 12 built dies on processors with AMX.
    """
    program = os.environ.get("BLOCKDRAFT_LLAMA_SERVER") or shutil.which("llama-server")
    if not program:
        pytest.skip("there is no llama-server: `make engines` builds one, or set BLOCKDRAFT_LLAMA_SERVER to yours")
    folder = str(Path(program).resolve().parent)
    own = {"LLAMA_ARG_THREADS": "1", "LLAMA_ARG_REPACK": "0", "LLAMA_ARG_ENDPOINT_METRICS": "1"}
    return own | {"PATH": folder + os.pathsep + os.environ["PATH"]}


@pytest.fixture(scope="session")
def exported(environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the shipped drafters as GGUF files, by method."""
    files = {}
    for method in ("dflash", "dspark"):
        folder = tmp_path_factory.mktemp(method) / "out"
        done = blockdraft("export", f"builtin:smollm2-{method}", "--to", "gguf", "--out", folder, environment={})
        assert done.returncode == 0, done.stderr
        (files[method],) = map(str, folder.glob("*.gguf"))
    return files


@pytest.fixture(scope="session")
def target_file() -> str:
    return str(resolve(DEFAULT_MODEL).path)


def asked_for(variant: str, target_file: str, exported: dict[str, str]) -> list[str]:
    """Return what `plan` and `serve` are told."""
    who = VARIANTS[variant].format(**exported)
    return [target_file, "--engine", "llamacpp", "--context", "2048", "--drafter", who]


@pytest.fixture(scope="module", params=list(VARIANTS))
def variant(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def served(
    variant: str,
    target_file: str,
    exported: dict[str, str],
    environment: dict[str, str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Served]:
    log = tmp_path_factory.mktemp("log") / "engine.log"
    arguments = asked_for(variant, target_file, exported)
    running = Served(arguments, environment=environment, log=log, timeout_s=120)
    yield running
    running.stop()


@pytest.fixture(scope="module")
def plain(target_file, exported, environment, tmp_path_factory) -> Iterator[Served]:
    log = tmp_path_factory.mktemp("log") / "plain.log"
    arguments = asked_for("plain", target_file, exported)
    running = Served(arguments, environment=environment, log=log, timeout_s=120)
    yield running
    running.stop()


@pytest.fixture(scope="session")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_prompts(tmp_path_factory.mktemp("prompts") / "prompts.jsonl")


def test_the_planned_command_is_taken(variant, target_file, exported, environment) -> None:
    done = blockdraft("plan", *asked_for(variant, target_file, exported), "--json", environment=environment)
    assert done.returncode == 0, done.stderr
    (plan,) = json.loads(done.stdout)["plans"]
    assert plan["can_start"]
    words = plan["command"]
    types = words[words.index("--spec-type") + 1] if "--spec-type" in words else "plain"
    assert types == variant
    # Flags are taken one after another, and the last one ends it.
    parsed = subprocess.run(
        [*words, "--version"], env=os.environ | environment, capture_output=True, text=True, check=False
    )
    assert parsed.returncode == 0, parsed.stderr


def test_what_was_loaded_and_whether_it_drafts_is_told(variant, served, target_file) -> None:
    engine = served.told["engine"]
    assert engine["engine"] == "llamacpp"
    assert engine["details"]["model_path"] == target_file
    assert engine["context_length"] == 2048
    assert served.told["does_draft"] is (variant != "plain")
    assert engine["method"] == (None if variant == "plain" else variant)
    print(f"{variant}: {served.told['drafted']}")


def test_verify_passes_where_something_is_drafted(variant, served, prompts, environment) -> None:
    done = blockdraft("verify", served.url, "--prompts", prompts, *SIZES, "--json", environment=environment)
    report = json.loads(done.stdout)
    verdicts = {check["name"]: check["verdict"] for check in report["checks"]}
    print(f"{variant}: {verdicts}, {report['drafts']}")
    assert verdicts.pop("greedy") == "pass", report["checks"]
    if variant == "plain":
        assert (set(verdicts.values()), done.returncode) == ({"inconclusive"}, 3), report["checks"]
    else:
        assert (set(verdicts.values()), done.returncode) == ({"pass"}, 0), report["checks"]
        assert report["drafts"]["num_accepted"] > 0


@pytest.mark.parametrize("variant", DRAFTING, indirect=True, scope="module")
def test_bench_keeps_a_result_with_both_sides(  # noqa: PLR0917
    variant, served, plain, prompts, environment, tmp_path: Path
) -> None:
    out = tmp_path / "run.json"
    sizes = ("--prompts", prompts, "--num-prompts", "1", "--max-tokens", "64", "--repeats", "1")
    done = blockdraft("bench", served.url, "--baseline", plain.url, *sizes, "--out", out, environment=environment)
    assert done.returncode == 0, done.stderr
    assert "times as fast as the baseline" in done.stdout
    run = json.loads(out.read_text(encoding="utf-8"))
    assert run["is_complete"]
    own, other = run["sides"]
    assert (own["details"]["server"]["method"], other["details"]["server"]["method"]) == (variant, None)
    again = blockdraft("bench", out, "--json", environment=environment)
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["run"]["is_complete"]


@pytest.mark.parametrize("variant", ["plain", "draft-dflash", "draft-dspark"], indirect=True, scope="module")
def test_doctor_tells_a_server_that_drafts_from_one_that_does_not(variant, served, environment) -> None:
    sizes = ("--lengths", "24,64", "--depths", "300")
    done = blockdraft("doctor", "--url", served.url, *sizes, "--json", environment=environment)
    report = json.loads(done.stdout)
    names = [finding["name"] for finding in report["server"]["findings"]]
    print(f"{variant}: {names}")
    assert ("never-drafts" in names) is (variant == "plain"), done.stdout
    assert done.returncode == (1 if variant == "plain" else 0), done.stdout


def test_it_ends_with_all_that_it_started(target_file, exported, environment, tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    arguments = asked_for("ngram-mod,draft-dflash", target_file, exported)
    running = Served(arguments, environment=environment, log=log, timeout_s=120)
    code, said = running.stop()
    assert code == 130
    assert "Traceback" not in said
    assert [event["name"] for event in running.events][-2:] == ["stopping", "stopped"]
    assert not is_alive(running.engine_pid)
    with pytest.raises(OSError, match="refused"), socket.create_connection(("127.0.0.1", running.port)):
        pass


def test_an_engine_that_cannot_load_its_drafter_is_told_with_its_own_words(target_file, environment) -> None:
    command = f"llama-server --model {target_file} --spec-type draft-dflash --spec-draft-model {target_file}"
    done = blockdraft("serve", "--quiet", "--force", f"{command} --port 18099", environment=environment)
    assert done.returncode == 1
    assert "before it was ready; its last lines:" in done.stderr
