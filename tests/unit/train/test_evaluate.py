"""The acceptance that a trainer reads is the engine's, counted by category."""

import json
import math

import pytest

from blockdraft.core.sampling import SamplingParams
from blockdraft.drafters.config import NgramSimple
from blockdraft.drafters.ngram import NgramSimpleDrafter
from blockdraft.engine import Engine
from blockdraft.engine.workloads import Workload
from blockdraft.errors import TrainingError
from blockdraft.models.load import load_model
from blockdraft.testing.scripted import ScriptedDrafter
from blockdraft.testing.tiny_gguf import write_tiny_gguf
from blockdraft.train.evaluate import measure_acceptance

PROMPTS = [
    Workload(id=str(index), category=category, turns=(text, "a second turn"))
    for index, (category, text) in enumerate((("chat", "Hello"), ("code", "def f"), ("chat", "Why?")))
]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return load_model(str(write_tiny_gguf(tmp_path_factory.mktemp("evaluate") / "tiny.gguf", quant="F32")))


def never_ends(model, **options):
    """Forbid the end tokens, so that answers have the length that a test counts with."""
    return SamplingParams(logit_bias=dict.fromkeys(model.tokenizer.eos_ids, -math.inf), **options)


def answers_of(model, max_tokens):
    engine = Engine(model.target, model.tokenizer)
    texts = [prompt.turns[0] for prompt in PROMPTS]
    answers = engine.generate_batch(texts, max_tokens=max_tokens, sampling=never_ends(model))
    return {answer.prompt_ids: answer.token_ids for answer in answers}


@pytest.mark.parametrize("batch", [1, 3])
def test_a_drafter_that_is_right_twice_in_each_round_emits_three_tokens_a_round(model, batch):
    drafter = ScriptedDrafter(answers_of(model, 31), vocab_size=model.target.info.vocab_size, num_right=2)
    report = measure_acceptance(
        model.target, model.tokenizer, drafter, PROMPTS, max_tokens=31, sampling=never_ends(model), batch=batch
    )
    assert report.num_prompts == 3
    assert report.num_tokens == 3 * 31
    assert report.mean_acceptance_length == 3.0
    assert report.overall.num_rounds == 3 * 10
    assert [report.overall.conditional_acceptance_at(slot) for slot in range(3)] == [1.0, 1.0, 0.0]


def test_categories_are_counted_apart_and_add_up(model):
    answers = answers_of(model, 16)
    drafter = ScriptedDrafter(answers, vocab_size=model.target.info.vocab_size)
    report = measure_acceptance(
        model.target, model.tokenizer, drafter, PROMPTS, max_tokens=16, sampling=never_ends(model)
    )
    assert list(report.by_category) == ["chat", "code"]
    assert report.by_category["chat"].num_emitted == 2 * 15
    assert report.by_category["code"].num_emitted == 15


def test_samples_of_equal_prompts_are_drawn_apart(model):
    """Otherwise held-out prompts that begin alike would be one observation counted several times."""
    twice = [Workload(id=name, category=name, turns=("Hello",)) for name in "ab"]
    drafter = NgramSimpleDrafter(NgramSimple(size_n=1, size_m=4, min_draft=1))
    sampling = SamplingParams(temperature=1.0)
    report = measure_acceptance(model.target, model.tokenizer, drafter, twice, max_tokens=64, sampling=sampling)
    assert report.by_category["a"] != report.by_category["b"]


def test_the_report_is_plain_data(model):
    drafter = ScriptedDrafter(answers_of(model, 16), vocab_size=model.target.info.vocab_size)
    report = measure_acceptance(
        model.target, model.tokenizer, drafter, PROMPTS, max_tokens=16, sampling=never_ends(model)
    )
    data = json.loads(json.dumps(report.to_dict()))
    assert data["mean_acceptance_length"] == report.mean_acceptance_length
    assert data["acceptance_rate"] == report.acceptance_rate
    assert set(data["by_category"]) == {"chat", "code"}
    assert data["num_tokens"] == 48


def test_no_prompts_is_an_error(model):
    drafter = ScriptedDrafter({}, vocab_size=model.target.info.vocab_size)
    with pytest.raises(TrainingError, match="held-out prompts"):
        measure_acceptance(model.target, model.tokenizer, drafter, [])
