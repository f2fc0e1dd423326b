"""An answer ends at the first token that completes a stop, wherever in a block that token lies.

Every case drafts the plain answer itself in long blocks, so that each stop falls inside an accepted block.
"""

from collections.abc import Callable
from typing import Any

import pytest

from blockdraft.core.sampling import SamplingParams
from blockdraft.engine import Engine, Generation, Request
from blockdraft.errors import ContextLengthError

PROMPT = (70, 71, 72)
BLOCK = 8


@pytest.fixture
def engine(knowing, readable) -> Engine:
    return knowing(PROMPT, num_drafts=BLOCK, sampling=readable)


@pytest.fixture
def answer(plain, readable) -> Generation:
    return plain.generate(PROMPT, max_tokens=40, ignore_eos=True, sampling=readable)


@pytest.fixture
def finish(engine: Engine, readable: SamplingParams) -> Callable[..., Generation]:
    def run(**options: Any) -> Generation:
        options = {"ignore_eos": True, "max_tokens": 40, "sampling": readable} | options
        return finish_on(engine, **options)

    return run


def finish_on(engine: Engine, **options: Any) -> Generation:
    sequence = engine.submit(engine.request(PROMPT, **options))
    while not sequence.is_finished:
        engine.step()
    assert sequence.cache.length == len(sequence.token_ids) - 1  # nothing behind the stop is left in the state
    return sequence.to_generation("")


def new_ids_at(answer: Generation) -> list[int]:
    """Places of the answer whose token occurs there for the first time."""
    ids = answer.token_ids
    return [place for place in range(len(ids)) if ids[place] not in ids[:place]]


@pytest.mark.parametrize("offset", range(BLOCK + 1))
def test_an_end_token_anywhere_in_a_block_ends_the_answer_there(finish, answer, offset):
    """transformers#47912, koboldcpp#1276."""
    place = 1 + offset  # the first token comes from the prefill
    if place not in new_ids_at(answer):
        pytest.skip("this token occurs earlier")
    generation = finish(stop_ids=[answer.token_ids[place]])
    assert generation.token_ids == answer.token_ids[: place + 1]
    assert (generation.finish_reason, generation.stopped_by) == ("stop", answer.token_ids[place])
    stats = generation.stats
    assert (stats.num_rounds, stats.num_drafted, stats.num_emitted) == (1, BLOCK, place)
    assert stats.num_accepted == min(place, BLOCK)
    assert generation.rounds[0].next_kind == ("bonus" if offset == BLOCK else None)


def test_the_models_own_end_token_stops_and_can_be_ignored(plain, knowing):
    prompt, place = _prompt_with_eos(plain)
    engine = knowing(prompt, num_drafts=place + 3)
    stopped = engine.generate(prompt, max_tokens=40)
    assert len(stopped.tokens) == place + 1
    assert stopped.stopped_by in plain.tokenizer.eos_ids
    assert stopped.stats.num_accepted == place
    ignored = engine.generate(prompt, max_tokens=40, ignore_eos=True)
    assert len(ignored.tokens) == 40
    assert ignored.token_ids[: place + 1] == stopped.token_ids


def _prompt_with_eos(plain: Engine) -> tuple[tuple[int, ...], int]:
    for first in range(3, 250):
        ids = plain.generate((first,), max_tokens=24, ignore_eos=True).token_ids
        places = [place for place, token_id in enumerate(ids) if token_id in plain.tokenizer.eos_ids]
        if places and places[0] >= 2:
            return (first,), places[0]
    raise AssertionError("no prompt of this model leads to an end token")


@pytest.mark.parametrize("max_tokens", range(1, 12))
def test_the_length_limit_is_exact_in_a_block_that_would_pass_it(finish, answer, max_tokens):
    """sglang#31599, #31569, #33758, ik_llama#2358."""
    generation = finish(max_tokens=max_tokens)
    assert generation.token_ids == answer.token_ids[:max_tokens]
    assert (generation.finish_reason, generation.stopped_by) == ("length", None)
    assert generation.to_dict()["num_tokens"] == max_tokens
    assert generation.stats.num_emitted == max_tokens - 1


def test_a_drafter_that_offers_more_than_was_asked_for_cannot_pass_the_limit(engine, finish, answer):
    honest = engine.drafter.propose
    engine.drafter.propose = lambda asks: honest([type(ask)(**{**ask.__dict__, "num_draft_tokens": 8}) for ask in asks])
    generation = finish(max_tokens=4)
    assert generation.token_ids == answer.token_ids[:4]


def text_until(plain: Engine, answer: Generation, num_tokens: int) -> str:
    return plain.tokenizer.decode(answer.token_ids[:num_tokens])


def stop_across(plain: Engine, answer: Generation, first: int, last: int) -> str:
    """The text that tokens first to last add to the answer."""
    return text_until(plain, answer, last + 1)[len(text_until(plain, answer, first)) :]


def readable_spans(plain: Engine, answer: Generation, size: int) -> list[tuple[int, int]]:
    """Spans of `size` tokens whose text is whole characters and is new where it stands."""
    spans = []
    for first in range(1, 30):
        stop = stop_across(plain, answer, first, first + size - 1)
        before = text_until(plain, answer, first + size - 1)
        if stop and "\ufffd" not in stop and "\ufffd" not in before[-1:] and stop not in before:
            spans.append((first, first + size - 1))
    return spans


@pytest.mark.parametrize("size", [1, 2, 3])
def test_a_stop_string_ends_the_answer_with_the_token_that_completes_it(plain, finish, answer, size):
    """sglang#23802, #27637: inside one block or across two, early in a long accepted run or late in it."""
    spans = readable_spans(plain, answer, size)
    assert len(spans) > 3
    rounds = set()
    for first, last in spans:
        stop = stop_across(plain, answer, first, last)
        generation = finish(stop=[stop], logprobs=True)
        assert generation.token_ids == answer.token_ids[: last + 1]
        assert generation.text == text_until(plain, answer, last + 1).removesuffix(stop)
        assert generation.stopped_by == stop
        # vllm#49391: neither ids nor log-probabilities nor counters know of what was accepted behind the stop.
        assert [token.logprob is None for token in generation.tokens] == [False] * (last + 1)
        assert generation.stats.num_emitted == last
        rounds.add((first - 1) // (BLOCK + 1) == (last - 1) // (BLOCK + 1))
    assert size == 1 or rounds == {True, False}  # in one block, and across two


def test_of_two_stops_in_one_block_the_earlier_ends_the_answer(plain, finish, answer):
    """vllm#47616, onnxruntime-genai#2528: in whatever order they are listed."""
    (early, _), (late, _) = [span for span in readable_spans(plain, answer, 1) if span[0] <= BLOCK][:2]
    stops = [stop_across(plain, answer, late, late), stop_across(plain, answer, early, early)]
    for listed in (stops, stops[::-1]):
        generation = finish(stop=listed)
        assert generation.token_ids == answer.token_ids[: early + 1]
        assert generation.stopped_by == stops[1]


def test_the_limit_does_not_hide_a_stop_that_comes_first_or_together_with_it(plain, finish, answer):
    """sglang#31599."""
    first, last = readable_spans(plain, answer, 2)[0]
    stop = stop_across(plain, answer, first, last)
    for max_tokens, reason in ((last, "length"), (last + 1, "stop"), (last + 2, "stop")):
        generation = finish(stop=[stop], max_tokens=max_tokens)
        assert generation.finish_reason == reason
        assert len(generation.tokens) == min(max_tokens, last + 1)


def test_a_stream_shows_no_part_of_a_stop(plain, engine, answer, readable):
    first, last = next(span for span in readable_spans(plain, answer, 3) if span[0] >= BLOCK - 1)
    stop = stop_across(plain, answer, first, last)
    shown = "".join(
        chunk.text for chunk in engine.stream(PROMPT, ignore_eos=True, max_tokens=40, stop=[stop], sampling=readable)
    )
    assert shown == text_until(plain, answer, last + 1).removesuffix(stop)


def test_generation_fills_the_context_to_its_last_place(plain, knowing):
    prompt, context = tuple(range(10, 236)), plain.target.info.context_length
    room = context - len(prompt)
    engine = knowing(prompt, num_drafts=12, max_tokens=room)
    generation = engine.generate(prompt, max_tokens=room, ignore_eos=True)
    assert generation.token_ids == plain.generate(prompt, max_tokens=room, ignore_eos=True).token_ids
    assert len(prompt) + len(generation.tokens) == context
    assert generation.stats.acceptance_rate == 1


def test_a_prompt_beyond_the_context_is_refused_before_the_drafter_sees_it(plain, knowing):
    """llama.cpp#28848, #10641: both numbers, and no crash in the drafter."""
    engine = knowing(PROMPT)
    with pytest.raises(ContextLengthError, match=r"300 tokens and 1 new .* holds 256; shorten the prompt"):
        engine.submit(Request(prompt_ids=(5,) * 300, max_tokens=1))
    assert engine.drafter.states == []
    assert len(engine.generate(PROMPT, max_tokens=5, ignore_eos=True).tokens) == 5
