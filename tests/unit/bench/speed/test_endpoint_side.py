"""A real HTTP server streams what a script says; what is measured is what it did."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from blockdraft.bench.speed.endpoint_side import EndpointSide
from blockdraft.bench.speed.records import Sample
from blockdraft.bench.speed.side import AnswerSettings
from blockdraft.engine.workloads import Workload
from blockdraft.errors import ConfigError, EndpointError
from blockdraft.testing.sse_server import DONE, SseServer, ending, piece

LATE = 0.25
"""How much later than the script says a busy machine may be, in seconds."""


def talk(*turns: str, id: str = "a") -> Workload:
    return Workload(id=id, category="chat", turns=turns or ("Hello",))


def measure(server: SseServer, *conversations: Workload, concurrency: int = 1, **options) -> list[Sample]:
    samples: list[Sample] = []
    side = EndpointSide(server.url, "speculative", AnswerSettings(), **options)
    try:
        side.serve(conversations or (talk(),), repeat=2, concurrency=concurrency, emit=samples.append)
    finally:
        side.close()
    return samples


def three_pieces(_body):
    usage = {"prompt_tokens": 7, "completion_tokens": 9, "prompt_tokens_details": {"cached_tokens": 3}}
    role = {"choices": [{"delta": {"role": "assistant", "content": ""}}]}
    return [
        (0.0, role),
        (0.10, piece("One ")),
        (0.05, piece("two three ")),
        (0.15, piece("four")),
        (0, ending()),
        (0, {"choices": [], "usage": usage}),
        (0, DONE),
    ]


def test_times_are_those_of_the_pieces_and_counts_those_of_the_server() -> None:
    with SseServer(three_pieces) as server:
        [sample] = measure(server)
    # The first event has no text: it is not the first token.
    for measured, said in zip(sample.chunk_s, (0.10, 0.15, 0.30), strict=True):
        assert said - 0.01 <= measured <= said + LATE
    assert sample.tpot_s == pytest.approx((sample.chunk_s[2] - sample.chunk_s[0]) / 8)
    assert (sample.num_tokens, sample.num_prompt_tokens, sample.num_cached_tokens) == (9, 7, 3)
    assert (sample.is_counted, sample.chunk_tokens, sample.finish_reason) == (True, None, "stop")
    assert sample.chunk_characters == (4, 10, 4)
    assert sample.key == ("a", 0, 2)


def test_pieces_of_several_tokens_are_told_apart_where_the_engine_counts_them() -> None:
    def vllm(_body):
        events = [piece(text, usage={"completion_tokens": n}) for text, n in (("a", 1), ("bcd", 4), ("ef", 6))]
        return [*((0.02, event) for event in events), (0, ending(usage={"completion_tokens": 6})), (0, DONE)]

    def llamacpp(_body):
        events = [piece(text, timings={"predicted_n": n}) for text, n in (("a", 1), ("b", 2), ("c", 3))]
        end = {"predicted_n": 3, "draft_n": 4, "draft_n_accepted": 1, "cache_n": 5}
        return [*((0.02, event) for event in events), (0, ending(timings=end)), (0, DONE)]

    with SseServer(vllm, pages={"/v1/models": {"data": [{"id": "m", "owned_by": "vllm"}]}}) as server:
        [sample] = measure(server)
        assert server.bodies[0]["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}
    assert sample.chunk_tokens == (1, 3, 2)
    with SseServer(llamacpp, pages={"/props": {"default_generation_settings": {}}}) as server:
        [sample] = measure(server)
        assert server.bodies[0]["timings_per_token"] is True
    assert sample.chunk_tokens == (1, 1, 1)
    assert sample.num_cached_tokens == 5
    assert sample.drafts is not None
    assert (sample.drafts.num_drafted, sample.drafts.num_accepted) == (4, 1)


def test_reasoning_and_tool_calls_are_text_that_came() -> None:
    def script(_body):
        thought = {"choices": [{"delta": {"reasoning_content": "Hm"}}]}
        call = {"choices": [{"delta": {"tool_calls": [{"function": {"arguments": "{}"}}]}}]}
        return [(0.01, thought), (0.01, call), (0.01, piece("Yes")), (0, ending()), (0, DONE)]

    with SseServer(script) as server:
        [sample] = measure(server)
    assert len(sample.chunk_s) == 3
    # Nobody counted: pieces stand for tokens, and that is said.
    assert (sample.num_tokens, sample.is_counted) == (3, False)


def test_a_following_turn_quotes_the_answer_without_the_reasoning() -> None:
    def script(body):
        thought = {"choices": [{"delta": {"reasoning_content": "Hm"}}]}
        return [(0, thought), (0, piece(f"answer {len(body['messages'])}")), (0, ending()), (0, DONE)]

    with SseServer(script) as server:
        samples = measure(server, talk("one", "two"))
        assert [message["content"] for message in server.bodies[1]["messages"]] == ["one", "answer 1", "two"]
    assert [sample.turn for sample in samples] == [0, 1]


@pytest.mark.parametrize("concurrency", [1, 3])
def test_so_many_conversations_are_in_flight_and_the_next_starts_when_one_ends(concurrency: int) -> None:
    def script(_body):
        return [(0.04, piece("a")), (0.04, piece("b")), (0, ending()), (0, DONE)]

    with SseServer(script) as server:
        samples = measure(server, *(talk(id=str(n)) for n in range(7)), concurrency=concurrency)
        assert server.most_in_flight == concurrency
    assert sorted(sample.prompt_id for sample in samples) == [str(n) for n in range(7)]
    assert not any(sample.failure for sample in samples)
    last = max(sample.started_s for sample in samples)
    assert last >= 0.08 * (7 // concurrency - 1)


FAULTS = {
    "cut off": ([(0, piece("a"))], "stream", "ended before"),
    "not json": ([(0, piece("a")), (0, "data: {oops\n\n")], "stream", "not what"),
    "error event": ([(0, piece("a")), (0, {"error": {"message": "out of memory"}})], "stream", "out of memory"),
    "no text": ([(0, ending()), (0, DONE)], "empty", "no text"),
    "too slow": ([(0, piece("a")), (5, piece("b"))], "timeout", "within 0.3 s"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_goes_wrong_is_named_and_ends_the_conversation(fault: str) -> None:
    events, kind, message = FAULTS[fault]
    with SseServer(lambda _body: events) as server:
        samples = measure(server, talk("one", "two"), timeout_s=0.3)
    assert len(samples) == 1
    assert samples[0].failure is not None
    assert samples[0].failure.kind == kind
    assert message in samples[0].failure.message
    assert samples[0].tpot_s is None


def test_a_refusal_is_named_with_its_status_and_fails_the_warm_up() -> None:
    with SseServer(three_pieces, status=503) as server:
        [sample] = measure(server)
        assert sample.failure is not None
        assert (sample.failure.kind, sample.failure.message) == ("http-503", "no room for you")
        side = EndpointSide(server.url, "speculative", AnswerSettings())
        with pytest.raises(EndpointError, match=r"warm-up.*no room for you"):
            side.warm_up(1)
        side.close()


def test_an_interrupt_hands_over_what_has_come() -> None:
    def script(_body):
        return [(0.01, piece("a")), (0.01, piece("b")), (30, piece("c"))]

    samples: list[Sample] = []
    with SseServer(script) as server:
        side = EndpointSide(server.url, "speculative", AnswerSettings())
        stop = threading.Timer(0.6, os.kill, (os.getpid(), signal.SIGINT))
        stop.start()
        with pytest.raises(KeyboardInterrupt):
            side.serve([talk(id="x"), talk(id="y"), talk(id="z")], repeat=0, concurrency=2, emit=samples.append)
        stop.join()
        side.close()
    assert sorted(sample.prompt_id for sample in samples) == ["x", "y"]
    assert all(sample.failure and sample.failure.kind == "cancelled" for sample in samples)
    assert all(len(sample.chunk_s) == 2 for sample in samples)


def test_drafts_are_what_the_counters_grew_by() -> None:
    served = [0]

    def metrics() -> str:
        n = served[0]
        lines = [f"vllm:spec_decode_num_drafts_total {10 * n}", f"vllm:spec_decode_num_draft_tokens_total {30 * n}"]
        lines += [f"vllm:spec_decode_num_accepted_tokens_total {12 * n}"]
        slots = (8, 3, 1)
        name = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
        lines += [f'{name}{{position="{slot}"}} {kept * n}' for slot, kept in enumerate(slots)]
        return "\n".join(lines)

    def script(body):
        served[0] += 1
        return three_pieces(body)

    with SseServer(script, pages={"/metrics": metrics}) as server:
        side = EndpointSide(server.url, "speculative", AnswerSettings())
        side.warm_up(2)
        side.serve([talk(), talk()], repeat=0, concurrency=1, emit=lambda _: None)
        drafts = side.take_drafts()
        side.serve([talk()], repeat=0, concurrency=1, emit=lambda _: None)
        later = side.take_drafts()
        side.close()
    assert drafts is not None
    assert later is not None
    # Two requests, and not the two of the warm-up.
    assert (drafts.num_rounds, drafts.num_drafted, drafts.num_accepted) == (20, 60, 24)
    assert drafts.mean_acceptance_length == pytest.approx(2.2)
    assert drafts.acceptance_rate == pytest.approx(0.4)
    assert drafts.conditional_acceptance == pytest.approx([0.8, 3 / 8, 1 / 3])
    assert later.num_rounds == 10


def test_further_fields_and_settings_reach_the_server() -> None:
    with SseServer(three_pieces) as server:
        settings = AnswerSettings(max_tokens=5, temperature=0.7, top_p=0.9, seed=3, ignore_eos=True)
        side = EndpointSide(server.url, "baseline", settings, model="other", extra={"speculate": False, "top_p": 0.8})
        side.serve([talk()], repeat=0, concurrency=1, emit=lambda _: None)
        side.close()
        body = server.bodies[0]
    assert (body["model"], body["max_tokens"], body["temperature"], body["seed"]) == ("other", 5, 0.7, 3)
    assert (body["ignore_eos"], body["speculate"], body["top_p"]) == (True, False, 0.8)


def test_filler_is_measured_with_the_servers_own_tokens() -> None:
    def script(body):
        words = len(body["messages"][0]["content"].split())
        return [
            (0, piece("a")),
            (0, ending(usage={"prompt_tokens": 10 + 2 * words, "completion_tokens": 1})),
            (0, DONE),
        ]

    with SseServer(script) as server:
        side = EndpointSide(server.url, "speculative", AnswerSettings())
        assert side.words_per_token() == pytest.approx(0.5, rel=0.01)
        side.close()


def test_nobody_there_and_no_url_are_said_plainly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("blockdraft.bench.endpoint.connection._FIRST_PAUSE_S", 0.0)
    with pytest.raises(ConfigError, match="no URL"):
        EndpointSide("localhost:8000", "speculative", AnswerSettings())
    with pytest.raises(EndpointError, match="is the server running"):
        EndpointSide("http://127.0.0.1:9", "speculative", AnswerSettings())
