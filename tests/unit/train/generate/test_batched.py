"""Batched generation gives the engine's tokens, whatever runs beside a sequence and however it came to its place."""

import random

import pytest
import torch

from blockdraft.core.sampling import SamplingParams
from blockdraft.engine import Engine, Request
from blockdraft.errors import UnsupportedModelError
from blockdraft.models.base import Target
from blockdraft.testing.tiny_models import tiny_packed_target, tiny_target
from blockdraft.train.generate.batched import BatchDecoder
from blockdraft.train.generate.jobs import Completion, Job
from blockdraft.train.generate.packed import PackedBatchDecoder
from blockdraft.train.generate.side_by_side import SideBySideDecoder

GREEDY = SamplingParams()
SAMPLED = SamplingParams(temperature=0.8, top_k=20, top_p=0.9, seed=11)


def make_jobs(count: int, *samplings: SamplingParams, max_prompt: int = 40) -> list[Job]:
    rng = random.Random(7)
    return [
        Job(
            key=index,
            prompt_ids=[rng.randrange(96) for _ in range(rng.randint(1, max_prompt))],
            max_tokens=rng.randint(1, 30),
            sampling=samplings[index % len(samplings)],
            sample_index=index,
            stop_ids=frozenset(range(12)),
        )
        for index in range(count)
    ]


def run(
    decoder: BatchDecoder | SideBySideDecoder | PackedBatchDecoder, jobs: list[Job], *, at_once: int
) -> dict[object, Completion]:
    waiting, done = list(jobs), []
    while waiting or decoder.num_running:
        if waiting and decoder.num_running <= at_once:
            done += decoder.add(waiting[:at_once])
            del waiting[:at_once]
        done += decoder.step()
    assert len(done) == len(jobs)
    return {completion.key: completion for completion in done}


def engine_answers(target: Target, jobs: list[Job]) -> dict[object, Completion]:
    requests = [
        Request(
            prompt_ids=tuple(job.prompt_ids),
            max_tokens=job.max_tokens,
            sampling=job.sampling,
            stop_ids=job.stop_ids,
            sample_index=job.sample_index,
        )
        for job in jobs
    ]
    answers = Engine(target).run(requests)
    return {
        job.key: Completion(
            key=job.key,
            token_ids=answer.token_ids[:-1] if answer.finish_reason == "stop" else answer.token_ids,
            finish=answer.finish_reason,
        )
        for job, answer in zip(jobs, answers, strict=True)
    }


@pytest.mark.parametrize(
    ("family", "overrides"),
    [
        ("llama", {}),
        ("qwen3", {}),
        ("qwen3_moe", {}),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 12, "max_window_layers": 1}),
    ],
)
def test_the_tokens_are_the_engines(family: str, overrides: dict[str, object]) -> None:
    target = tiny_target(family, **overrides)
    jobs = make_jobs(25, GREEDY, SAMPLED)
    answers = run(BatchDecoder(target, group_size=6), jobs, at_once=9)
    assert answers == engine_answers(target, jobs)
    assert {answer.finish for answer in answers.values()} == {"stop", "length"}


@pytest.mark.native
@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_on_the_native_kernels_the_tokens_are_the_engines_too(family: str) -> None:
    target = tiny_packed_target(family)
    jobs = make_jobs(60, GREEDY, SAMPLED)
    answers = run(PackedBatchDecoder(target), jobs, at_once=23)
    assert answers == engine_answers(target, jobs)
    assert {answer.finish for answer in answers.values()} == {"stop", "length"}


@pytest.mark.native
def test_prompts_too_long_for_one_pass_wait_for_the_next() -> None:
    target = tiny_packed_target()
    jobs = make_jobs(5, GREEDY, max_prompt=200)
    jobs.append(Job(**{**vars(jobs[0]), "key": 5, "prompt_ids": [7] * 450}))
    decoder = PackedBatchDecoder(target)
    decoder.add(jobs)
    decoder.step()
    assert decoder._waiting
    assert run(PackedBatchDecoder(target), jobs, at_once=6) == engine_answers(target, jobs)


def test_a_store_that_has_to_grow_keeps_what_it_holds() -> None:
    target = tiny_target()
    jobs = [
        Job(key=0, prompt_ids=[5, 6], max_tokens=300, sampling=GREEDY, sample_index=0, stop_ids=frozenset()),
        Job(key=1, prompt_ids=[9] * 50, max_tokens=300, sampling=SAMPLED, sample_index=1, stop_ids=frozenset()),
    ]
    assert run(BatchDecoder(target), jobs, at_once=2) == engine_answers(target, jobs)


def test_small_groups_become_one_and_finished_ones_leave_nothing() -> None:
    decoder = BatchDecoder(tiny_target(), group_size=8)
    jobs = make_jobs(8, GREEDY)
    for job in jobs:  # eight groups of one
        decoder.add([Job(**{**vars(job), "max_tokens": 20, "stop_ids": frozenset()})])
    assert decoder.num_running == 8
    assert len(decoder._groups) < 8
    while decoder.num_running:
        decoder.step()
    assert decoder._groups == []


def test_in_bfloat16_only_near_ties_differ() -> None:
    target = tiny_target(dtype=torch.bfloat16)
    jobs = make_jobs(24, GREEDY)
    answers, expected = run(BatchDecoder(target, group_size=8), jobs, at_once=16), engine_answers(target, jobs)
    num_same = sum(answers[key] == expected[key] for key in answers)
    assert num_same >= 0.8 * len(jobs)


def test_sampling_that_needs_the_history_is_refused() -> None:
    [job] = make_jobs(1, SamplingParams(repetition_penalty=1.2))
    with pytest.raises(UnsupportedModelError, match="penalties"):
        BatchDecoder(tiny_target()).add([job])


@pytest.mark.native
def test_sampling_that_needs_the_history_is_refused_on_the_native_kernels_too() -> None:
    [job] = make_jobs(1, SamplingParams(frequency_penalty=0.2))
    with pytest.raises(UnsupportedModelError, match="penalties"):
        PackedBatchDecoder(tiny_packed_target()).add([job])


@pytest.mark.parametrize("num_decoders", [2, 3])
def test_decoders_side_by_side_give_the_tokens_of_one(num_decoders: int) -> None:
    target = tiny_target()
    jobs = make_jobs(30, GREEDY, SAMPLED)
    num_threads = torch.get_num_threads()
    decoder = SideBySideDecoder(target, group_size=4, num_decoders=num_decoders)
    assert run(decoder, jobs, at_once=8) == engine_answers(target, jobs)
    assert torch.get_num_threads() == num_threads


def test_side_by_side_the_idlest_gets_the_next_jobs_and_errors_come_through() -> None:
    decoder = SideBySideDecoder(tiny_target(), group_size=4, num_decoders=2)
    decoder.add(make_jobs(4, GREEDY))
    decoder.add(make_jobs(2, GREEDY))
    decoder.add(make_jobs(1, GREEDY))
    assert decoder.num_running == 7
    assert sorted(lane.num_running for lane in decoder._lanes) == [3, 4]
    decoder.add(make_jobs(1, SamplingParams(presence_penalty=0.5)))
    with pytest.raises(UnsupportedModelError, match="no penalties"):
        decoder.step()
