"""Every command that blockdraft writes for an engine is taken by that engine's own argument parser.

BLOCKDRAFT_LLAMA_SERVER names llama-server. BLOCKDRAFT_VLLM_PARSER and BLOCKDRAFT_SGLANG_PARSER name an interpreter that
has torch and transformers; where the engine is not installed there, its unpacked wheel on PYTHONPATH is enough, after a
colon: INTERPRETER:FOLDER. Nothing is loaded and no GPU is needed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "deploy"))  # where the published configurations are

from published_configs import CONFIGS

from blockdraft.deploy.deployment import Deployment, Draft, EngineName
from blockdraft.deploy.dialects import write_command
from blockdraft.deploy.forms import node_commands
from blockdraft.deploy.translation import translate

pytestmark = [pytest.mark.engines]

PROGRAM = Path(__file__).with_name("parser_program.py")
_SAID = {"host": "0.0.0.0", "port": 8001, "served_name": "m", "context_length": 8192, "num_sequences": 4}
_SPREAD = {"tensor_parallel": 2, "max_batched_tokens": 4096}
_HF = {"dtype": "float16", "memory_fraction": 0.5, "pipeline_parallel": 2, "trust_remote_code": True, "kv_dtype": "fp8"}
FULL: dict[EngineName, Deployment] = {
    "vllm": Deployment(
        engine="vllm", target="a/b", quantization="awq", attention_backend="TRITON_ATTN", **_SAID, **_SPREAD, **_HF
    ),
    "sglang": Deployment(
        engine="sglang", target="a/b", quantization="awq", attention_backend="triton", **_SAID, **_SPREAD, **_HF
    ),
    "llamacpp": Deployment(engine="llamacpp", target="a/b", kv_dtype="q8_0", value_dtype="f16", **_SAID, **_SPREAD),
}
DRAFTS: dict[EngineName, tuple[Draft, ...]] = {
    "vllm": (
        Draft(method="dflash", model="c/d", num_draft_tokens=15, kv_dtype="bf16", attention_backend="FLASH_ATTN"),
        Draft(method="dspark", model="c/d", num_draft_tokens=7, options={"adaptive_verification": True}),
        Draft(method="mtp", num_draft_tokens=2),
        Draft(method="eagle", model="c/d", num_draft_tokens=3, options={"draft_sampling": "probabilistic"}),
        Draft(method="eagle3", model="c/d", num_draft_tokens=3, quantization="fp8", tensor_parallel=1),
        Draft(method="draft-model", model="c/d", num_draft_tokens=3, options={"verification": "block"}),
        Draft(method="ngram", num_draft_tokens=4, options={"n_match": 5, "n_match_min": 2, "on_gpu": True}),
        Draft(method="suffix", num_draft_tokens=8),
    ),
    "sglang": (
        Draft(method="dflash", model="c/d", num_draft_tokens=15, kv_dtype="bf16", attention_backend="fa3"),
        Draft(method="dspark", model="c/d", num_draft_tokens=7, options={"verification": "block"}),
        Draft(method="mtp", num_draft_tokens=2),
        Draft(method="eagle", model="c/d", num_draft_tokens=15, options={"num_steps": 5, "num_branches": 4}),
        Draft(method="eagle3", model="c/d", num_draft_tokens=3, options={"draft_sampling": "probabilistic"}),
        Draft(method="draft-model", model="c/d", num_draft_tokens=3, quantization="fp8"),
        Draft(method="ngram", num_draft_tokens=11, options={"ngram_max_trie_depth": 18}),
    ),
    "llamacpp": (
        Draft(method="dflash", model="c/d", num_draft_tokens=15, kv_dtype="q8_0", options={"value_dtype": "q8_0"}),
        Draft(method="dspark", model="/m/d.gguf", num_draft_tokens=7, options={"p_min": 0.5, "gpu_layers": 99}),
        Draft(method="mtp", num_draft_tokens=2, options={"draft_sampling": "probabilistic", "n_min": 1}),
        Draft(method="eagle3", model="c/d", options={"synthetic_length": 2.5}),
        Draft(method="draft-model", model="c/d", options={"synthetic_rates": [0.9, 0.5, 0.25], "cpu_moe": True}),
        Draft(method="ngram", num_draft_tokens=8, options={"n_match": 4, "min_hits": 2}),
        Draft(method="ngram", num_draft_tokens=8, options={"variant": "ngram-map-k4v", "n_match": 4}),
        Draft(method="ngram-mod", num_draft_tokens=64, options={"n_match": 24, "n_min": 48}),
    ),
}


def written_for(engine: EngineName) -> list[list[str]]:
    """Return commands for an engine, without the program: published ones, theirs in translation, and all settings."""
    deployments = [translate(config.meaning, engine).deployment for config in CONFIGS]
    others = [one for one in FULL if one != engine]
    deployments += [replace(FULL[engine], drafts=(draft,)) for draft in DRAFTS[engine]]
    deployments += [
        translate(replace(FULL[other], drafts=(draft,)), engine).deployment
        for other in others
        for draft in DRAFTS[other]
    ]
    nodes = node_commands(FULL[engine], ["10.0.0.1", "10.0.0.2"])
    programs = {
        "vllm": ("vllm", "serve"),
        "sglang": ("python", "-m", "sglang.launch_server"),
        "llamacpp": ("llama-server",),
    }
    program = programs[engine]
    commands = [write_command(deployment) for deployment in deployments]
    commands += [node.words for node in nodes if node.words[: len(program)] == program]
    assert all(words[: len(program)] == program for words in commands)
    return [list(words[len(program) :]) for words in commands]


def judge(engine: EngineName, commands: Sequence[Sequence[str]]) -> list[str]:
    """Return what the parser of vLLM or SGLang says to each command; an empty text for yes."""
    variable = f"BLOCKDRAFT_{engine.upper()}_PARSER"
    interpreter, _, folder = os.environ.get(variable, "").partition(":")
    if not interpreter:
        pytest.skip(f"set {variable} to an interpreter, to have {engine} parse what is written for it")
    environment = os.environ | {"VLLM_TARGET_DEVICE": "cpu", "PYTHONPATH": folder, "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [interpreter, PROGRAM, engine],
        input=json.dumps(commands),
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_the_parser_takes_what_is_written(engine: EngineName) -> None:
    commands = written_for(engine)
    refused = [(" ".join(words), said) for words, said in zip(commands, judge(engine, commands), strict=True) if said]
    assert refused == []


@pytest.mark.parametrize(
    ("engine", "words"),
    [
        ("vllm", ["a/b", "--swap-space", "4"]),
        ("vllm", ["a/b", "--speculative-config", '{"method": "ngram", "ngram_max": 4}']),
        ("sglang", ["--model-path", "a/b", "--mamba-scheduler-strategy", "extra_buffer"]),
    ],
)
def test_the_parser_refuses_what_is_outdated_or_unknown(engine: EngineName, words: list[str]) -> None:
    assert judge(engine, [words]) != [""]


def run_llama_server(words: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Return what llama-server says to words: flags are taken one after another, and the last one ends it."""
    program = os.environ.get("BLOCKDRAFT_LLAMA_SERVER")
    if not program:
        pytest.skip("set BLOCKDRAFT_LLAMA_SERVER to llama-server, to have it parse what is written for it")
    return subprocess.run([program, *words, "--version"], capture_output=True, text=True, check=False)


def test_llama_server_takes_what_is_written() -> None:
    for words in written_for("llamacpp"):
        # Devices are looked for while flags are taken, and most builds cannot reach other machines.
        here = ["none" if word == "ROCm0" else word for word in words]
        at = here.index("--rpc") if "--rpc" in here else len(here)
        done = run_llama_server([*here[:at], *here[at + 2 :]])
        assert done.returncode == 0, f"{' '.join(words)}: {done.stderr}"


@pytest.mark.parametrize("words", [["--draft-max", "8"], ["--ctx-size=4096"], ["--no-such-flag"]])
def test_llama_server_refuses_what_is_outdated_or_unknown(words: list[str]) -> None:
    assert run_llama_server(["--model", "m.gguf", *words]).returncode != 0
