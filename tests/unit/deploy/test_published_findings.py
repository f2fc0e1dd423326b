"""What is outdated or wrong in each published configuration, listed by hand, and found by the rules."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from published_configs import CONFIGS

from blockdraft.cli.plan_facts import known_draft, known_target
from blockdraft.deploy.dialects import read_command
from blockdraft.deploy.dialects.words import split_command
from blockdraft.deploy.hardware import profile
from blockdraft.deploy.planning import mend
from blockdraft.deploy.rules import Examination, Situation, examine
from blockdraft.deploy.versions import READ_VERSIONS, EngineVersion

COMMANDS = {config.number: config.command for config in CONFIGS}
ALWAYS = {"P58", "P68"}
"""Notes on every hybrid target with DFlash in vLLM: states of 1 + K, and acceptance after prefix hits."""

NAMES = {
    "TARGET-GGUF": "unsloth/Qwen3.6-27B-GGUF:Q8_0",
    "TARGET-WITH-MTP": "unsloth/Qwen3.6-27B-GGUF:Q8_0",
    "DFLASH-GGUF": "org/Qwen3.6-27B-DFlash-GGUF",
    "DRAFT-GGUF": "org/Qwen3.6-27B-DFlash-GGUF",
}


@dataclass(frozen=True)
class Expected:
    """A configuration where and in which release it is looked at, and what must be found there: exactly that."""

    number: int
    on: str
    rules: set[str]
    version: str | None = None
    names: dict[str, str] = field(default_factory=dict)
    """Real models in the place of the page's placeholders."""
    more: str = ""
    """Words that the same page gives elsewhere."""


EXPECTED = [
    Expected(1, "h100x2", {*ALWAYS, "P55a"}, more=" --tensor-parallel-size 2"),
    Expected(1, "rtx3090", {*ALWAYS, "P55a", "M1"}),
    Expected(1, "h200", {*ALWAYS, "P1"}, version="0.19.1"),
    Expected(1, "h200", {*ALWAYS, "P24", "P59"}, version="0.20.0"),
    Expected(1, "h200", {*ALWAYS, "P55a", "P11"}, more=" --swap-space 16"),
    Expected(1, "h200", {*ALWAYS, "P59"}, version="0.27.1"),  # the budget of 32768 was right then
    Expected(2, "h200", {*ALWAYS}),
    Expected(2, "h200", {*ALWAYS, "P12a", "P59"}, version="0.21.0"),
    Expected(3, "h200", {"P68"}),
    Expected(3, "h200", {"P68", "P2", "P52"}, version="0.24.0"),
    Expected(
        3,
        "h200",
        {"P68", "P19"},
        names={"TARGET": "Qwen/Qwen3-8B", "DSPARK-DRAFT": "deepseek-ai/dspark_qwen3_8b_block7"},
    ),
    Expected(4, "rtx3090", {*ALWAYS, "M1", "P39a"}),
    Expected(4, "rtx3090", {*ALWAYS, "M1", "P39"}, more=" --attention-backend flash_attn"),
    Expected(4, "rtx3090", {*ALWAYS, "M1", "P38"}, more=" --attention-backend TRITON_ATTN"),
    Expected(4, "rtx3090", {*ALWAYS, "M1", "P37", "P59"}, version="0.23.0"),
    Expected(4, "h200", {*ALWAYS}, more=" --attention-backend flash_attn"),
    Expected(5, "rtx3090", {*ALWAYS, "M2"}),
    Expected(5, "rtx3090", {*ALWAYS}, more=" --max-model-len 8192"),
    Expected(5, "rtx3090", {*ALWAYS, "P39"}, more=" --max-model-len 8192 --kv-cache-dtype fp8"),
    Expected(6, "h200", {*ALWAYS, "P55a"}),
    Expected(6, "h200", {*ALWAYS, "P24", "P59"}, version="0.20.0"),
    Expected(7, "dgx-spark", {*ALWAYS, "P40", "P55a"}),
    Expected(7, "dgx-spark", {*ALWAYS, "P40", "P59", "P85"}, version="0.26.0"),
    Expected(8, "h100", {"P58", "P62", "P72a"}),
    Expected(8, "h100", {"P58", "P62"}, version="0.5.20"),
    Expected(8, "cpu", {"P50", "P58", "P62", "P72a", "M1"}),
    Expected(9, "rtx3090", {"L11"}),
    Expected(9, "rtx5090", {"L11", "L15", "L18", "M1"}, names=NAMES),
    Expected(10, "h100", {"L11", "L16"}, names=NAMES),
    Expected(11, "h100", {"L11"}),
    Expected(
        11,
        "h100",
        {"L11", "L15"},
        names={"TARGET-GGUF": "org/Qwen3-8B-GGUF:Q8_0", "DRAFT-GGUF": "deepseek-ai/dspark_qwen3_8b_block7"},
    ),
    Expected(12, "h100", {"L10"}, names=NAMES),
    Expected(13, "rtx3090", {"L9", "L28"}),
    Expected(14, "strix-halo", {"L8", "L11", "L12a"}),
    Expected(14, "rtx3090", {"L11", "L12a", "M1"}),
]


def looked_at(expected: Expected) -> Situation:
    command = COMMANDS[expected.number] + expected.more
    for placeholder, name in expected.names.items():
        command = command.replace(placeholder, name)
    return seen(command, expected.on, expected.version)


def seen(command: str, on: str, version: str | None = None) -> Situation:
    deployment = read_command(command)
    engine = deployment.engine
    network = next((draft for draft in deployment.drafts if draft.model), None)
    return Situation(
        deployment=deployment,
        version=EngineVersion(engine=engine, text=version or READ_VERSIONS[engine], origin="given"),
        target_facts=known_target(deployment.target).facts,
        draft_facts=known_draft(network.model) if network and network.model else None,
        hardware=profile(on),
        words=split_command(command).words,
    )


def rules_of(examination: Examination) -> set[str]:
    return {finding.rule for finding in examination.findings}


@pytest.mark.parametrize("expected", EXPECTED, ids=lambda each: f"{each.number}-{each.on}-{each.version}{each.more}")
def test_exactly_what_is_wrong_is_found(expected: Expected) -> None:
    assert rules_of(examine(looked_at(expected))) == expected.rules


@pytest.mark.parametrize("expected", EXPECTED, ids=lambda each: f"{each.number}-{each.on}-{each.version}{each.more}")
def test_mended_it_has_only_what_needs_another_machine_or_release(expected: Expected) -> None:
    mended, _ = mend(looked_at(expected))
    left = {finding.rule for finding in examine(mended).of("error")}
    assert left <= {"M1", "P1", "P2", "P12a", "P50"}


def test_every_configuration_that_starts_a_server_is_here() -> None:
    assert {expected.number for expected in EXPECTED} == set(COMMANDS)


def test_strict_is_found_and_gone_after_mending() -> None:
    strict = COMMANDS[1].replace('"num_speculative', '"rejection_sample_method": "strict", "num_speculative')
    situation = seen(strict, "h200")
    assert "P7" in rules_of(examine(situation))
    assert "P7" not in rules_of(examine(seen(strict, "h200", "0.20.1")))


def test_the_seventh_says_that_thinking_is_off() -> None:
    """The drafter of the 35B model was trained with thinking on: that is told, where the page's switch is used."""
    command = COMMANDS[7].replace("27B-FP8", "35B-A3B-FP8").replace("27B-DFlash", "35B-A3B-DFlash")
    assert "P93" in rules_of(examine(seen(command, "dgx-spark")))
    assert "P93" not in rules_of(examine(seen(command.replace("false", "true"), "dgx-spark")))


def test_dflash_beside_experts_in_main_memory_is_advised_against() -> None:
    """The thirteenth: DFlash was tried there and retired."""
    tried = COMMANDS[13].split(" --spec-type")[0] + " --spec-type draft-dflash -md Qwen3.6-35B-A3B-DFlash-Q8_0.gguf"
    situation = seen(tried, "rtx3090")
    assert rules_of(examine(situation)) == {"L11", "L12a", "L15", "L23", "M1"}
    mended, _ = mend(situation)
    assert mended.deployment.drafts == ()


def test_the_fourteenth_needs_the_memory_of_its_machine() -> None:
    """3 x 200700 tokens: 28 GiB of q8_0 keys and f16 values beside 27 GiB of weights."""
    situation = looked_at(Expected(14, "strix-halo", set()))
    assert situation.deployment.context_length == 200_700
    assert situation.deployment.drafts[0].num_draft_tokens == 8
