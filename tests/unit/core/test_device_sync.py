"""The decision of a round stays on the device: on meta tensors, which have no values, any look at one raises."""

import pytest
import torch

from blockdraft.core.sampling import SamplingParams, TokenCounts, sample_rows, shape_logits, shape_probs
from blockdraft.core.verify import verify_rejection

META = torch.device("meta")
ROWS, VOCAB = 4, 2000


@pytest.mark.parametrize("is_sampled", [True, False])
@pytest.mark.parametrize("num_drafts", [0, 3])
def test_rejection_asks_the_device_for_nothing(is_sampled, num_drafts):
    num_accepted, next_id = verify_rejection(
        torch.empty(num_drafts + 1, VOCAB, device=META),
        torch.empty(num_drafts, VOCAB, device=META) if is_sampled else None,
        torch.empty(num_drafts, dtype=torch.long, device=META),
        torch.empty(num_drafts + 1, 4, dtype=torch.float64, device=META),
    )
    assert num_accepted.shape == next_id.shape == ()


def test_shaping_and_drawing_ask_the_device_for_nothing():
    params = SamplingParams(temperature=0.7, top_k=50, top_p=0.9, min_p=0.01)
    probs = shape_probs(torch.empty(ROWS, VOCAB, device=META), params)
    assert sample_rows(probs, torch.empty(ROWS, device=META)).shape == (ROWS,)


def test_penalties_and_bias_ask_the_device_for_nothing():
    counts = TokenCounts([1, 2], VOCAB, torch.device("cpu"))
    counts.in_prompt, counts.in_answer = counts.in_prompt.to(META), counts.in_answer.to(META)
    params = SamplingParams(
        repetition_penalty=1.2, presence_penalty=0.1, frequency_penalty=0.1, logit_bias={3: 1.0, 7: -2.0}
    )
    shaped = shape_logits(torch.empty(ROWS, VOCAB, device=META), params, counts, (5, 6, 7))
    assert shaped.shape == (ROWS, VOCAB)
