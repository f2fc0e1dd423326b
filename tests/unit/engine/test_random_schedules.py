"""Whatever is drafted, right or wrong, long or short or not at all: the answer is the plain one, cut at the stop."""

from collections.abc import Callable, Sequence
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blockdraft.engine import Engine
from blockdraft.engine.request import Request, SequenceState
from blockdraft.testing.scripted import ScriptedDrafter

LENGTH = 20
PROMPTS = ((5,), (9, 80, 9, 80), (70, 71, 72), (200, 3, 3, 41, 90), tuple(range(30, 100)))

counts = st.lists(st.integers(0, 7), min_size=1, max_size=6)
wishes = st.lists(
    st.fixed_dictionaries(
        {
            "prompt": st.sampled_from(PROMPTS),
            "max_tokens": st.integers(1, LENGTH),
            "stops": st.lists(st.tuples(st.integers(0, LENGTH * 2), st.integers(1, 4)), max_size=3),
            "stop_at": st.none() | st.integers(0, LENGTH - 1),
        }
    ),
    min_size=1,
    max_size=3,
)


@pytest.fixture(scope="module")
def answers(plain: Engine) -> Callable[[tuple[int, ...]], tuple[int, ...]]:
    return cache(lambda prompt: plain.generate(prompt, max_tokens=LENGTH, ignore_eos=True).token_ids)


def request_for(plain: Engine, answer: Sequence[int], wish: dict[str, Any]) -> Request:
    """Make a request whose stops are taken from the answer itself, so that they hit."""
    assert plain.tokenizer is not None
    text = plain.tokenizer.decode(answer)
    pieces = (text[start : start + size] for start, size in wish["stops"])
    stop_ids = frozenset() if wish["stop_at"] is None else frozenset({answer[wish["stop_at"]]})
    return Request(
        prompt_ids=wish["prompt"],
        max_tokens=wish["max_tokens"],
        stop=tuple(piece for piece in pieces if piece and "\ufffd" not in piece),
        stop_ids=stop_ids,
    )


def expected(plain: Engine, answer: Sequence[int], request: Request) -> SimpleNamespace:
    """Cut the plain answer by decoding every beginning of it: slow, simple, and nothing like the engine."""
    assert plain.tokenizer is not None
    for num_tokens in range(1, request.max_tokens + 1):
        ids = tuple(answer[:num_tokens])
        if ids[-1] in request.stop_ids:
            return SimpleNamespace(ids=ids, text=plain.tokenizer.decode(ids[:-1]), reason="stop", by=ids[-1])
        text = plain.tokenizer.decode(ids)
        ends = [(text.find(stop) + len(stop), text.find(stop), stop) for stop in request.stop if stop in text]
        if ends:
            _, start, stop = min(ends)
            return SimpleNamespace(ids=ids, text=text[:start], reason="stop", by=stop)
    return SimpleNamespace(ids=ids, text=text, reason="length", by=None)


def run(engine: Engine, requests: Sequence[Request]) -> list[SequenceState]:
    sequences = [engine.submit(request) for request in requests]
    for _ in range(LENGTH + 1):
        engine.step()
    assert all(sequence.is_finished for sequence in sequences)
    return sequences


@settings(max_examples=60, deadline=None)
@given(wishes=wishes, schedule=st.tuples(counts, counts), has_hidden=st.booleans())
def test_any_schedule_gives_the_plain_answer(plain, answers, wishes, schedule, has_hidden):
    num_drafts, num_right = schedule
    drafter = ScriptedDrafter(
        {prompt: answers(prompt) for prompt in PROMPTS},
        vocab_size=plain.target.info.vocab_size,
        num_drafts=lambda index: num_drafts[index % len(num_drafts)],
        num_right=lambda index: num_right[index % len(num_right)],
        target_layer_ids=(0, 2) if has_hidden else (),
    )
    engine = Engine(plain.target, plain.tokenizer, drafter, prefill_chunk=16)
    requests = [request_for(plain, answers(wish["prompt"]), wish) for wish in wishes]
    for request, sequence in zip(requests, run(engine, requests), strict=True):
        want = expected(plain, answers(request.prompt_ids), request)
        answer = sequence.to_generation("scripted")
        assert (answer.token_ids, answer.text) == (want.ids, want.text)
        assert (answer.finish_reason, answer.stopped_by) == (want.reason, want.by)
        check_state(sequence, has_hidden)
        check_counters(sequence)


def check_state(sequence: SequenceState, has_hidden: bool) -> None:
    assert sequence.cache.length == len(sequence.token_ids) - 1
    observed = sequence.draft_state.observations
    assert [token for seen in observed for token in seen.committed_ids] == [token.id for token in sequence.tokens]
    if has_hidden:
        assert sum(len(seen.target_hidden) for seen in observed) == sequence.cache.length
    else:
        assert all(seen.target_hidden is None for seen in observed)


def check_counters(sequence: SequenceState) -> None:
    answer = sequence.to_generation("scripted")
    stats = answer.stats
    assert stats.num_emitted + 1 == len(answer.tokens)
    assert stats.num_rounds == len(answer.rounds) == sum(stats.rounds_by_drafter.values())
    assert stats.num_accepted == sum(token.kind == "drafted" for token in answer.tokens)
    for index, record in enumerate(answer.rounds):
        kinds = [token.kind for token in answer.tokens if token.round_index == index]
        assert len(kinds) == record.num_emitted >= 1
        assert kinds.count("drafted") == record.num_accepted <= record.num_drafted
        assert record.num_emitted == record.num_accepted + (record.next_kind is not None)
        assert record.next_kind in (None, kinds[-1])
    assert stats.num_drafted == sum(record.num_drafted for record in answer.rounds)
    assert sum(stats.drafted_at) == stats.num_drafted
    assert sum(stats.accepted_at) == stats.num_accepted
