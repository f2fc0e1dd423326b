"""What `tune` predicts from rounds and costs, what it recommends, and that it runs from end to end."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from blockdraft.bench.tune import (
    ADAPTIVE,
    PLAIN,
    Candidate,
    Checked,
    Prompt,
    Tuning,
    _plain_speed,
    _Probe,
    _speed,
    tune,
)
from blockdraft.drafters.config import SpecConfig
from blockdraft.engine import Engine, Generation, Request, Timings, Token
from blockdraft.engine.pass_costs import DraftCost, PassCosts
from blockdraft.engine.results import Round
from blockdraft.errors import ConfigError
from blockdraft.testing.scripted import ScriptedDrafter
from blockdraft.testing.tiny_models import tiny_target

COSTS = PassCosts(
    num_rows=(1, 11), depths=(0, 100), target_s=((1.0, 2.0), (2.0, 3.0)), draft_s={"d": DraftCost(first_s=0.5)}
)
"""A pass takes a second, a tenth for each further row, and a hundredth for each token before it."""


def answer(*rounds: tuple[int, int], num_prompt: int = 0) -> Generation:
    """Return an answer of rounds that drafted and accepted so many tokens, and took no time."""
    num_tokens = 1 + sum(accepted + 1 for _, accepted in rounds)
    return Generation(
        prompt_ids=(0,) * num_prompt,
        tokens=(Token(id=1, text="", kind="plain", round_index=0),) * num_tokens,
        finish_reason="length",
        stopped_by=None,
        rounds=tuple(
            Round(drafter="d", num_drafted=n, num_accepted=a, num_emitted=a + 1, next_kind=None) for n, a in rounds
        ),
        timings=Timings(),
        drafter="d",
        not_speculating=None,
    )


def speed(length: int, *rounds: tuple[int, int]) -> float:
    flat = replace(COSTS, target_s=((1.0, 2.0), (1.0, 2.0)))
    return _speed(_Probe({"all": [answer(*rounds)]}), "all", "d", length, flat)


# --- predictions ---


def test_a_round_costs_its_draft_and_its_rows() -> None:
    assert speed(7, (7, 3)) == pytest.approx(4 / (0.5 + 1.7))


def test_a_shorter_draft_costs_less_and_keeps_what_lies_in_it() -> None:
    assert speed(4, (7, 3)) == pytest.approx(4 / (0.5 + 1.4))
    assert speed(3, (7, 3)) == pytest.approx(4 / (0.5 + 1.3))


def test_a_round_that_kept_more_than_a_shorter_draft_holds_becomes_several() -> None:
    # Seven kept and the target's own: with drafts of three, two rounds of four tokens.
    assert speed(3, (7, 7)) == pytest.approx(8 / (2 * (0.5 + 1.3)))
    # Four kept of seven: a full round, and one that drafts the three left and keeps none.
    assert speed(3, (7, 4)) == pytest.approx(5 / (2 * (0.5 + 1.3)))


def test_rounds_without_a_draft_pay_for_looking_for_one() -> None:
    assert speed(7, (0, 0), (0, 0)) == pytest.approx(1 / 1.5)


def test_depth_grows_with_the_answer() -> None:
    probe = _Probe({"all": [answer((0, 0), (0, 0), num_prompt=50)]})
    assert _plain_speed(probe, "all", COSTS) == pytest.approx(2 / (1.50 + 1.51))


def test_what_a_round_takes_besides_is_part_of_it() -> None:
    slow = replace(answer((7, 3)), timings=Timings(draft_s=1.0, target_s=2.0, decode_s=3.25))
    probe = _Probe({"all": [slow]})
    assert probe.overhead_s == pytest.approx(0.25)
    assert _plain_speed(probe, "all", replace(COSTS, target_s=((1.0, 2.0), (1.0, 2.0)))) == pytest.approx(4 / 1.25)


def test_shares_of_drafts_that_kept_so_many() -> None:
    probe = _Probe({"all": [answer((5, 0), (5, 2)), answer((0, 0), (5, 1), (5, 5))]})
    assert probe.survival("all") == [0.75, 0.5, 0.25, 0.25, 0.25]


# --- the recommendation ---


def checked(method: str, ratio: float, num_tokens: int = 0) -> Checked:
    return Checked(
        candidate=Candidate(method, num_tokens),
        tokens_per_second={"all": 100.0},
        ratios={"all": ratio},
        ratio=ratio,
        quartiles=(ratio, ratio),
        predicted_ratio=None,
    )


@pytest.mark.parametrize(
    ("found", "best"),
    [
        ([checked("d", 1.5, 4), checked(ADAPTIVE, 1.2)], Candidate("d", 4)),
        ([checked(ADAPTIVE, 1.03), checked("d", 0.7, 4)], Candidate(ADAPTIVE)),
        ([checked(ADAPTIVE, 1.01), checked("d", 0.7, 4)], Candidate(PLAIN)),
    ],
)
def test_what_is_not_clearly_faster_is_not_recommended(found: list[Checked], best: Candidate) -> None:
    assert Tuning(costs=COSTS, acceptance={}, predicted=[], checked=found).best == best


# --- from end to end ---


@pytest.fixture(scope="module")
def setup():
    target = tiny_target()
    prompts = [
        Prompt(category=category, request=Request(prompt_ids=(5, 9, 14, number), max_tokens=24))
        for number, category in enumerate(["chat", "code"])
    ]
    answers = {prompt.request.prompt_ids: Engine(target).run([prompt.request])[0].token_ids for prompt in prompts}
    return target, prompts, answers


def engine_of(setup, **options) -> Engine:
    target, _, answers = setup
    drafter = ScriptedDrafter(answers, vocab_size=target.info.vocab_size, max_draft_tokens=6, **options)
    return Engine(target, drafter=drafter, spec=SpecConfig(types=("ngram-simple",)))


def test_a_drafter_that_is_always_right_is_recommended_at_length(setup) -> None:
    costs = PassCosts(num_rows=(1, 16), depths=(0,), target_s=((1.0, 1.1),))
    told: list[str] = []
    tuning = tune(engine_of(setup, num_drafts=6), costs, setup[1], num_finalists=2, repeats=1, notify=told.append)
    lengths = [one.candidate.num_tokens for one in tuning.predicted]
    assert (lengths[0], lengths[-1], len(lengths)) == (6, 1, 6)  # a round of seven is two rounds of five, four or three
    assert tuning.predicted[0].ratio > 4
    assert {one.candidate.method for one in tuning.checked} == {"scripted", ADAPTIVE}
    assert len(tuning.checked) == 3
    assert tuning.best.method != PLAIN
    assert tuning.acceptance["scripted"]["chat"][0] == 1.0
    assert any("checking 3 settings" in text for text in told)
    assert json.loads(json.dumps(tuning.to_dict()))["best"]["method"] == tuning.best.method


def test_a_drafter_that_is_never_right_is_predicted_to_be_slower(setup) -> None:
    costs = PassCosts(num_rows=(1, 16), depths=(0,), target_s=((1.0, 4.0),))
    tuning = tune(engine_of(setup, num_drafts=6, num_right=0), costs, setup[1], num_finalists=1, repeats=1)
    assert all(one.ratio < 1 for one in tuning.predicted)
    assert [one.candidate.num_tokens for one in tuning.predicted] == [1, 2, 3, 4, 5, 6]
    assert tuning.acceptance["scripted"]["code"] == []


def test_without_a_drafter_or_prompts_there_is_nothing_to_tune(setup) -> None:
    with pytest.raises(ConfigError, match="decodes plainly"):
        tune(Engine(setup[0]), COSTS, setup[1])
    with pytest.raises(ConfigError, match="no prompts"):
        tune(engine_of(setup), COSTS, [])


def test_answers_of_one_token_have_no_speed(setup) -> None:
    short = [replace(prompt, request=replace(prompt.request, max_tokens=1)) for prompt in setup[1]]
    with pytest.raises(ConfigError, match="too short to have a speed"):
        tune(engine_of(setup), COSTS, short, repeats=1)
