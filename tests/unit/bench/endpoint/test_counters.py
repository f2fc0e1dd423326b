"""Counters of three engines come out in one form, with differences and ratios as the glossary defines them."""

import pytest

from blockdraft.bench.endpoint.counters import (
    DraftCounters,
    counters_of_answer,
    counters_of_metrics,
    parse_metrics,
    total_of,
)
from blockdraft.errors import EndpointError

VLLM = """\
# HELP vllm:spec_decode_num_drafts_total Number of spec decoding drafts.
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{engine="0",model_name="a \\"b\\", c"} 10.0
vllm:spec_decode_num_drafts_created{engine="0",model_name="a"} 1.7e+09
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="a"} 30.0
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="a"} 12.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="a",position="1"} 3.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="a",position="0"} 8.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="a",position="2"} 1.0
vllm:prefix_cache_hits_total{engine="0",model_name="a"} 5.0
"""
LLAMACPP = """\
llamacpp:spec_decode_num_draft_tokens_total 120
llamacpp:spec_decode_num_accepted_tokens_total 90
llamacpp:spec_decode_num_drafts_total 15
llamacpp:spec_decode_num_accepted_tokens_per_pos_total{position="0"} 14
"""
SGLANG = """\
sglang:generation_tokens_total{is_streaming="false"} 500
sglang:generation_tokens_total{is_streaming="true"} 12
sglang:num_requests_total{model_name="m"} 12
sglang:spec_verify_calls_total{engine_type="unified"} 200
sglang:spec_accept_length{tp_rank="0"} 2.5
"""


def figures(counters: DraftCounters) -> tuple[object, ...]:
    return (counters.num_rounds, counters.num_drafted, counters.num_accepted, counters.accepted_at)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (VLLM, (10, 30, 12, (8, 3, 1))),
        (VLLM + VLLM.replace('engine="0"', 'engine="1"'), (20, 60, 24, (16, 6, 2))),
        (LLAMACPP, (15, 120, 90, (14,))),
        (SGLANG, (200, None, 300, ())),
    ],
)
def test_a_metrics_page_is_read(text: str, expected: tuple[object, ...]) -> None:
    assert figures(counters_of_metrics(parse_metrics(text))) == expected


@pytest.mark.parametrize("text", ["", "vllm:num_requests_running 1\n", "sglang:generation_tokens_total 9\n", "<html>"])
def test_a_page_without_drafts_is_none(text: str) -> None:
    assert counters_of_metrics(parse_metrics(text)) is None


def test_labels_may_hold_quotes_and_commas() -> None:
    sample = parse_metrics(VLLM)[0]
    assert sample.labels == {"engine": "0", "model_name": 'a "b", c'}
    assert sample.value == 10


def test_a_total_is_found_with_and_without_its_ending() -> None:
    samples = parse_metrics('a_total 2\nb{x="1"} 3\nb{x="2"} 4\n')
    assert (total_of(samples, "a"), total_of(samples, "b"), total_of(samples, "c")) == (2, 7, None)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ({"timings": {"predicted_n": 5, "draft_n": 9, "draft_n_accepted": 4}}, (None, 9, 4, ())),
        ({"timings": {"predicted_n": 5}}, (None, 0, 0, ())),
        (
            {
                "metrics": {
                    "speculative_decoding": {
                        "num_spec_steps": 6,
                        "num_draft_tokens": 18,
                        "num_accepted_draft_tokens": 8,
                        "acceptance_histogram": [2, 1, 2, 1],
                    }
                }
            },
            (6, 18, 8, (4, 3, 1)),
        ),
        (
            {"meta_info": {"spec_verify_ct": 4, "spec_num_proposed_drafts": 28, "spec_num_correct_drafts": 7}},
            (4, 28, 7, ()),
        ),
        ({"choices": [{"meta_info": {"spec_verify_ct": 4}}]}, (4, None, None, ())),
    ],
)
def test_an_answer_tells_about_its_own_drafts(answer: dict[str, object], expected: tuple[object, ...]) -> None:
    assert figures(counters_of_answer(answer)) == expected


@pytest.mark.parametrize("answer", [{}, {"metrics": None, "choices": []}, {"choices": [{"text": "a"}]}])
def test_an_answer_that_says_nothing_is_none(answer: dict[str, object]) -> None:
    assert counters_of_answer(answer) is None


def test_what_happened_in_between_is_the_difference() -> None:
    before = counters_of_metrics(parse_metrics(VLLM))
    after = DraftCounters(num_rounds=14, num_drafted=42, num_accepted=20, accepted_at=(12, 6, 2, 0), source="/metrics")
    since = after - before
    assert figures(since) == (4, 12, 8, (4, 3, 1, 0))
    assert since.acceptance_rate == pytest.approx(8 / 12)
    assert since.mean_acceptance_length == pytest.approx(1 + 8 / 4)
    assert since.survival == (1.0, 0.75, 0.25, 0.0)
    assert figures(since + before)[:3] == (14, 42, 20)


def test_a_restarted_server_is_not_subtracted() -> None:
    later = DraftCounters(num_rounds=1, num_drafted=2, num_accepted=0, source="/metrics")
    with pytest.raises(EndpointError, match="restarted"):
        _ = later - counters_of_metrics(parse_metrics(VLLM))


def test_what_is_not_told_has_no_ratio() -> None:
    silent = DraftCounters(num_rounds=None, num_drafted=0, num_accepted=0, source="timings")
    assert (silent.acceptance_rate, silent.mean_acceptance_length, silent.survival) == (None, None, ())
