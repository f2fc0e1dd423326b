"""Every rule: one situation in which it applies, and one near it in which it does not."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import rule_cases_answers as answers
import rule_cases_devices as devices
import rule_cases_llama as llama_cases
import rule_cases_names_shapes as names_shapes
import rule_near_misses as near_misses
from situations import DENSE, situation

from blockdraft.deploy.rules import RULES, SEVERITIES, Situation, check, examine
from blockdraft.deploy.rules.rule import Finding, NotChecked, apply
from blockdraft.deploy.versions import number_of

CASES = [
    *names_shapes.NAMES,
    *names_shapes.SHAPES,
    *devices.BACKENDS,
    *devices.BUDGETS,
    *answers.CACHES,
    *answers.QUANTISED,
    *answers.CORRECTNESS,
    *answers.WORKLOADS,
    *llama_cases.CASES,
]
BY_ID = {rule.id: rule for rule in RULES}
IDS = [f"{case.rule}-{index}" for index, case in enumerate(CASES)]


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_a_rule_applies_where_it_should(case) -> None:
    finding = apply(BY_ID[case.rule], case.hit)
    assert isinstance(finding, Finding), finding


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_and_not_nearby(case) -> None:
    assert apply(BY_ID[case.rule], case.miss) is None


@pytest.mark.parametrize(
    ("rule", "miss"), [*near_misses.NEAR_MISSES.items(), *near_misses.WITH_ONE_BUT_NOT_THE_OTHER.items()]
)
def test_and_not_nearby_in_the_same_release(rule, miss) -> None:
    assert any(miss.is_between(each.engine, each.since, each.before) for each in BY_ID[rule].releases)
    assert apply(BY_ID[rule], miss) is None


def bounds() -> list[Any]:
    """Return each case with a release at an edge of its rule's range, and whether the rule applies there."""
    edges = []
    for case in CASES:
        engine = case.hit.deployment.engine
        for releases in (each for each in BY_ID[case.rule].releases if each.engine == engine):
            if releases.since:
                below = ".".join(map(str, _below(number_of(engine, releases.since))))
                edges += [(case, releases.since, True), (case, below, False)]
            if releases.before:
                edges.append((case, releases.before, False))
    return [pytest.param(*edge, id=f"{edge[0].rule}-{edge[1]}") for edge in edges]


def _below(number: tuple[int, ...]) -> tuple[int, ...]:
    """Return a release just before one: 0.19.999 before 0.20.0."""
    last = max(index for index, part in enumerate(number) if part)
    return (*number[:last], number[last] - 1, 999)


@pytest.mark.parametrize(("case", "version", "applies"), bounds())
def test_a_rule_begins_and_ends_with_its_releases(case, version, applies) -> None:
    situation = replace(case.hit, version=replace(case.hit.version, text=version))
    assert isinstance(apply(BY_ID[case.rule], situation), Finding) is applies


def test_every_rule_has_a_miss_inside_its_releases() -> None:
    inside = {
        case.rule
        for case in CASES
        if any(case.miss.is_between(each.engine, each.since, each.before) for each in BY_ID[case.rule].releases)
    }
    assert inside | near_misses.NEAR_MISSES.keys() == BY_ID.keys()


def test_every_rule_has_a_case_and_an_id_of_its_own() -> None:
    assert {case.rule for case in CASES} == BY_ID.keys()
    assert len(BY_ID) == len(RULES)


def test_every_rule_of_the_three_tables_is_there() -> None:
    assert {f"P{number}" for number in range(1, 97)} | {f"L{number}" for number in range(1, 13)} <= BY_ID.keys()


@pytest.mark.parametrize("case", [case for case in CASES if BY_ID[case.rule].repair], ids=lambda case: case.rule)
def test_a_repaired_deployment_has_the_fault_no_more(case) -> None:
    """The command as written is gone with the repair, so that only what the deployment says counts."""
    finding = apply(BY_ID[case.rule], case.hit)
    assert isinstance(finding, Finding)
    assert finding.repaired is not None
    again = apply(BY_ID[case.rule], replace(case.hit, deployment=finding.repaired, words=()))
    assert not isinstance(again, Finding), again


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_a_rule_says_what_happens_what_to_do_and_who_says_so(rule) -> None:
    assert rule.effect
    assert rule.fix
    assert rule.source
    assert rule.flag
    assert rule.topic
    for releases in rule.releases:
        bounds = [number_of(releases.engine, bound) for bound in (releases.since, releases.before) if bound]
        assert bounds == sorted(bounds)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_with_nothing_known_and_nothing_drafted_no_error_is_claimed(rule) -> None:
    """A plain launch of an unknown model on unknown hardware: whatever is found must come from the command alone."""
    for releases in rule.releases:
        plain = situation(releases.engine, method=None, target=None, draft=None, on=None)
        assert not isinstance(apply(rule, plain), Finding)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
@pytest.mark.parametrize("method", ["dflash", "dspark", "mtp", "eagle3", "draft-model", "ngram", "suffix"])
def test_an_unknown_pair_never_breaks_a_rule(rule, method) -> None:
    for releases in rule.releases:
        vague = situation(releases.engine, method=method, num_drafts=None, target=None, draft=None, on=None)
        apply(rule, vague)


def test_what_could_not_be_checked_is_told() -> None:
    seen = examine(situation(draft=None))
    assert seen.missing["the drafter's configuration"] > 3
    assert all(isinstance(each, NotChecked) for each in seen.not_checked)
    assert "P23" in {each.rule for each in seen.not_checked}


def test_findings_come_with_the_worst_first_and_name_the_flag() -> None:
    found = check(
        situation(num_drafts=20, kv_dtype="fp8", attention_backend="FLASH_ATTN").deployment,
        (DENSE, None),
        situation(on="rtx3090").hardware,
    )
    order = [SEVERITIES.index(finding.severity) for finding in found]
    assert order == sorted(order)
    assert found[0].rule == "P39"
    assert "attention-backend" in found[0].flag
    assert "target and drafter on sm_86" in found[0].seen


def test_a_rule_of_another_engine_or_release_is_not_asked() -> None:
    old = examine(situation(version="0.19.0"))
    assert {finding.rule for finding in old.findings} >= {"P1"}
    assert not any(finding.rule.startswith("L") for finding in old.findings)


def test_topics_hold_more_than_one_rule_each() -> None:
    assert min(Counter(rule.topic for rule in RULES).values()) > 3


def test_the_model_runner_is_known_where_something_decides() -> None:
    def runner(**values: object) -> str:
        return situation(**values).runner  # type: ignore[arg-type]

    assert runner() == "v2"
    assert runner(env={"VLLM_USE_V2_MODEL_RUNNER": "0"}) == "v1"
    assert runner(on="cpu") == "v1"
    assert runner(method="suffix") == "v1"
    assert runner(method="dspark", version="0.26.0") == "v2"
    vague: Situation = situation(version="0.28.0")
    with pytest.raises(Exception, match="model runner"):
        _ = vague.runner
