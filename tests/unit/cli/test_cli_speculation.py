"""Flags of speculation: both dialects, the short form, and what cannot be said together."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from blockdraft.cli.options import SectionedCommand
from blockdraft.cli.speculation_options import SpeculationOptions, speculation_options
from blockdraft.drafters.config import NgramMapK, NgramMapK4v, NgramMod, NgramSimple, SpecConfig
from blockdraft.engine.load import default_spec_for
from blockdraft.errors import ConfigError
from blockdraft.models.references import DEFAULT_MODEL


def resolve(*arguments: str, env: dict[str, str] | None = None) -> SpecConfig:
    """Return what a command line with these flags resolves to; errors are raised."""
    seen: list[SpecConfig] = []

    @click.command(cls=SectionedCommand)
    @speculation_options
    def command(speculation: SpeculationOptions) -> None:
        seen.append(speculation.resolve())

    CliRunner().invoke(command, arguments, env=env, catch_exceptions=False, standalone_mode=False)
    return seen[0]


def without_notes(spec: SpecConfig) -> SpecConfig:
    return replace(spec, notes=())


def test_nothing_said_is_the_engines_default() -> None:
    expected = default_spec_for(DEFAULT_MODEL)
    assert expected.types == ("ngram-simple", "draft-dspark")
    assert resolve() == expected
    assert resolve("--verify", "match") == replace(expected, rule="match")


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--drafter", "none"], SpecConfig()),
        (["-d", "ngram-mod"], SpecConfig(types=("ngram-mod",))),
        (["-d", "ngram-simple,ngram-mod"], SpecConfig(types=("ngram-simple", "ngram-mod"))),
        (["-d", "org/drafter"], SpecConfig(types=("auto",), draft_model="org/drafter")),
        (["-d", "org/a", "--spec-type", "draft-dspark"], SpecConfig(types=("draft-dspark",), draft_model="org/a")),
        (["-d", "draft-dflash", "-md", "org/a"], SpecConfig(types=("draft-dflash",), draft_model="org/a")),
        (["--spec-type", "ngram-mod"], SpecConfig(types=("ngram-mod",))),
        (
            ["--spec-type", "ngram-mod", "--spec-type", "draft-dflash", "-md", "org/a"],
            SpecConfig(types=("ngram-mod", "draft-dflash"), draft_model="org/a"),
        ),
        (["--spec-default"], SpecConfig(types=("ngram-mod",))),
        (["--spec-type", "ngram-simple", "--spec-default"], SpecConfig(types=("ngram-simple", "ngram-mod"))),
        (["--model-draft", "org/a"], SpecConfig(types=("auto",), draft_model="org/a")),
        (["--spec-draft-hf", "org/a"], SpecConfig(types=("auto",), draft_model="hf:org/a")),
        (["-hfd", "hf:org/a"], SpecConfig(types=("auto",), draft_model="hf:org/a")),
        (
            ["-md", "a/b", "--spec-draft-n-max", "6", "--spec-draft-n-min", "2", "--draft-p-min", "0.25"],
            SpecConfig(types=("auto",), draft_model="a/b", n_max=6, n_min=2, p_min=0.25),
        ),
        (["-d", "ngram-mod", "--verify", "rejection"], SpecConfig(types=("ngram-mod",), rule="rejection")),
        (
            [
                *("--spec-type", "ngram-simple,ngram-map-k,ngram-map-k4v,ngram-mod"),
                *("--spec-ngram-simple-size-n", "3", "--spec-ngram-simple-size-m", "4"),
                *("--spec-ngram-simple-min-hits", "2", "--spec-ngram-map-k-size-n", "5"),
                *("--spec-ngram-map-k-size-m", "6", "--spec-ngram-map-k-min-hits", "7"),
                *("--spec-ngram-map-k4v-size-n", "8", "--spec-ngram-map-k4v-size-m", "9"),
                *("--spec-ngram-map-k4v-min-hits", "10", "--spec-ngram-mod-n-match", "11"),
                *("--spec-ngram-mod-n-min", "0", "--spec-ngram-mod-n-max", "13"),
            ],
            SpecConfig(
                types=("ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod"),
                ngram_simple=NgramSimple(size_n=3, size_m=4, min_hits=2),
                ngram_map_k=NgramMapK(size_n=5, size_m=6, min_hits=7),
                ngram_map_k4v=NgramMapK4v(size_n=8, size_m=9, min_hits=10),
                ngram_mod=NgramMod(n_match=11, n_min=0, n_max=13),
            ),
        ),
    ],
)
def test_llamacpp_flags_and_the_short_form(flags: list[str], expected: SpecConfig) -> None:
    assert resolve(*flags) == expected


@pytest.mark.parametrize(
    ("llamacpp", "vllm"),
    [
        (
            ["--spec-type", "draft-dflash", "-md", "org/a", "--spec-draft-n-max", "7"],
            ["--speculative-config", '{"method": "dflash", "model": "org/a", "num_speculative_tokens": 7}'],
        ),
        (
            ["--spec-type", "draft-dspark", "-md", "org/a", "--spec-draft-n-max", "7"],
            ["--spec-method", "dspark", "--spec-model", "org/a", "--spec-tokens", "7"],
        ),
        (
            ["--spec-type", "draft-simple", "-md", "org/a", "--verify", "match"],
            ["-sc", '{"method": "draft_model", "model": "org/a", "rejection_sample_method": "strict"}'],
        ),
        (["-md", "org/a"], ["--spec-model", "org/a"]),
        (["-md", "org/a", "--verify", "rejection"], ["--spec-model", "org/a", "--verify", "rejection"]),
    ],
)
def test_both_dialects_resolve_to_the_same(llamacpp: list[str], vllm: list[str]) -> None:
    assert without_notes(resolve(*llamacpp)) == without_notes(resolve(*vllm))


def test_llamacpps_environment_is_read() -> None:
    env = {
        "LLAMA_ARG_SPEC_TYPE": "draft-dflash,ngram-mod",
        "LLAMA_ARG_SPEC_DRAFT_MODEL": "org/a",
        "LLAMA_ARG_SPEC_DRAFT_N_MAX": "5",
        "LLAMA_ARG_SPEC_DRAFT_N_MIN": "1",
        "LLAMA_ARG_SPEC_DRAFT_P_MIN": "0.5",
    }
    expected = SpecConfig(types=("ngram-mod", "draft-dflash"), draft_model="org/a", n_max=5, n_min=1, p_min=0.5)
    assert without_notes(resolve(env=env)) == expected
    assert resolve("--spec-draft-hf", "org/b", env={"LLAMA_ARG_SPEC_TYPE": "auto"}).draft_model == "hf:org/b"
    assert resolve(env={"LLAMA_ARG_SPEC_DRAFT_HF_REPO": "org/b"}).draft_model == "hf:org/b"


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--spec-type", "ngram-mod", "--spec-method", "ngram"], ["--spec-type", "--spec-method", "llama.cpp", "vLLM"]),
        (["--drafter", "none", "--speculative-config", "{}"], ["--drafter", "--speculative-config"]),
        (["--spec-draft-p-min", "0", "--spec-tokens", "3"], ["--spec-draft-p-min", "--spec-tokens"]),
        (["-d", "ngram-mod", "--spec-type", "ngram-mod"], ["--drafter ngram-mod", "--spec-type"]),
        (["-d", "ngram-mod", "--spec-default"], ["--spec-default"]),
        (["-d", "org/a", "-md", "org/b"], ["--drafter", "--spec-draft-model"]),
        (["-md", "org/a", "-hfd", "org/b"], ["--spec-draft-model", "--spec-draft-hf"]),
        (["--spec-method", "ngram", "-sc", '{"method": "ngram"}'], ["--spec-method", "'method'"]),
        (
            ["--verify", "match", "-sc", '{"method": "ngram", "rejection_sample_method": "strict"}'],
            ["--verify", "rejection_sample_method"],
        ),
        (["--spec-ngram-map-k4v-size-n", "4"], ["--spec-type ngram-map-k4v"]),
        (["-d", "ngram-mdo"], ["ngram-mdo", "did you mean 'ngram-mod'?"]),
        (["--spec-type", "draft-dflash"], ["--spec-draft-model"]),
        (["-sc", "{"], ["not valid JSON"]),
        (["-sc", "[]"], ["JSON object"]),
    ],
)
def test_what_cannot_be_said_together_is_refused(flags: list[str], said: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve(*flags)
    assert all(text in str(caught.value) for text in said)


def test_settings_alone_change_what_drafts_by_default() -> None:
    default = default_spec_for(DEFAULT_MODEL)
    assert default.policy == "adaptive"
    changed = resolve("--spec-draft-n-max", "4", "--spec-ngram-simple-size-m", "9")
    assert changed == replace(default, n_max=4, ngram_simple=replace(default.ngram_simple, size_m=9))
    # Thresholds are the fixed policy's.
    assert resolve("--spec-draft-p-min", "0.5") == replace(default, p_min=0.5, policy="fixed")


def test_settings_alone_of_a_draft_model_that_the_default_has_not_are_refused() -> None:
    @click.command(cls=SectionedCommand)
    @speculation_options
    def command(speculation: SpeculationOptions) -> None:
        speculation.resolve("Qwen/Qwen3-8B")

    with pytest.raises(ConfigError, match="no effect on ngram-simple, the default here; add --spec-draft-model"):
        CliRunner().invoke(command, ["--spec-draft-n-max", "4"], catch_exceptions=False, standalone_mode=False)


def test_the_policy_is_fixed_for_drafters_that_are_chosen_unless_asked_for() -> None:
    assert resolve("-d", "ngram-mod").policy == "fixed"
    assert resolve("-d", "ngram-mod", "--spec-policy", "adaptive").policy == "adaptive"
    assert resolve("--spec-method", "ngram", "--spec-policy", "adaptive").policy == "adaptive"
    assert resolve("--spec-policy", "fixed").policy == "fixed"
    with pytest.raises(ConfigError, match="leave them out"):
        resolve("-d", "org/a", "--spec-policy", "adaptive", "--spec-draft-p-min", "0.5")


def test_a_conflict_with_the_environment_names_the_variable() -> None:
    with pytest.raises(ConfigError, match=r"LLAMA_ARG_SPEC_TYPE \(in the environment\) and --spec-method"):
        resolve("--spec-method", "ngram", env={"LLAMA_ARG_SPEC_TYPE": "ngram-mod"})


def test_settings_of_a_drafter_that_is_not_asked_are_told() -> None:
    spec = resolve("-d", "ngram-mod", "--spec-ngram-simple-size-n", "4")
    assert spec.notes == ("--spec-ngram-simple-size-n has no effect: ngram-simple is not among ngram-mod",)


@pytest.mark.parametrize(
    ("flag", "successor"),
    [
        ("--draft", "--spec-draft-n-max"),
        ("--draft-n-min", "--spec-draft-n-min"),
        ("--spec-ngram-size-n", "--spec-ngram-simple-size-n"),
        ("--spec-ngram-min-hits", "--spec-ngram-map-k-min-hits"),
    ],
)
def test_flags_that_llamacpp_removed_name_their_successor(run, flag: str, successor: str) -> None:
    result: Result = run("generate", "hi", flag, "4")
    assert result.exit_code == 2
    assert f"has removed {flag}" in result.stderr
    assert successor in result.stderr
    assert flag not in {word.strip(",") for word in run("generate", "--help").stdout.split()}


def test_notes_are_shown_once(generate) -> None:
    result = generate("hello", "-n", "4", "--spec-type", "ngram-mod,ngram-simple")
    assert result.stderr.count("llama.cpp's order") == 1


def test_json_prints_the_resolved_configuration(generate_json) -> None:
    record: dict[str, Any] = generate_json("hello", "-n", "4", "--spec-method", "ngram", "--spec-tokens", "6")
    assert record["spec"]["types"] == ["ngram-simple"]
    assert record["spec"]["ngram_simple"]["size_m"] == 6
    assert record["drafter"]["name"] == "ngram-simple"
    assert json.dumps(record["spec"]) == json.dumps(resolve("--spec-method", "ngram", "--spec-tokens", "6").to_dict())
