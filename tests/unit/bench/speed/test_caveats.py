"""Planted faults are named, and a clean run is not accused of anything."""

from __future__ import annotations

from dataclasses import replace

import pytest
from made_runs import BASE_S, FIRST_S, cells, counts, made_run, made_sample

from blockdraft.bench.speed.caveats import claims_hold, find_caveats
from blockdraft.bench.speed.records import Failure, SideInfo
from blockdraft.bench.speed.workload import Cell

GOOD = dict.fromkeys(cells("code", "chat"), 1.5)


def codes(run) -> set[str]:
    return {caveat.code for caveat in find_caveats(run)}


def test_a_clean_run_has_no_findings() -> None:
    assert codes(made_run(GOOD)) == set()


def collapsing(sample):
    """Twice as fast for 130 tokens, as fast as the baseline after them."""
    times = [FIRST_S + BASE_S * (min(n, 130) / 2 + max(n - 130, 0)) for n in range(400)]
    return replace(long(sample), chunk_s=tuple(times))


def long(sample):
    return made_sample(BASE_S, prompt=sample.prompt_id, repeat=sample.repeat, num_tokens=400)


def remembering(sample):
    """Three times as fast once the prompt was answered."""
    return made_sample(BASE_S / (1.1 if sample.repeat == 0 else 3), prompt=sample.prompt_id, repeat=sample.repeat)


def slower_second(sample):
    """Repeats 1 and 3 are those that this side begins."""
    return made_sample(BASE_S / (1.5 if sample.repeat % 2 else 1.2), prompt=sample.prompt_id, repeat=sample.repeat)


def failing(sample):
    failure = Failure(kind="timeout", message="no answer within 3 s")
    return replace(sample, failure=failure) if sample.prompt_id == "code/0" and sample.repeat == 0 else sample


PLANTED = {
    "baseline-drafts": {"drafts": {"speculative": counts(300, 150), "baseline": counts(30, 15)}},
    "never-drafted": {"drafts": {"speculative": counts(0, 0, 0), "baseline": None}},
    "never-accepted": {"drafts": {"speculative": counts(300, 0), "baseline": None}},
    "no-counters": {"drafts": {}},
    "late-collapse": {"samples": {"speculative": collapsing, "baseline": long}},
    "remembers": {"samples": {"speculative": remembering}},
    "order": {"samples": {"speculative": slower_second}, "repeats": 4},
    "failures": {"samples": {"speculative": failing}},
    "texts-differ": {"samples": {"speculative": lambda sample: replace(sample, text_sha256="other")}},
    "not-counted": {"samples": {"baseline": lambda sample: replace(sample, is_counted=False)}},
    "cached-prompts": {"samples": {"baseline": lambda sample: replace(sample, num_cached_tokens=40)}},
    "short-answers": {
        "samples": {
            role: lambda sample: made_sample(BASE_S, prompt=sample.prompt_id, repeat=sample.repeat, num_tokens=8)
            for role in ("speculative", "baseline")
        }
    },
    "slower": {"samples": {"speculative": lambda sample: made_sample(BASE_S * 1.5, prompt=sample.prompt_id)}},
    "one-prompt": {"num_prompts": 1},
    "incomplete": {"is_complete": False},
    "no-baseline": {"has_baseline": False},
    "not-idle": {"load_before": 3.0},
    "models-differ": {
        "sides": (
            SideInfo(role="speculative", where="a", model="m"),
            SideInfo(role="baseline", where="b", model="n"),
        )
    },
}


@pytest.mark.parametrize("code", PLANTED)
def test_a_planted_fault_is_named_alone(code: str) -> None:
    assert codes(made_run(GOOD, **PLANTED[code])) == {code}


def test_what_is_slower_with_drafts_is_named_by_condition_or_by_kind_of_prompt() -> None:
    easy, hard, loaded = Cell(category="code"), Cell(category="chat"), Cell(category="code", concurrency=8)
    [caveat] = find_caveats(made_run({easy: 2.0, hard: 0.7, loaded: 0.5}, jitter=0))
    assert caveat.text == (
        "decoding with drafts is slower than the baseline; times as fast: no prefix, 8 at once: 0.50 (0.50 to 0.50); "
        "chat, no prefix, 1 at once: 0.70 (0.70 to 0.70)"
    )


def test_what_an_interrupt_cancelled_did_not_fail() -> None:
    def cancelled(sample):
        is_last = sample.prompt_id == "chat/5" and sample.repeat == 2
        return replace(sample, failure=Failure(kind="cancelled", message="")) if is_last else sample

    assert codes(made_run(GOOD, is_complete=False, samples={"speculative": cancelled})) == {"incomplete"}


def test_a_clean_long_run_does_not_collapse() -> None:
    def quick(sample):
        return made_sample(BASE_S / 2, prompt=sample.prompt_id, repeat=sample.repeat, num_tokens=400)

    assert codes(made_run(GOOD, samples={"speculative": quick, "baseline": long})) == set()


def test_only_a_baseline_that_drafts_forbids_every_claim() -> None:
    holds = {code: claims_hold(find_caveats(made_run(GOOD, **changes))) for code, changes in PLANTED.items()}
    assert [code for code, held in holds.items() if not held] == ["baseline-drafts"]


@pytest.mark.parametrize(("load", "severity"), [(3.0, "note"), (4.5, "warning")])
def test_more_work_than_cores_is_a_warning(load: float, severity: str) -> None:
    [caveat] = find_caveats(made_run(GOOD, load_before=load))
    assert (caveat.code, caveat.severity) == ("not-idle", severity)


def test_the_worst_comes_first() -> None:
    run = made_run(GOOD, load_before=3.0, is_complete=False, drafts={"baseline": counts(5, 1)})
    assert [caveat.severity for caveat in find_caveats(run)] == ["error", "warning", "note", "note"]


def test_texts_of_sampled_answers_and_of_later_turns_are_not_compared() -> None:
    changed = {"speculative": lambda sample: replace(sample, text_sha256="other")}
    sampled = {"answers": {"temperature": 0.7}}
    assert codes(made_run(GOOD, samples=changed, settings=sampled)) == set()
    later = {
        "speculative": lambda sample: replace(sample, text_sha256="other", turn=1),
        "baseline": lambda sample: replace(sample, turn=1),
    }
    assert codes(made_run(GOOD, samples=later)) == set()
