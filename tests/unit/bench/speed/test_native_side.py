"""The own engine as a side: pieces are rounds, counters are exact, so many run together."""

from __future__ import annotations

import pytest

from blockdraft.bench.speed.native_side import NativeSide
from blockdraft.bench.speed.records import Sample
from blockdraft.bench.speed.side import AnswerSettings
from blockdraft.engine import Engine
from blockdraft.engine.workloads import Workload
from blockdraft.models.load import load_model
from blockdraft.testing.scripted import ScriptedDrafter
from blockdraft.testing.tiny_gguf import write_tiny_gguf

NUM_TOKENS = 13


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory):
    path = write_tiny_gguf(tmp_path_factory.mktemp("m") / "m.gguf", quant="F32")
    return load_model(str(path), dtype="float32", runtime="torch")


def side_of(loaded, drafter=None, *, max_running=2) -> NativeSide:
    engine = Engine(loaded.target, loaded.tokenizer, drafter, max_running=max_running)
    settings = AnswerSettings(max_tokens=NUM_TOKENS, ignore_eos=True)
    return NativeSide(engine, "speculative" if drafter else "baseline", settings, model="tiny", version="0")


def talk(id: str, *turns: str) -> Workload:
    return Workload(id=id, category="a", turns=turns or ("hello world",))


def measure(side: NativeSide, *conversations: Workload, concurrency: int = 1) -> list[Sample]:
    samples: list[Sample] = []
    side.warm_up(concurrency)
    side.take_drafts()
    side.serve(conversations, repeat=1, concurrency=concurrency, emit=samples.append)
    return samples


def right_drafter(loaded) -> ScriptedDrafter:
    """Return a drafter that is always right about the answer to "hello world"."""
    engine = Engine(loaded.target, loaded.tokenizer)
    request = engine.request([{"role": "user", "content": "hello world"}], max_tokens=64, ignore_eos=True)
    answer_ids = engine.run([request])[0].token_ids
    vocab_size = loaded.target.info.vocab_size
    return ScriptedDrafter({request.prompt_ids: answer_ids}, vocab_size=vocab_size, num_drafts=3)


def test_a_piece_is_a_round_and_counters_are_those_of_rounds(loaded) -> None:
    side = side_of(loaded, right_drafter(loaded))
    samples: list[Sample] = []
    side.serve([talk("x")], repeat=1, concurrency=1, emit=samples.append)
    [sample] = samples
    # One token from the prefill, then rounds of three drafts and the target's own token.
    assert sample.chunk_tokens == (1, 4, 4, 4)
    assert (sample.num_tokens, sample.is_counted, sample.finish_reason) == (NUM_TOKENS, True, "length")
    drafts = side.take_drafts()
    assert drafts is not None
    assert (drafts.num_rounds, drafts.num_drafted, drafts.num_accepted) == (3, 9, 9)
    assert drafts.conditional_acceptance == [1, 1, 1]
    assert drafts.is_conditional_exact
    assert drafts.counts_plain_rounds


def test_counters_are_those_since_the_last_time(loaded) -> None:
    side = side_of(loaded, right_drafter(loaded))
    side.serve([talk("x")], repeat=1, concurrency=1, emit=lambda _: None)
    side.take_drafts()
    drafts = side.take_drafts()
    assert drafts is not None
    assert drafts.num_rounds == 0


def test_plain_decoding_drafts_nothing(loaded) -> None:
    side = side_of(loaded)
    [sample] = measure(side, talk("x"))
    assert sample.chunk_tokens == (1,) * NUM_TOKENS
    drafts = side.take_drafts()
    assert drafts is not None
    assert drafts.never_drafted


@pytest.mark.parametrize("concurrency", [1, 2])
def test_conversations_run_together_and_give_what_they_give_alone(loaded, concurrency: int) -> None:
    side = side_of(loaded)
    conversations = [talk(str(n), f"hello {n}", "more") for n in range(3)]
    samples = measure(side, *conversations, concurrency=concurrency)
    assert sorted((s.prompt_id, s.turn) for s in samples) == [(str(n), turn) for n in range(3) for turn in (0, 1)]
    alone = {s.key: s.text_sha256 for one in conversations for s in measure(side, one)}
    assert {s.key: s.text_sha256 for s in samples} == alone
    second = next(sample for sample in samples if sample.turn == 1)
    first = next(sample for sample in samples if sample.key == (second.prompt_id, 0, 1))
    assert second.num_prompt_tokens is not None
    assert first.num_prompt_tokens is not None
    assert second.num_prompt_tokens > first.num_prompt_tokens + NUM_TOKENS


def test_an_interrupt_hands_over_what_was_begun(loaded, monkeypatch) -> None:
    side = side_of(loaded)
    step, count = side._engine.step, [0]

    def step_or_stop():
        count[0] += 1
        if count[0] == 5:
            raise KeyboardInterrupt
        return step()

    monkeypatch.setattr(side._engine, "step", step_or_stop)
    samples: list[Sample] = []
    with pytest.raises(KeyboardInterrupt):
        side.serve([talk("x"), talk("y"), talk("z")], repeat=0, concurrency=2, emit=samples.append)
    assert [(sample.prompt_id, sample.num_tokens) for sample in samples] == [("x", 4), ("y", 4)]
    assert {sample.failure.kind for sample in samples if sample.failure} == {"cancelled"}


def test_a_prompt_longer_than_the_context_ends_its_conversation_only(loaded) -> None:
    side = side_of(loaded)
    length = loaded.target.info.context_length
    samples = measure(side, talk("long", "hello " * length, "more"), talk("short"))
    assert [(sample.prompt_id, sample.failure and sample.failure.kind) for sample in samples] == [
        ("long", "refused"),
        ("short", None),
    ]
    assert samples[0].failure is not None
    assert f"context holds {length}" in samples[0].failure.message


def test_filler_is_as_long_in_tokens_as_it_says(loaded) -> None:
    from blockdraft.bench.speed.workload import filler

    side = side_of(loaded)
    num_words = round(200 * side.words_per_token())
    assert len(loaded.tokenizer.encode(filler(num_words, "other"))) == pytest.approx(200, rel=0.1)
