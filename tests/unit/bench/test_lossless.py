import json
from dataclasses import replace

import pytest

from blockdraft.bench.lossless import check_lossless
from blockdraft.engine import Engine, Request
from blockdraft.testing.scripted import ScriptedDrafter
from blockdraft.testing.tiny_models import tiny_target

REQUESTS = {
    "one": Request(prompt_ids=(5, 9, 14, 3), max_tokens=16),
    "two": Request(prompt_ids=(8, 8, 20), max_tokens=12),
}


@pytest.fixture(scope="module")
def target():
    return tiny_target()


@pytest.fixture(scope="module")
def plain(target):
    return {name: Engine(target).run([request])[0] for name, request in REQUESTS.items()}


@pytest.fixture
def engine(target, plain):
    answers = {request.prompt_ids: plain[name].token_ids for name, request in REQUESTS.items()}
    drafter = ScriptedDrafter(answers, vocab_size=target.info.vocab_size, num_right=lambda number: number % 4)
    return Engine(target, drafter=drafter)


def test_a_faithful_engine_passes_and_the_report_says_how_much_was_tested(engine, plain):
    report = check_lossless(engine, REQUESTS, plain)
    assert report.is_lossless
    assert (report.num_prompts, report.num_tokens, report.num_near_ties) == (2, 28, 0)
    assert 0 < report.stats.num_accepted < report.stats.num_drafted
    assert json.loads(json.dumps(report.to_dict()))["num_identical"] == 2


def test_an_answer_that_differs_without_a_near_tie_fails(engine, plain, target):
    tokens = list(plain["two"].tokens)
    tokens[4] = replace(tokens[4], id=(tokens[4].id + 1) % target.info.vocab_size)
    report = check_lossless(engine, REQUESTS, {**plain, "two": replace(plain["two"], tokens=tuple(tokens))})
    assert not report.is_lossless
    assert list(report.failures) == ["two"]
    assert report.failures["two"].position == 4
    assert report.to_dict()["num_failures"] == 1


def test_near_ties_are_counted_and_do_not_fail():
    target = tiny_target()
    plain = {name: Engine(target).run([request])[0] for name, request in REQUESTS.items()}
    # A later token with the head row of the one chosen: exactly tied from now on, and the first of the two is taken.
    chosen = plain["one"].token_ids[7]
    twin = next(id_ for id_ in range(chosen + 1, target.info.vocab_size) if id_ not in plain["one"].token_ids)
    target.head_weight[twin] = target.head_weight[chosen]
    tokens = list(plain["one"].tokens)
    tokens[7] = replace(tokens[7], id=twin)
    answers = {REQUESTS["one"].prompt_ids: plain["one"].token_ids}
    engine = Engine(target, drafter=ScriptedDrafter(answers, vocab_size=target.info.vocab_size))
    tipped = {"one": replace(plain["one"], tokens=tuple(tokens))}
    report = check_lossless(engine, {"one": REQUESTS["one"]}, tipped)
    assert report.is_lossless
    assert report.num_near_ties == 1
