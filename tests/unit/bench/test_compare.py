import json
from dataclasses import replace

import pytest

from blockdraft.bench.compare import Comparison, compare, why_not_comparable
from blockdraft.core.sampling import SamplingParams
from blockdraft.drafters.config import NgramMod, SpecConfig
from blockdraft.drafters.ngram import NgramModDrafter
from blockdraft.engine import Engine, Generation, Request, Timings, Token
from blockdraft.errors import ConfigError
from blockdraft.testing.scripted import ScriptedDrafter
from blockdraft.testing.tiny_models import tiny_target

PROMPT = (5, 9, 14, 3)
GREEDY = Request(prompt_ids=PROMPT, max_tokens=24)
SAMPLED = replace(GREEDY, sampling=SamplingParams(temperature=0.8, seed=3))


@pytest.fixture(scope="module")
def target():
    return tiny_target()


@pytest.fixture(scope="module")
def answer_ids(target):
    return Engine(target).run([GREEDY])[0].token_ids


def scripted_engine(target, answer_ids, *, rule="auto", **options):
    drafter = ScriptedDrafter({PROMPT: answer_ids}, vocab_size=target.info.vocab_size, **options)
    return Engine(target, drafter=drafter, spec=SpecConfig(types=("ngram-simple",), rule=rule))


def generation(num_tokens: int, decode_s: float) -> Generation:
    token = Token(id=1, text="", kind="plain", round_index=0)
    return Generation(
        prompt_ids=PROMPT,
        tokens=(token,) * num_tokens,
        finish_reason="length",
        stopped_by=None,
        rounds=(),
        timings=Timings(decode_s=decode_s),
        drafter="",
        not_speculating=None,
    )


def test_a_faithful_engine_compares_as_identical(target, answer_ids):
    comparison = compare(scripted_engine(target, answer_ids), GREEDY, repeats=2)
    assert comparison.identical is True
    assert comparison.difference is None
    assert [len(side) for side in (comparison.plain, comparison.speculative)] == [2, 2]
    assert all(run.drafter == "" and run.token_ids == answer_ids for run in comparison.plain)
    assert all(run.stats.num_accepted > 0 for run in comparison.speculative)


def test_runs_alternate_after_a_warm_up(target, answer_ids):
    told: list[str] = []
    compare(scripted_engine(target, answer_ids), GREEDY, repeats=3, notify=told.append)
    assert told == [
        "warm-up",
        "run 1 of 3: plain",
        "run 1 of 3: scripted",
        "run 2 of 3: scripted",
        "run 2 of 3: plain",
        "run 3 of 3: plain",
        "run 3 of 3: scripted",
    ]


def test_a_different_text_is_reported_with_its_place_and_gap(target, answer_ids, monkeypatch):
    engine = scripted_engine(target, answer_ids)
    honest = engine.run

    def tampered(requests):
        [run] = honest(requests)
        tokens = list(run.tokens)
        tokens[5] = replace(tokens[5], id=(tokens[5].id + 1) % target.info.vocab_size)
        return [replace(run, tokens=tuple(tokens))]

    monkeypatch.setattr(engine, "run", tampered)
    comparison = compare(engine, GREEDY, repeats=1)
    assert comparison.identical is False
    assert comparison.difference is not None
    assert comparison.difference.position == 5
    assert comparison.difference.plain_id == answer_ids[5]
    assert comparison.difference.gap is not None
    assert comparison.difference.gap > 0


def test_sampled_text_under_match_is_expected_to_be_identical(target, answer_ids):
    comparison = compare(scripted_engine(target, answer_ids, rule="match"), SAMPLED, repeats=1)
    assert comparison.identical is True


def test_sampled_text_under_rejection_is_not_claimed_to_be_identical(target, answer_ids):
    comparison = compare(scripted_engine(target, answer_ids, rule="rejection"), SAMPLED, repeats=1)
    assert comparison.identical is None
    assert comparison.not_comparable is not None
    assert "match" in comparison.not_comparable


@pytest.mark.parametrize(
    ("request_", "rule", "comparable"),
    [
        (GREEDY, "auto", True),
        (GREEDY, "rejection", True),
        (SAMPLED, "auto", True),  # a scripted drafter has no probabilities
        (SAMPLED, "match", True),
        (SAMPLED, "rejection", False),
    ],
)
def test_what_is_expected_to_be_identical(target, answer_ids, request_, rule, comparable):
    assert (why_not_comparable(scripted_engine(target, answer_ids, rule=rule), request_) is None) is comparable


def test_sampled_drafts_under_auto_are_not_expected_to_be_identical(target, answer_ids):
    probs = target.embedding_weight.new_full((4, target.info.vocab_size), 1 / target.info.vocab_size)
    engine = scripted_engine(target, answer_ids, draft_probs=probs)
    assert why_not_comparable(engine, SAMPLED) is not None
    assert why_not_comparable(engine, GREEDY) is None


def test_the_ratio_is_the_median_of_neighbours():
    comparison = Comparison(
        plain=(generation(11, 1.0), generation(11, 2.0), generation(11, 1.0)),
        speculative=(generation(11, 0.5), generation(11, 0.5), generation(11, 1.0)),
        difference=None,
        not_comparable=None,
    )
    assert comparison.speed_ratios == (2.0, 4.0, 1.0)
    assert comparison.speed_ratio == 2.0
    assert comparison.speed_ratio_range == (1.0, 4.0)
    assert comparison.plain_tokens_per_second == 10.0
    assert comparison.speculative_tokens_per_second == 20.0


def test_an_answer_of_one_token_has_no_speed_ratio(target, answer_ids):
    comparison = compare(scripted_engine(target, answer_ids), replace(GREEDY, max_tokens=1), repeats=1)
    assert comparison.speed_ratio is None
    assert comparison.speed_ratio_range is None
    assert comparison.identical is True


def test_the_result_is_plain_data(target, answer_ids):
    result = compare(scripted_engine(target, answer_ids), GREEDY, repeats=2).to_dict()
    assert json.loads(json.dumps(result)) == result
    assert result["identical"] is True
    assert result["num_tokens"] == 24


def test_a_table_shared_between_the_repeats_is_told(target):
    settings = NgramMod(n_match=2, n_min=1, n_max=8, shared=True)
    engine = Engine(
        target, drafter=NgramModDrafter(settings), spec=SpecConfig(types=("ngram-mod",), ngram_mod=settings)
    )
    [note] = compare(engine, GREEDY, repeats=1).notes
    assert "shares its table" in note


def test_plain_decoding_cannot_be_compared_with_itself(target):
    with pytest.raises(ConfigError, match="nothing to compare"):
        compare(Engine(target), GREEDY)


def test_nothing_to_repeat_is_refused(target, answer_ids):
    with pytest.raises(ConfigError, match="repeats must be at least 1"):
        compare(scripted_engine(target, answer_ids), GREEDY, repeats=0)
