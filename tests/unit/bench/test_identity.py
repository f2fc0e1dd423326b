import pytest
import torch

from blockdraft.bench.identity import NEAR_TIE_GAP, Difference, first_difference
from blockdraft.core.sampling import SamplingParams
from blockdraft.models.base import Segment
from blockdraft.testing.tiny_models import tiny_target

PROMPT = [5, 9, 14, 3]
ANSWER = [7, 8, 9, 10, 11]


@pytest.fixture(scope="module")
def target():
    return tiny_target()


def row_after(target, token_ids):
    return target.forward([Segment(token_ids=token_ids, cache=target.new_cache(), num_logits=1)]).logits[0]


def test_equal_answers_have_no_difference(target):
    assert first_difference(target, PROMPT, ANSWER, list(ANSWER)) is None


def test_the_gap_is_that_of_the_row_after_the_common_prefix(target):
    found = first_difference(target, PROMPT, ANSWER, [7, 8, 40, 10, 11])
    assert found is not None
    assert (found.position, found.plain_id, found.other_id) == (2, 9, 40)
    row = row_after(target, [*PROMPT, 7, 8])
    assert found.gap == pytest.approx(abs(float(row[9] - row[40])), abs=1e-5)
    log_probs = row.log_softmax(-1)
    assert found.gap == pytest.approx(abs(float(log_probs[9] - log_probs[40])), abs=1e-5)


def test_a_long_prompt_is_run_in_chunks(target):
    prompt = [3 + index % 80 for index in range(505)]
    tail = [20 + index for index in range(12)]
    found = first_difference(tiny_target(max_position_embeddings=1024), prompt, [*tail, 4], [*tail, 5])
    row = row_after(tiny_target(max_position_embeddings=1024), [*prompt, *tail])
    assert found is not None
    assert found.gap == pytest.approx(abs(float(row[4] - row[5])), abs=1e-4)


def test_two_tokens_that_share_a_head_row_are_nearly_tied():
    target = tiny_target()
    target.head_weight[40] = target.head_weight[9]
    tied = first_difference(target, PROMPT, ANSWER, [7, 8, 40, 10, 11])
    assert tied is not None
    assert tied.is_near_tie
    assert tied.gap == pytest.approx(0, abs=1e-5)


@pytest.mark.parametrize(("gap", "is_near_tie"), [(0.0, True), (0.049, True), (NEAR_TIE_GAP, False), (None, False)])
def test_near_ties_are_below_the_gap(gap, is_near_tie):
    difference = Difference(position=0, plain_id=1, other_id=2, gap=gap)
    assert difference.is_near_tie is is_near_tie
    assert difference.to_dict()["is_near_tie"] is is_near_tie


@pytest.mark.parametrize(
    ("plain", "other", "ids"), [(ANSWER, ANSWER[:3], (10, None)), (ANSWER[:3], ANSWER, (None, 10))]
)
def test_an_answer_that_ends_earlier_is_a_difference_and_never_a_near_tie(target, plain, other, ids):
    found = first_difference(target, PROMPT, plain, other)
    assert found == Difference(position=3, plain_id=ids[0], other_id=ids[1], gap=None)
    assert not found.is_near_tie


def test_the_gap_counts_bias_and_penalties(target):
    sampling = SamplingParams(logit_bias={40: 2.0}, frequency_penalty=0.5)
    found = first_difference(target, PROMPT, [9, 8, 9], [9, 8, 40], sampling=sampling)
    row = row_after(target, [*PROMPT, 9, 8])
    assert found is not None
    assert found.gap == pytest.approx(abs(float((row[9] - 0.5) - (row[40] + 2.0))), abs=1e-5)


def test_half_precision_logits_are_compared_in_float32():
    target = tiny_target(dtype=torch.bfloat16)
    found = first_difference(target, PROMPT, ANSWER, [7, 8, 40, 10, 11])
    row = row_after(target, [*PROMPT, 7, 8]).float()
    assert found is not None
    assert found.gap == pytest.approx(abs(float(row[9] - row[40])), abs=1e-6)
