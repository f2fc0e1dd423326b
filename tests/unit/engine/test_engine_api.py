"""What callers of the engine rely on: submit, step, cancel, generate, batches, streams, and errors that say why."""

import gc
import weakref
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from blockdraft.core.sampling import SamplingParams
from blockdraft.drafters.base import Ask, Observation, Proposal
from blockdraft.drafters.config import SpecConfig
from blockdraft.engine import Chunk, Engine, Generation, Request
from blockdraft.errors import ConfigError, ContextLengthError, PairError, RequestError
from blockdraft.testing.scripted import ScriptedDrafter

PROMPT = (70, 71, 72)
OTHER = (9, 80, 9, 80)
SAMPLED = SamplingParams(temperature=1.0, seed=3)


class Fragile(ScriptedDrafter):
    """Raises when told to."""

    fails_in = ""

    def propose(self, asks: Sequence[Ask]) -> list[Proposal]:
        self._fail("propose")
        return super().propose(asks)

    def observe(self, state: Any, observation: Observation) -> None:
        self._fail("observe")
        super().observe(state, observation)

    def _fail(self, where: str) -> None:
        if self.fails_in == where:
            self.fails_in = ""
            raise OSError(f"{where} failed")


def fragile(plain: Engine, **options: Any) -> tuple[Engine, Fragile]:
    known = {prompt: plain.generate(prompt, max_tokens=30, ignore_eos=True).token_ids for prompt in (PROMPT, OTHER)}
    drafter = Fragile(known, vocab_size=plain.target.info.vocab_size, **options)
    return Engine(plain.target, plain.tokenizer, drafter), drafter


def request(prompt: tuple[int, ...] = PROMPT, max_tokens: int = 20, **options: Any) -> Request:
    return Request(prompt_ids=prompt, max_tokens=max_tokens, **options)


def drain(stream: Any) -> tuple[list[Chunk], Generation]:
    chunks = []
    while True:
        try:
            chunks.append(next(stream))
        except StopIteration as end:
            return chunks, end.value


def run_all(engine: Engine) -> None:
    for _ in range(100):
        engine.step()
    assert not engine._scheduler.has_work


def test_the_first_step_prefills_and_each_further_one_is_a_round(scripted):
    engine = scripted(PROMPT, num_drafts=3)
    sequence = engine.submit(request(max_tokens=9))
    assert engine.step() == []
    assert [token.kind for token in sequence.tokens] == ["first"]
    assert engine.step() == []
    assert [token.kind for token in sequence.tokens[1:]] == ["drafted"] * 3 + ["bonus"]
    assert engine.step() == [sequence]
    assert sequence.is_finished
    assert engine.step() == []


def test_a_token_drafted_wrongly_is_recovered_in_its_place(scripted, plain):
    engine = scripted(PROMPT, num_drafts=4, num_right=2)
    answer = engine.generate(PROMPT, max_tokens=10, ignore_eos=True)
    assert answer.token_ids == plain.generate(PROMPT, max_tokens=10, ignore_eos=True).token_ids
    kinds = ["drafted", "drafted", "recovered"]
    assert [token.kind for token in answer.tokens] == ["first", *kinds, *kinds, "drafted", "drafted", "bonus"]
    assert answer.stats.mean_acceptance_length == 3
    assert answer.stats.acceptance_rate == pytest.approx(6 / 10)  # the last round has room for two drafts
    assert {token.drafter for token in answer.tokens if token.kind == "drafted"} == {"scripted"}


def test_no_more_requests_run_at_once_than_allowed_and_all_are_served(plain):
    engine = Engine(plain.target, plain.tokenizer, max_running=2)
    sequences = [engine.submit(request((10 + i,), max_tokens=3 + i)) for i in range(5)]
    started = []
    while not all(sequence.is_finished for sequence in sequences):
        engine.step()
        assert len(engine._scheduler.running) <= 2
        started.append(sum(bool(sequence.tokens) for sequence in sequences))
    assert started[0] == 2
    assert started[-1] == 5


def test_waiting_and_finished_requests_hold_no_caches(plain):
    """Otherwise the memory of a long batch grows with its length."""
    alive: weakref.WeakSet[Any] = weakref.WeakSet()
    most = 0

    class Counting:
        def __getattr__(self, name: str) -> Any:
            return getattr(plain.target, name)

        def new_cache(self, capacity: int = 0) -> Any:
            nonlocal most
            cache = plain.target.new_cache(capacity)
            alive.add(cache)
            gc.collect()
            most = max(most, len(alive))
            return cache

    engine = Engine(Counting(), max_running=2)
    assert len(engine.run([request((10 + i,), max_tokens=2) for i in range(8)])) == 8
    assert most <= 3


def test_answers_come_in_the_order_of_the_requests(plain):
    prompts = [(20,), (21,), (22,)]
    limits = [9, 2, 5]
    answers = plain.run([request(p, max_tokens=n) for p, n in zip(prompts, limits, strict=True)])
    assert [answer.prompt_ids for answer in answers] == prompts
    assert [len(answer.tokens) for answer in answers] == limits


def test_a_cancelled_request_leaves_and_the_others_stay_right(scripted, plain):
    engine = scripted(PROMPT, OTHER, num_drafts=2)
    kept, dropped = engine.submit(request(OTHER)), engine.submit(request())
    waiting = engine.submit(request())
    engine.cancel(waiting)
    engine.step()
    engine.step()
    engine.cancel(dropped)
    num_tokens = len(dropped.tokens)
    run_all(engine)
    assert len(dropped.tokens) == num_tokens
    assert not waiting.tokens
    assert dropped.is_cancelled
    assert not kept.is_cancelled
    assert kept.to_generation("").token_ids == plain.run([request(OTHER)])[0].token_ids


def test_one_request_that_cannot_be_served_leaves_none_of_its_batch_behind(plain):
    engine = Engine(plain.target)
    with pytest.raises(ContextLengthError):
        engine.run([request(), request(max_tokens=1000)])
    assert not engine._scheduler.has_work


@pytest.mark.parametrize("num_drafts", [0, 3])
def test_a_stream_is_the_generation_in_pieces(scripted, num_drafts):
    engine = scripted(PROMPT, num_drafts=num_drafts)
    options: dict[str, Any] = {"max_tokens": 12, "ignore_eos": True, "logprobs": True}
    chunks, streamed = drain(engine.stream(PROMPT, **options))
    whole = engine.generate(PROMPT, **options)
    assert [token.id for chunk in chunks for token in chunk.tokens] == list(whole.token_ids) == list(streamed.token_ids)
    assert "".join(chunk.text for chunk in chunks) == whole.text == streamed.text
    assert [chunk.finish_reason for chunk in chunks] == [None] * (len(chunks) - 1) + ["length"]
    assert [len(chunk.tokens) for chunk in chunks] == [1, *(record.num_emitted for record in whole.rounds)]
    assert streamed.rounds == whole.rounds
    assert [token.logprob for token in streamed.tokens] == [token.logprob for token in whole.tokens]


def test_streams_that_take_turns_lose_nothing(scripted, plain):
    """Each step advances every sequence, also those whose stream is not being read."""
    engine = scripted(PROMPT, OTHER, num_drafts=3)
    streams = {prompt: engine.stream_request(request(prompt)) for prompt in (PROMPT, OTHER)}
    texts = dict.fromkeys(streams, "")
    reasons: dict[tuple[int, ...], list[Any]] = {prompt: [] for prompt in streams}
    while streams:
        for prompt, stream in list(streams.items()):
            chunk = next(stream, None)
            if chunk is None:
                del streams[prompt]
            else:
                texts[prompt] += chunk.text
                reasons[prompt].append(chunk.finish_reason)
    for prompt, text in texts.items():
        assert text == plain.run([request(prompt)])[0].text
        assert reasons[prompt][-1] == "length"


def test_a_stream_left_early_leaves_the_scheduler_clean(scripted):
    engine = scripted(PROMPT)
    stream = engine.stream(PROMPT, max_tokens=20)
    next(stream)
    assert engine._scheduler.has_work
    stream.close()
    assert not engine._scheduler.has_work


def test_a_stream_whose_request_was_cancelled_ends_with_an_error(plain):
    engine = Engine(plain.target)
    stream = engine.stream_request(request())
    next(stream)
    engine.cancel(engine._scheduler.running[0])
    with pytest.raises(RequestError, match="cancelled"):
        next(stream)


@pytest.mark.parametrize("where", ["propose", "observe"])
def test_a_drafter_that_raises_ends_the_call_and_the_engine_goes_on(plain, where):
    engine, drafter = fragile(plain)
    drafter.fails_in = where
    with pytest.raises(OSError, match=f"{where} failed"):
        engine.run([request(), request(OTHER)])
    assert not engine._scheduler.has_work
    assert engine.run([request()])[0].token_ids == plain.run([request()])[0].token_ids


@pytest.mark.parametrize("where", ["propose", "observe"])
def test_a_round_that_fails_half_way_spoils_no_running_sequence(plain, where):
    """The caches of its neighbours held drafts at that moment, which must not stay."""
    engine, drafter = fragile(plain, num_drafts=4, num_right=1)
    sequences = [engine.submit(request()), engine.submit(request(OTHER))]
    engine.step()
    engine.step()
    drafter.fails_in = where
    with pytest.raises(OSError, match="failed"):
        engine.step()
    assert [sequence.cache.length for sequence in sequences] == [len(s.token_ids) - 1 for s in sequences]
    run_all(engine)
    for sequence in sequences:
        assert sequence.to_generation("").token_ids == plain.run([sequence.request])[0].token_ids


def test_a_round_that_is_interrupted_after_its_pass_leaves_no_drafts_in_the_caches(plain, monkeypatch):
    engine, _ = fragile(plain, num_drafts=4)
    sequences = [engine.submit(request()), engine.submit(request(OTHER))]
    engine.step()

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("blockdraft.engine.round._judge", interrupted)
        with pytest.raises(KeyboardInterrupt):
            engine.step()
    assert [sequence.cache.length for sequence in sequences] == [len(s.token_ids) - 1 for s in sequences]
    run_all(engine)
    for sequence in sequences:
        assert sequence.to_generation("").token_ids == plain.run([sequence.request])[0].token_ids


def test_a_prefill_that_fails_drops_its_own_request_and_no_other(plain):
    engine, drafter = fragile(plain)
    first, second = engine.submit(request()), engine.submit(request(OTHER))
    drafter.fails_in = "observe"
    with pytest.raises(OSError, match="failed"):
        engine.step()
    assert first.is_cancelled
    run_all(engine)
    assert not first.is_finished
    assert second.to_generation("").token_ids == plain.run([request(OTHER)])[0].token_ids


def test_generate_batch_keeps_the_samples_of_a_prompt_together(plain):
    answers = plain.generate_batch([PROMPT, OTHER], num_samples=3, sampling=SAMPLED, max_tokens=8)
    assert [answer.prompt_ids for answer in answers] == [PROMPT] * 3 + [OTHER] * 3
    assert len({answer.token_ids for answer in answers[:3]}) == 3
    alone = plain.generate(PROMPT, sample_index=2, sampling=SAMPLED, max_tokens=8)
    assert answers[2].token_ids == alone.token_ids


@pytest.mark.parametrize("prompts", ["one prompt", (1, 2, 3)])
def test_one_prompt_is_not_taken_for_a_batch(plain, prompts):
    with pytest.raises(RequestError, match="list of prompts"):
        plain.generate_batch(prompts)


def test_fewer_than_one_sample_is_refused(plain):
    with pytest.raises(RequestError, match="num_samples must be at least 1, not 0"):
        plain.generate_batch([PROMPT], num_samples=0)


def test_a_string_is_a_users_message_unless_it_is_raw(plain):
    chat = plain.encode("hello")
    assert chat == plain.encode([{"role": "user", "content": "hello"}])
    assert plain.tokenizer.decode(chat, skip_special_tokens=False) == (
        "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
    )
    assert plain.tokenizer.decode(plain.encode("hello", raw=True)) == "hello"
    assert plain.encode("hello", system="be brief") == plain.encode(
        [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello"}]
    )
    assert plain.encode([5, 6]) == (5, 6)


@pytest.mark.parametrize(
    ("prompt", "options", "message"),
    [
        ((5, 6), {"system": "x"}, "system message cannot be added to token ids"),
        ("hi", {"system": "x", "raw": True}, "system message needs a chat template"),
        ([{"role": "user", "content": "hi"}], {"raw": True}, "raw=True is for a text"),
        ("hi", {"stop": "END"}, r"stop is a list of strings; write \['END'\]"),
        ("hi", {"stop": [""]}, "stop string cannot be empty"),
        ("hi", {"max_tokens": 0}, "max_tokens must be at least 1, not 0"),
        ((), {}, "the prompt is empty"),
    ],
)
def test_what_cannot_be_honoured_is_refused(plain, prompt, options, message):
    with pytest.raises(RequestError, match=message):
        plain.request(prompt, **options)


def test_a_special_token_given_as_a_stop_string_stops_though_it_never_shows_in_the_text(plain):
    """Its text is left out of answers, so as a string it could not be found."""
    end = plain.tokenizer.encode("<|im_end|>")[0]
    answer = plain.generate(
        PROMPT, stop=["<|im_end|>"], ignore_eos=True, sampling=SamplingParams(logit_bias={end: 100.0}), max_tokens=5
    )
    assert (answer.token_ids, answer.text, answer.stopped_by) == ((end,), "", end)
    assert plain.request(PROMPT, stop=["<|im_end|>x", "x"], ignore_eos=True).stop_ids == frozenset()


def test_without_a_tokenizer_prompts_and_stops_are_ids(plain):
    engine = Engine(plain.target)
    with pytest.raises(RequestError, match="no tokenizer; give the prompt as token ids"):
        engine.generate("hello")
    with pytest.raises(RequestError, match="stop strings need a tokenizer; use stop_ids"):
        engine.generate(PROMPT, stop=["x"])
    answer = engine.generate(PROMPT, max_tokens=5)
    assert len(answer.tokens) == 5
    assert answer.text == ""


def test_a_prompt_that_exceeds_the_context_is_refused_with_both_numbers(plain):
    with pytest.raises(ContextLengthError, match=r"250 tokens and 7 new .* context holds 256") as error:
        plain.submit(request((5,) * 250, max_tokens=7))
    assert (error.value.num_prompt_tokens, error.value.max_tokens, error.value.context_length) == (250, 7, 256)
    plain.cancel(plain.submit(request((5,) * 250, max_tokens=6)))


@pytest.mark.parametrize("token_id", [-1, 272])
def test_ids_outside_the_vocabulary_are_refused(plain, token_id):
    with pytest.raises(RequestError, match=f"prompt: token {token_id} is outside the vocabulary of 272"):
        plain.submit(request((5, token_id)))


def test_a_bias_outside_the_vocabulary_is_refused(plain):
    with pytest.raises(RequestError, match="logit_bias: token 272 is outside the vocabulary"):
        plain.submit(request(sampling=SamplingParams(logit_bias={272: 1.0})))


@pytest.mark.parametrize("limits", [{"max_running": 0}, {"prefill_chunk": 0}])
def test_limits_below_one_are_refused(plain, limits):
    with pytest.raises(ConfigError, match="must be at least 1"):
        Engine(plain.target, **limits)


def test_a_drafter_that_reads_layers_the_target_lacks_is_refused(plain):
    drafter = ScriptedDrafter({}, vocab_size=272, target_layer_ids=(1, 3))
    with pytest.raises(PairError, match="scripted reads layer 3 of the target, but llama has layers 0 to 2"):
        Engine(plain.target, drafter=drafter)


def test_a_drafter_that_drafts_more_than_the_target_can_forget_is_refused(plain):
    class Short:
        info = replace(plain.target.info, max_rollback=4)

    with pytest.raises(PairError, match="drafts up to 5 tokens, but llama can forget only 4"):
        Engine(Short(), drafter=ScriptedDrafter({}, vocab_size=272, max_draft_tokens=5))
    Engine(Short(), drafter=ScriptedDrafter({}, vocab_size=272, max_draft_tokens=4))


def test_a_policy_that_would_bend_the_distribution_is_refused(plain):
    class Sequential(ScriptedDrafter):
        @property
        def traits(self):
            return replace(super().traits, is_deterministic=False, confidence_is_sequential=True)

    drafter = Sequential({}, vocab_size=272)
    spec = SpecConfig(types=("auto",), draft_model="x", n_min=2, p_min=0.5)
    with pytest.raises(ConfigError, match="would no longer give the target's distribution"):
        Engine(plain.target, drafter=drafter, spec=spec)
    Engine(plain.target, drafter=drafter, spec=replace(spec, rule="match"))
    Engine(plain.target, drafter=drafter, spec=replace(spec, n_min=0))


def test_the_baseline_decodes_plainly_under_the_same_limits(scripted):
    engine = scripted(PROMPT)
    baseline = engine.without_drafter()
    assert baseline.drafter is None
    assert baseline._scheduler._max_running == engine._scheduler._max_running
    answer = baseline.generate(PROMPT, max_tokens=6)
    assert answer.not_speculating == "no drafter is configured"
    assert answer.stats.mean_acceptance_length == 1


def test_a_generation_is_plain_data_for_json(scripted):
    data = scripted(PROMPT, num_drafts=2).generate(PROMPT, max_tokens=7, ignore_eos=True, logprobs=True).to_dict()
    assert data["num_prompt_tokens"] == 3
    assert data["num_tokens"] == len(data["tokens"]) == 7
    assert data["finish_reason"] == "length"
    assert data["stats"]["num_emitted"] == 6
    assert [token["kind"] for token in data["tokens"]][:4] == ["first", "drafted", "drafted", "bonus"]
    assert all(token["logprob"] < 0 for token in data["tokens"])
