"""Every option that shapes the next token acts on each row of a block with the tokens of that row's own prefix.

The oracle decodes token by token and passes all tokens anew each time. Under greedy decoding and `match`, the
answer with drafts must be the very same; drafts are right for most slots, so that blocks are accepted in part.
"""

from typing import Any

import pytest
import torch

from blockdraft.core.random import Draw, PositionalRandom
from blockdraft.core.sampling import SamplingParams, TokenCounts, sample_rows, shape_logits, shape_probs
from blockdraft.engine import Engine
from blockdraft.models.base import Segment

PROMPT = (9, 80, 9, 80)
LENGTH = 20

PENALTIES: dict[str, dict[str, Any]] = {
    "repetition": {"repetition_penalty": 1.5},
    "presence": {"presence_penalty": 2.0},
    "frequency": {"frequency_penalty": 1.5},
    "all": {"repetition_penalty": 1.2, "presence_penalty": 0.5, "frequency_penalty": 0.5},
}
FILTERS: dict[str, dict[str, Any]] = {
    "top_k": {"top_k": 5},
    "top_p": {"top_p": 0.6},
    "min_p": {"min_p": 0.2},
    "bias": {"logit_bias": {40: 6.0, 41: 6.0, 42: -50.0}},
    "everything": {"top_k": 30, "top_p": 0.8, "min_p": 0.05, "logit_bias": {40: 3.0}, "frequency_penalty": 1.0},
}


def decode_slowly(engine: Engine, sampling: SamplingParams, num_tokens: int) -> tuple[int, ...]:
    """One token at a time, everything from the start: a fresh cache, fresh counts, one row of logits."""
    random, answer = PositionalRandom(sampling.seed), []
    for _ in range(num_tokens):
        tokens = [*PROMPT, *answer]
        counts = TokenCounts(PROMPT, engine.target.info.vocab_size, torch.device("cpu"))
        counts.add(answer)
        logits = shape_logits(last_logits(engine, tokens), sampling, counts)
        if sampling.is_greedy:
            answer.append(int(logits.argmax()))
        else:
            point = torch.tensor([random.uniform(len(tokens), Draw.TARGET)], dtype=torch.float64)
            answer.append(int(sample_rows(shape_probs(logits, sampling), point)))
    return tuple(answer)


def last_logits(engine: Engine, tokens: list[int]) -> torch.Tensor:
    segment = Segment(token_ids=tokens, cache=engine.target.new_cache(), num_logits=1)
    return engine.target.forward([segment]).logits


def check(knowing: Any, **options: Any) -> None:
    sampling = SamplingParams(**options)
    engine = knowing(
        PROMPT, sampling=sampling, max_tokens=LENGTH, num_drafts=6, num_right=lambda index: (6, 2, 0, 4)[index % 4]
    )
    answer = engine.generate(PROMPT, sampling=sampling, max_tokens=LENGTH, ignore_eos=True)
    assert answer.token_ids == decode_slowly(engine, sampling, LENGTH)
    assert 0 < answer.stats.num_accepted < answer.stats.num_drafted
    # The option matters here: without it, the answer is another one.
    bare = SamplingParams(temperature=sampling.temperature, seed=sampling.seed)
    assert answer.token_ids != decode_slowly(engine, bare, LENGTH)


@pytest.mark.parametrize("name", PENALTIES)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_penalties_count_the_tokens_drafted_earlier_in_the_same_block(knowing, name, temperature):
    """sglang#28180, #33643, vllm#18902, TensorRT-LLM#17701."""
    check(knowing, temperature=temperature, seed=4, **PENALTIES[name])


@pytest.mark.parametrize("name", FILTERS)
def test_filters_and_bias_shape_every_row_of_a_block(knowing, name):
    """vllm#42744, #42802, #38202 (min_p, logit_bias ignored); sparkring#161 (top_p, top_k dropped)."""
    check(knowing, temperature=1.2, seed=4, **FILTERS[name])


def test_a_bias_that_moves_the_argmax_holds_in_greedy_blocks(knowing):
    """Drafts that follow the unbiased model are rejected, drafts that follow the bias are kept."""
    check(knowing, logit_bias={40: 9.0, 41: 9.0, 42: -9.0})


def test_drafts_of_a_drafter_that_ignores_the_penalties_are_judged_with_them(plain, knowing):
    sampling = SamplingParams(frequency_penalty=2.0, logit_bias={7: 4.0})
    ignorant = knowing(PROMPT, max_tokens=LENGTH, num_drafts=5)  # knows the unpenalised answer
    answer = ignorant.generate(PROMPT, sampling=sampling, max_tokens=LENGTH, ignore_eos=True)
    assert answer.token_ids == decode_slowly(plain, sampling, LENGTH)
    assert answer.stats.num_drafted > answer.stats.num_accepted


@pytest.mark.parametrize("options", [{}, {"temperature": 1.0, "top_k": 3}, {"frequency_penalty": 1.0}])
def test_every_token_has_the_targets_own_log_probability(knowing, options):
    """llama.cpp#27972, #27196, vllm#34497, sglang#10660: not zero, not missing, whoever drafted it.

    It is that of the unshaped model, whatever shaped the choice.
    """
    sampling = SamplingParams(**options)
    engine = knowing(PROMPT, sampling=sampling, max_tokens=LENGTH, num_drafts=4, num_right=lambda index: index % 5)
    answer = engine.generate(PROMPT, sampling=sampling, max_tokens=LENGTH, ignore_eos=True, logprobs=True)
    assert {token.kind for token in answer.tokens} >= {"first", "drafted", "recovered"}
    for place, token in enumerate(answer.tokens):
        logits = last_logits(engine, [*PROMPT, *answer.token_ids[:place]])[0]
        assert token.logprob == pytest.approx(float(logits.log_softmax(-1)[token.id]), abs=1e-4)


def test_log_probabilities_are_left_out_unless_asked_for(knowing):
    answer = knowing(PROMPT).generate(PROMPT, max_tokens=8)
    assert {token.logprob for token in answer.tokens} == {None}
