"""A seed decides an answer: not the batch, not the order, not other requests, not how much was drafted before."""

from collections.abc import Callable
from pathlib import Path

import pytest

from blockdraft.core.sampling import SamplingParams
from blockdraft.drafters.base import Drafter
from blockdraft.drafters.dflash import DFlashDrafter
from blockdraft.drafters.draft_model import DraftModelDrafter
from blockdraft.drafters.dspark import DSparkDrafter
from blockdraft.engine import Engine, Request
from blockdraft.testing.tiny_drafters import TinyDrafter, write_tiny_drafter
from blockdraft.testing.tiny_models import tiny_target

PROMPTS = ((1, 4, 2), (3, 3), (0, 1, 2, 3, 4, 5, 6, 7))
TARGET = tiny_target("llama", vocab_size=12)  # so few tokens that a random drafter's are often kept


def dflash(folder: Path) -> Drafter:
    return DFlashDrafter.load(write_tiny_drafter(folder, TARGET.info, TinyDrafter(block_size=5)), TARGET)


def dspark(folder: Path) -> Drafter:
    drafter = TinyDrafter(method="dspark", packaging="deepspec", block_size=5)
    return DSparkDrafter.load(write_tiny_drafter(folder, TARGET.info, drafter), TARGET, p_min=0.3)


def draft_simple(folder: Path) -> Drafter:
    return DraftModelDrafter(tiny_target("llama", 1, vocab_size=12), max_draft_tokens=4, p_min=0.2)


@pytest.fixture(params=[dflash, dspark, draft_simple], ids=lambda build: build.__name__)
def engine(request, tmp_path: Path) -> Engine:
    build: Callable[[Path], Drafter] = request.param
    return Engine(TARGET, drafter=build(tmp_path))


def asked(prompt: tuple[int, ...] = PROMPTS[0], seed: int = 0, max_tokens: int = 24, sample_index: int = 0) -> Request:
    sampling = SamplingParams(temperature=1.5, seed=seed)
    return Request(prompt_ids=prompt, max_tokens=max_tokens, sampling=sampling, sample_index=sample_index)


def ids(engine: Engine, *requests: Request) -> list[tuple[int, ...]]:
    return [answer.token_ids for answer in engine.run(requests)]


def test_the_same_seed_gives_the_same_answer(engine):
    """vllm#9441."""
    assert ids(engine, asked(seed=5)) == ids(engine, asked(seed=5))


def test_another_seed_and_another_sample_give_other_answers(engine):
    """TensorRT-LLM#19487: n samples must not be one sample n times."""
    requests = [asked(seed=seed, sample_index=index) for seed in range(3) for index in range(3)]
    assert len(set(ids(engine, *requests))) == 9


def test_the_seeds_of_other_requests_change_nothing(engine):
    """vllm#6038, sglang#30822: alone, in company, in another order and after other work."""
    alone = ids(engine, asked(seed=5))[0]
    others = [asked(prompt, seed=seed) for prompt in PROMPTS for seed in (1, 2)]
    assert ids(engine, *others, asked(seed=5))[-1] == alone
    assert ids(engine, asked(seed=5), *others[::-1])[0] == alone
    late = engine.submit(asked(PROMPTS[1], seed=9, max_tokens=50))
    for _ in range(4):
        engine.step()
    assert ids(engine, asked(seed=5))[0] == alone
    engine.cancel(late)


def test_a_longer_answer_begins_with_the_shorter_one(knowing):
    """The limit shortens drafts; tokens before it must not feel that. True of `match`, whose draws are the target's."""
    sampling = SamplingParams(temperature=1.0, seed=2)
    engine = knowing((9, 80), sampling=sampling, num_drafts=7, num_right=3)
    whole = engine.generate((9, 80), sampling=sampling, max_tokens=40, ignore_eos=True).token_ids
    for max_tokens in (1, 2, 5, 9, 23):
        short = engine.generate((9, 80), sampling=sampling, max_tokens=max_tokens, ignore_eos=True).token_ids
        assert short == whole[:max_tokens]


@pytest.mark.parametrize("num_drafts", [1, 3, 9])
def test_with_match_the_answer_of_a_seed_is_that_of_plain_decoding(plain, knowing, num_drafts):
    """TensorRT-LLM#17599: drafts, right or wrong, change the speed and not one sampled token."""
    sampling = SamplingParams(temperature=1.3, seed=8, top_p=0.95)
    engine = knowing((9, 80), sampling=sampling, num_drafts=num_drafts, num_right=lambda index: index % 4)
    answers = [each.generate((9, 80), sampling=sampling, max_tokens=40, ignore_eos=True) for each in (engine, plain)]
    assert answers[0].token_ids == answers[1].token_ids
    assert answers[0].stats.num_accepted > 0


def test_samples_of_one_seed_stream_as_they_generate(engine):
    for index in range(3):
        streamed = [token.id for chunk in engine.stream_request(asked(sample_index=index)) for token in chunk.tokens]
        assert tuple(streamed) == ids(engine, asked(sample_index=index))[0]
