"""From logits to the requested distribution, against references written the slow way, in float64."""

import math
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from blockdraft.core import sampling
from blockdraft.core.sampling import SamplingParams, TokenCounts, sample_rows, shape_logits, shape_probs
from blockdraft.errors import ConfigError

CPU = torch.device("cpu")


def logits_of(num_rows: int, vocab: int, seed: int = 0, scale: float = 2.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(num_rows, vocab, generator=generator, dtype=torch.float64)


def slow_probs(row: list[float], params: SamplingParams) -> list[float]:
    """Temperature, then min-p, then top-k, then top-p of what is left; one row of floats."""
    scaled = [value / params.temperature for value in row]
    top = max(scaled)
    weights = [math.exp(value - top) for value in scaled]  # the largest is 1, so min-p compares with it directly
    weights = [weight if weight >= params.min_p else 0.0 for weight in weights]
    order = sorted(range(len(weights)), key=lambda i: -weights[i])
    if params.top_k:
        order = order[: params.top_k]
    total = sum(weights[i] for i in order)
    kept, mass = [], 0.0
    for i in order:
        if params.top_p < 1 and mass >= params.top_p:
            break
        kept.append(i)
        mass += weights[i] / total
    total = sum(weights[i] for i in kept)
    return [weights[i] / total if i in kept else 0.0 for i in range(len(weights))]


def slow_logits(row: list[float], params: SamplingParams, prompt: list[int], answer: list[int]) -> list[float]:
    """Bias, then the repetition penalty, then frequency and presence; one row that knows its own prefix."""
    counts = Counter(answer)
    shaped = []
    for token, score in enumerate(row):
        value = score + params.logit_bias.get(token, 0.0)
        if token in prompt or token in counts:
            value = value / params.repetition_penalty if value > 0 else value * params.repetition_penalty
        value -= params.frequency_penalty * counts[token]
        value -= params.presence_penalty * (token in counts)
        shaped.append(value)
    return shaped


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    temperature=st.floats(0.05, 5),
    top_k=st.integers(0, 40),
    top_p=st.floats(0.01, 1),
    min_p=st.sampled_from([0.0, 0.01, 0.2, 1.0]),
)
def test_any_combination_of_filters_equals_the_slow_reference(seed, temperature, top_k, top_p, min_p):
    params = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    logits = logits_of(2, 30, seed)
    probs = shape_probs(logits, params)
    expected = torch.tensor([slow_probs(row, params) for row in logits.tolist()], dtype=torch.float64)
    torch.testing.assert_close(probs, expected, atol=1e-12, rtol=1e-9)


def test_the_order_of_the_steps_is_temperature_min_p_top_k_top_p():
    logits = torch.tensor([[0.5, 0.2, 0.15, 0.1, 0.05]], dtype=torch.float64).log()
    # Temperature first: 0.5 squared is below 0.2 of the largest for all but the second token.
    assert shape_probs(logits, SamplingParams(temperature=0.5, min_p=0.15)).count_nonzero() == 2
    assert shape_probs(logits, SamplingParams(temperature=1.0, min_p=0.15)).count_nonzero() == 4
    # The nucleus is measured on what top-k left: 0.5 / 0.7 reaches 0.7, 0.5 alone does not.
    assert shape_probs(logits, SamplingParams(temperature=1.0, top_k=2, top_p=0.7)).count_nonzero() == 1
    assert shape_probs(logits, SamplingParams(temperature=1.0, top_p=0.7)).count_nonzero() == 2


@pytest.mark.parametrize("top_p", [0.3, 0.9, 0.999])
@pytest.mark.parametrize("scale", [0.1, 6.0])
def test_the_top_p_window_changes_nothing(top_p, scale, monkeypatch):
    """A flat row needs far more tokens than the window, a steep one far fewer."""
    params = SamplingParams(temperature=1.0, top_p=top_p)
    logits = torch.cat((logits_of(2, 3000, scale=scale), logits_of(1, 3000, seed=1, scale=5.0)))
    probs = shape_probs(logits, params)
    monkeypatch.setattr(sampling, "_WINDOWS", ())
    torch.testing.assert_close(probs, shape_probs(logits, params), atol=1e-14, rtol=0)
    mass = torch.softmax(logits, -1).sort(-1, descending=True).values.cumsum(-1)
    assert probs.count_nonzero(-1).tolist() == ((mass < top_p).sum(-1) + 1).tolist()


def test_top_p_with_a_large_top_k_sees_all_that_top_k_left():
    params = SamplingParams(temperature=1.0, top_k=1500, top_p=0.99)
    logits = logits_of(2, 3000, scale=0.1)
    expected = torch.tensor([slow_probs(row, params) for row in logits.tolist()], dtype=torch.float64)
    torch.testing.assert_close(shape_probs(logits, params), expected, atol=1e-12, rtol=0)
    assert (shape_probs(logits, params) > 0).sum(-1).min() > 1000


def test_ties_keep_exactly_k_tokens_and_min_p_keeps_all_of_them():
    logits = torch.zeros(1, 8)
    assert shape_probs(logits, SamplingParams(temperature=1.0, top_k=3)).tolist()[0].count(0.0) == 5
    assert shape_probs(logits, SamplingParams(temperature=1.0, min_p=1.0)).count_nonzero() == 8
    assert shape_probs(logits, SamplingParams(temperature=1.0, top_p=0.5)).count_nonzero() == 4


def test_the_likeliest_token_always_survives():
    logits = logits_of(3, 50)
    for options in ({"top_k": 1}, {"top_p": 1e-9}, {"min_p": 1.0}):
        probs = shape_probs(logits, SamplingParams(temperature=1.3, **options))
        assert probs.argmax(-1).tolist() == logits.argmax(-1).tolist()
        torch.testing.assert_close(probs.amax(-1), torch.ones(3, dtype=torch.float64))


def test_half_precision_logits_are_shaped_in_float32_and_float64_stays():
    params = SamplingParams(temperature=0.9, top_p=0.9, repetition_penalty=1.1)
    counts = TokenCounts([1], 20, CPU)
    for dtype, expected in ((torch.bfloat16, torch.float32), (torch.float32, torch.float32), (torch.float64,) * 2):
        logits = logits_of(1, 20).to(dtype)
        assert shape_probs(logits, params).dtype == expected
        assert shape_logits(logits, params, counts).dtype == expected


@pytest.mark.parametrize("temperature", [0.0, 9e-6])
def test_a_temperature_below_1e_5_is_greedy(temperature):
    params = SamplingParams(temperature=temperature, top_p=0.1)
    assert params.is_greedy
    logits = logits_of(3, 20)
    assert shape_probs(logits, params).tolist() == torch.eye(20)[logits.argmax(-1)].tolist()
    assert not SamplingParams(temperature=1e-5).is_greedy


@settings(max_examples=40, deadline=None)
@given(
    prompt=st.lists(st.integers(0, 11), min_size=1, max_size=6),
    answer=st.lists(st.integers(0, 11), max_size=6),
    drafts=st.lists(st.integers(0, 11), max_size=4),
    repetition=st.sampled_from([1.0, 1.3, 0.8]),
    presence=st.sampled_from([0.0, 0.7]),
    frequency=st.sampled_from([0.0, 0.4, -0.4]),
    has_bias=st.booleans(),
)
def test_each_row_is_penalised_for_its_own_prefix(**case):
    prompt, answer, drafts = case["prompt"], case["answer"], case["drafts"]
    params = SamplingParams(
        repetition_penalty=case["repetition"],
        presence_penalty=case["presence"],
        frequency_penalty=case["frequency"],
        logit_bias={2: 3.0, 5: -1.5} if case["has_bias"] else {},
    )
    counts = TokenCounts(prompt, 12, CPU)
    counts.add(answer)
    logits = logits_of(len(drafts) + 1, 12)
    before = logits.clone()
    shaped = shape_logits(logits, params, counts, drafts)
    for row in range(len(logits)):
        expected = slow_logits(logits[row].tolist(), params, prompt, answer + drafts[:row])
        # Counts are float32, and so is their product with a penalty.
        torch.testing.assert_close(shaped[row], torch.tensor(expected, dtype=torch.float64), atol=1e-6, rtol=0)
    assert torch.equal(logits, before)
    assert counts.in_answer.tolist() == [answer.count(token) for token in range(12)]


def test_without_bias_or_penalties_the_logits_are_passed_on_untouched():
    logits = logits_of(2, 9).to(torch.bfloat16)
    assert shape_logits(logits, SamplingParams(temperature=0.5)) is logits


def test_a_token_can_be_forbidden_by_an_infinite_bias():
    logits = logits_of(2, 9)
    best = int(logits[0].argmax())
    shaped = shape_logits(logits, SamplingParams(temperature=1.0, logit_bias={best: -math.inf}))
    assert shaped[0].argmax() != best
    assert shape_probs(shaped, SamplingParams(temperature=1.0))[:, best].tolist() == [0.0, 0.0]


def test_draws_invert_the_cumulative_distribution():
    probs = torch.tensor([[0.0, 0.25, 0.0, 0.5, 0.25, 0.0]]).expand(6, -1)
    points = torch.tensor([0.0, 0.249, 0.25, 0.7499, 0.75, 1 - 2**-53], dtype=torch.float64)
    assert sample_rows(probs, points).tolist() == [1, 1, 3, 3, 4, 4]
    assert sample_rows(3 * probs, points).tolist() == [1, 1, 3, 3, 4, 4]


@pytest.mark.parametrize("vocab", [5, 127, 128, 129, 1000, 49152])
def test_draws_from_any_vocabulary_are_those_of_its_running_sums(vocab):
    """Integers that add up to a power of two: sums are exact, and points on a boundary are drawn by the rule."""
    generator = torch.Generator().manual_seed(vocab)
    probs = torch.randint(0, 8, (40, vocab), generator=generator).float()
    total = 2.0**19
    probs[:, -1] += total - probs.sum(-1)
    mass = probs.double().cumsum(-1)
    boundaries = mass.gather(1, torch.randint(0, vocab, (40, 1), generator=generator))[:, 0]
    for shift in (-0.5, 0.0, 0.5):
        points = (boundaries + shift).clamp(0.0, total - 0.5)
        expected = [int((row <= point).sum()) for row, point in zip(mass, points, strict=True)]
        assert sample_rows(probs / total, points / total).tolist() == expected


@pytest.mark.parametrize("vocab", [40, 128, 300])
def test_a_token_without_probability_is_never_drawn(vocab):
    """Points as near to the ends as they come, and rows whose mass rounds."""
    generator = torch.Generator().manual_seed(0)
    probs = torch.rand(500, vocab, generator=generator) * (torch.rand(500, vocab, generator=generator) < 0.1)
    probs[:, 7] += 1e-30
    for point in (0.0, 0.5, 1 - 2**-53):
        drawn = sample_rows(probs, torch.full((500,), point, dtype=torch.float64))
        assert (probs.gather(1, drawn[:, None]) > 0).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": -0.1}, "temperature must be at least 0, not -0.1"),
        ({"temperature": math.inf}, "temperature must be at least 0"),
        ({"temperature": math.nan}, "temperature must be at least 0"),
        ({"top_k": -1}, "top_k must be at least 0"),
        ({"top_p": 0.0}, r"top_p must be in \(0, 1\]"),
        ({"top_p": 1.1}, r"top_p must be in \(0, 1\]"),
        ({"min_p": 1.5}, r"min_p must be in \[0, 1\]"),
        ({"repetition_penalty": 0.0}, "repetition_penalty must be above 0"),
        ({"presence_penalty": math.nan}, "presence_penalty must be finite"),
        ({"frequency_penalty": math.inf}, "frequency_penalty must be finite"),
        ({"logit_bias": {-1: 1.0}}, "token ids and cannot be negative"),
        ({"logit_bias": {4: math.nan}}, "logit_bias of token 4 must be finite"),
        ({"logit_bias": {4: math.inf}}, "logit_bias of token 4 must be finite"),
    ],
)
def test_values_outside_their_range_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        SamplingParams(**options)


def test_parameters_are_frozen_and_plain_data():
    bias = {3: 1.0}
    params = SamplingParams(temperature=0.5, logit_bias=bias)
    bias[3] = 9.0
    assert params.logit_bias[3] == 1.0
    with pytest.raises(TypeError):
        params.logit_bias[3] = 2.0  # type: ignore[index]
    assert params.to_dict()["logit_bias"] == {3: 1.0}
    assert SamplingParams(**params.to_dict()) == params
