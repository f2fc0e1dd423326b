"""What runs recommend: gain, loss, a mixture, a crossing, and nothing where nothing is known."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from made_runs import BASE_S, cells, counts, made_run, made_sample

from blockdraft.bench.speed.advise import Advice, advise, judge
from blockdraft.bench.speed.records import Run
from blockdraft.bench.speed.statistics import Ratio
from blockdraft.bench.speed.workload import Cell


def advice_of(**runs: Run) -> Advice:
    return advise(list(runs.items()))


def text_of(advice: Advice) -> str:
    return " ".join(advice.sentences)


@pytest.mark.parametrize(
    ("value", "low", "high", "verdict"),
    [
        (1.5, 1.2, 1.8, "speculate"),
        (1.01, 1.005, 1.03, "open"),
        (1.01, 1.0, 1.015, "do not speculate"),
        (0.8, 0.7, 0.9, "do not speculate"),
        (1.2, 0.9, 1.5, "open"),
        (0.9, 0.8, 1.1, "open"),
        (1.5, None, None, "open"),
    ],
)
def test_a_verdict_rests_on_the_whole_interval(value, low, high, verdict) -> None:
    assert judge(Ratio(value=value, low=low, high=high, num_pairs=9, num_prompts=9)) == verdict


def test_a_gain() -> None:
    advice = advice_of(dflash=made_run(dict.fromkeys(cells("code", "chat"), 1.6)))
    assert advice.verdict == "speculate"
    assert re.match(
        r"Speculate with no prefix, 1 at once: 1\.\d\d \(1\.\d\d to 1\.\d\d\) times as fast", text_of(advice)
    )
    assert [one.scope for one in advice.evidence] == ["all categories", "code", "chat"]
    # 2 categories, 6 prompts, 3 repeats, 40 tokens after the first; 6 passes that accepted 150.
    assert advice.evidence[0].acceptance_length == pytest.approx(1440 / (1440 - 6 * 150))


def test_a_loss_is_a_recommendation_too() -> None:
    advice = advice_of(dflash=made_run(dict.fromkeys(cells("code", "chat"), 0.8)))
    assert advice.verdict == "do not speculate"
    assert "Do not speculate with no prefix, 1 at once" in text_of(advice)
    assert not any("slower" in limit for limit in advice.limits)  # the verdict is no limit of itself


def test_a_gain_for_some_kinds_only_depends() -> None:
    advice = advice_of(dflash=made_run({cells("code")[0]: 2.0, cells("chat")[0]: 0.7}))
    assert advice.verdict == "it depends"
    assert "By kind of prompt, speculate for code" in text_of(advice)
    assert "do not speculate for chat" in text_of(advice)


def test_a_gain_that_goes_with_load_depends_and_the_crossing_is_named() -> None:
    loads = {Cell(category="a", concurrency=load): ratio for load, ratio in ((1, 1.8), (4, 1.2), (8, 0.7))}
    advice = advice_of(dflash=made_run(loads))
    assert advice.verdict == "it depends"
    assert "drafting is slower from concurrency 8 on" in text_of(advice)
    assert "clearly from 8 on" in text_of(advice)
    assert "up to 4 it clearly pays" in text_of(advice)
    assert "Nothing was measured with more than 8 at once." in advice.limits


def test_an_interval_around_one_is_open() -> None:
    advice = advice_of(dflash=made_run(dict.fromkeys(cells("code"), 1.05), jitter=0.15))
    assert advice.verdict == "open"
    assert "does not tell gain from loss" in text_of(advice)


def test_runs_that_cannot_bear_a_ratio_are_named_and_not_used() -> None:
    alone = made_run(dict.fromkeys(cells("code"), 2.0), has_baseline=False)
    both = made_run(dict.fromkeys(cells("code"), 2.0), drafts={"baseline": counts(9, 3), "speculative": counts(9, 3)})
    advice = advice_of(alone=alone, both=both)
    assert (advice.verdict, advice.evidence, advice.best_run) == ("no evidence", (), None)
    assert "alone has no baseline and was not used." in advice.limits
    assert any(limit.startswith("both: the baseline drafted") for limit in advice.limits)


def test_the_best_of_several_runs_is_named_and_who_is_close() -> None:
    kinds = cells("code", "chat")
    advice = advice_of(
        ngram=made_run(dict.fromkeys(kinds, 1.2)),
        dflash=made_run(dict.fromkeys(kinds, 1.8)),
        dspark=made_run(dict.fromkeys(kinds, 1.79), jitter=0.05),
    )
    assert advice.best_run == "dflash"
    assert "Of 3 runs dflash gains most over its own baseline" in text_of(advice)
    assert "not clearly ahead of dspark" in text_of(advice)
    assert "ahead of ngram" not in text_of(advice)


def test_runs_are_ranked_where_all_of_them_were_measured() -> None:
    shallow, deep = Cell(category="a"), Cell(category="a", depth=100)
    advice = advice_of(
        both=made_run({shallow: 1.5, deep: 1.1}),
        deep_only=made_run({deep: 1.3}),
    )
    assert advice.best_run == "deep_only"


def test_baselines_that_are_different_things_are_told() -> None:
    one = made_run(dict.fromkeys(cells("code"), 1.5))
    sides = tuple(replace(side, engine="llamacpp 1") for side in one.sides)
    other = replace(one, sides=sides, machine={"cpu": "other"})
    limits = advice_of(one=one, other=other).limits
    assert any("different engines or models" in limit for limit in limits)
    assert any("different machines" in limit for limit in limits)
    assert not any("different" in limit for limit in advice_of(one=one, again=one).limits)


def test_answers_that_a_drafter_remembers_do_not_count() -> None:
    def remembering(sample):
        factor = 0.9 if sample.repeat == 0 else 3
        return made_sample(BASE_S / factor, prompt=sample.prompt_id, repeat=sample.repeat)

    advice = advice_of(ngram=made_run(dict.fromkeys(cells("code"), 1), samples={"speculative": remembering}))
    assert advice.verdict == "do not speculate"
    assert advice.evidence[0].ratio.value == pytest.approx(0.9)
    assert any("remembers answers" in limit for limit in advice.limits)


def test_a_slow_prefill_that_eats_the_gain_is_told() -> None:
    def late(sample):
        times = tuple(moment + 0.3 for moment in sample.chunk_s)
        return replace(sample, chunk_s=times)

    advice = advice_of(dflash=made_run(dict.fromkeys(cells("code"), 1.6), samples={"speculative": late}))
    assert "the time to the first token eats half of the gain or more" in text_of(advice)
    without = advice_of(dflash=made_run(dict.fromkeys(cells("code"), 1.6)))
    assert "eats half" not in text_of(without)


def test_where_the_evidence_ends_is_told() -> None:
    advice = advice_of(dflash=made_run(dict.fromkeys(cells("code"), 1.6), num_prompts=2))
    assert "Only depth 0 was measured: what longer contexts do is unknown (--depth)." in advice.limits
    assert "Verdicts rest on 2 prompts: they may not hold for others." in advice.limits
    assert any(limit.startswith("No answer had more than 41 tokens") for limit in advice.limits)


def test_an_advice_is_plain_data() -> None:
    import json

    advice = advice_of(dflash=made_run(dict.fromkeys(cells("code", depths=(0, 9)), 1.6)))
    data = json.loads(json.dumps(advice.to_dict()))
    assert data["evidence"][0]["conditions"] == "no prefix, 1 at once"
    assert data["verdict"] == "speculate"


def test_a_run_that_never_drafted_is_no_evidence_about_drafting() -> None:
    advice = advice_of(idle=made_run(dict.fromkeys(cells("code"), 0.9), drafts={"speculative": counts(0, 0, 0)}))
    assert (advice.verdict, advice.evidence) == ("no evidence", ())
    assert "idle drafted nothing, so it says nothing about drafting, and was not used." in advice.limits


def test_a_kind_of_one_prompt_and_runs_of_different_work_are_told() -> None:
    run = made_run(dict.fromkeys(cells("code", "chat"), 1.6), num_prompts=1)
    other = replace(run, settings={"plan": {"prompts": {"code": ["c/1"]}}})
    limits = advice_of(one=run, other=other).limits
    assert any(limit.startswith("Of code, chat there was one prompt each") for limit in limits)
    assert any("not of the same work" in limit for limit in limits)
    assert not any("same work" in limit for limit in advice_of(one=run, again=run).limits)


def test_kinds_are_listed_once_however_many_conditions_agree() -> None:
    easy, hard = cells("code", depths=(0, 9)), cells("chat", depths=(0, 9))
    advice = advice_of(run=made_run({**dict.fromkeys(easy, 2.0), hard[0]: 0.7, hard[1]: 0.6}, jitter=0))
    assert "do not speculate for chat (2 conditions: 0.60 to 0.70)." in text_of(advice)
