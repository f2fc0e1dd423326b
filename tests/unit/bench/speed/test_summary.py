"""Figures of made-up runs, whose every time is known."""

from __future__ import annotations

from dataclasses import replace

import pytest
from made_runs import BASE_S, FIRST_S, NUM_TOKENS, cells, counts, made_run

from blockdraft.bench.speed.drafts import DraftCounts
from blockdraft.bench.speed.records import Failure
from blockdraft.bench.speed.summary import summarise
from blockdraft.bench.speed.workload import Cell


def test_figures_of_a_cell() -> None:
    [cell] = cells("code")
    [figures] = summarise(made_run({cell: 2.0}, jitter=0, num_prompts=3, repeats=2)).cells
    base, own = figures.sides["baseline"], figures.sides["speculative"]
    assert base.ttft_ms is not None
    assert base.tpot_ms is not None
    assert own.tpot_ms is not None
    assert own.request_tokens_per_second is not None
    assert own.total_tokens_per_second is not None
    assert base.ttft_ms.median == pytest.approx(1000 * FIRST_S)
    assert base.tpot_ms.median == pytest.approx(1000 * BASE_S)
    assert own.tpot_ms.median == pytest.approx(500 * BASE_S)
    assert own.request_tokens_per_second.median == pytest.approx(2 / BASE_S)
    whole = FIRST_S + (NUM_TOKENS - 1) * BASE_S / 2
    assert own.total_tokens_per_second.median == pytest.approx(NUM_TOKENS / whole)
    assert own.gap_p99_ms == pytest.approx(500 * BASE_S)
    assert (own.num_requests, own.failures, own.joules_per_token) == (6, {}, None)
    assert own.drafts is not None
    assert own.drafts.num_drafted == 600


def test_ratios_are_of_pairs_and_above_one_where_drafts_are_faster() -> None:
    [figures] = summarise(made_run({cells("code")[0]: 2.0}, jitter=0)).cells
    assert figures.decode_ratio is not None
    assert figures.request_ratio is not None
    assert figures.ttft_ratio is not None
    assert figures.throughput_ratio is not None
    assert figures.decode_ratio.value == pytest.approx(2)
    decode_s = (NUM_TOKENS - 1) * BASE_S
    assert figures.request_ratio.value == pytest.approx((FIRST_S + decode_s) / (FIRST_S + decode_s / 2))
    assert figures.ttft_ratio.value == pytest.approx(1)
    assert figures.throughput_ratio.value == pytest.approx(figures.request_ratio.value)


def test_categories_weigh_the_same_in_a_condition() -> None:
    run = made_run({cells("code")[0]: 4.0, cells("chat")[0]: 1.0}, jitter=0)
    [condition] = summarise(run).conditions
    assert condition.decode_ratio is not None
    assert condition.decode_ratio.value == pytest.approx(2)


def test_a_message_that_one_side_did_not_answer_has_no_pair() -> None:
    def fail(sample):
        return replace(sample, failure=Failure(kind="timeout", message="")) if sample.prompt_id == "code/0" else sample

    [figures] = summarise(made_run({cells("code")[0]: 2.0}, samples={"speculative": fail})).cells
    assert figures.decode_ratio is not None
    assert figures.decode_ratio.num_prompts == 5
    assert figures.sides["speculative"].failures == {"timeout": 3}


def test_without_a_baseline_there_is_no_ratio() -> None:
    summary = summarise(made_run(dict.fromkeys(cells("code", concurrencies=(1, 2)), 2.0), has_baseline=False))
    assert all(cell.decode_ratio is None and cell.throughput_ratio is None for cell in summary.cells)
    assert summary.crossovers == ()


def test_energy_is_told_by_token_if_every_pass_told_it() -> None:
    run = made_run({cells("code")[0]: 2.0}, num_prompts=2, repeats=2)
    told = replace(run, passes=tuple(replace(one, energy_j=8.2) for one in run.passes))
    assert summarise(told).cells[0].sides["baseline"].joules_per_token == pytest.approx(8.2 / (2 * NUM_TOKENS))
    half = replace(told, passes=(replace(told.passes[0], energy_j=None), *told.passes[1:]))
    assert summarise(half).cells[0].sides["baseline"].joules_per_token is None


CURVES = {
    "falls": ((1.8, 1.3, 0.8, 0.6), (4, 4, 2)),
    "stays": ((1.8, 1.5, 1.2, 1.1), (None, None, 8)),
    "never pays": ((0.9, 0.8, 0.7, 0.6), (1, 1, None)),
}


@pytest.mark.parametrize("name", CURVES)
def test_where_drafting_stops_to_pay(name: str) -> None:
    ratios, expected = CURVES[name]
    loads = (1, 2, 4, 8)
    run = made_run({Cell(category="a", concurrency=load): ratio for load, ratio in zip(loads, ratios, strict=True)})
    [cross] = summarise(run).crossovers
    assert (cross.axis, cross.fixed) == ("concurrency", 0)
    assert (cross.first_below, cross.first_clearly_below, cross.last_clearly_above) == expected


def test_a_ratio_under_one_whose_interval_is_not_is_no_clear_crossing() -> None:
    run = made_run({Cell(category="a", depth=0): 1.6, Cell(category="a", depth=100): 0.95}, jitter=0.1)
    [cross] = summarise(run).crossovers
    assert (cross.axis, cross.first_below, cross.first_clearly_below) == ("depth", 100, None)


def test_both_axes_are_looked_at_with_the_other_one_fixed() -> None:
    run = made_run(dict.fromkeys(cells("a", depths=(0, 9), concurrencies=(1, 2)), 1.5))
    found = {(cross.axis, cross.fixed) for cross in summarise(run).crossovers}
    assert found == {("concurrency", 0), ("concurrency", 9), ("depth", 1), ("depth", 2)}


def test_conditional_acceptance_is_exact_only_where_reaching_a_slot_is_counted() -> None:
    exact = counts(20, 9, 10, accepted_at=(6, 3), reached_at=(8, 4))
    assert exact.conditional_acceptance == [0.75, 0.75]
    assert exact.is_conditional_exact
    bound = counts(20, 9, 10, accepted_at=(6, 3))
    assert bound.conditional_acceptance == [0.6, 0.5]
    assert not bound.is_conditional_exact
    merged = DraftCounts.merge([exact, bound, None])
    assert merged is not None
    assert (merged.num_rounds, merged.accepted_at) == (20, (12, 6))


def test_rounds_are_all_of_them_whatever_an_engine_counts() -> None:
    # 100 tokens, 60 of them accepted: 40 rounds. The own engine says so, llama.cpp counts the 25 with a draft.
    own = counts(90, 60, 40, counts_plain_rounds=True, accepted_at=(20, 40), reached_at=(25, 20))
    theirs = counts(90, 60, 25)
    assert own.round_length(100) == theirs.round_length(100) == own.mean_acceptance_length == 2.5
    assert own.drafted_round_length == theirs.drafted_round_length == pytest.approx(1 + 60 / 25)
    assert counts(90, 60, 25).round_length(60) is None


def test_what_one_engine_does_not_tell_the_sum_does_not_either() -> None:
    merged = DraftCounts.merge([counts(None, 5), counts(10, 5)])
    assert merged is not None
    assert merged.num_drafted is None
    assert merged.acceptance_rate is None
    assert merged.num_accepted == 10
    assert DraftCounts.merge([None]) is None
