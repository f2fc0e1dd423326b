"""A served model is asked in the words of its engine, and plain decoding is put together from single tokens."""

import json
from dataclasses import replace
from typing import Any

import httpx
import pytest
from scripted_runs import PROMPTS, QUICK, on_server

from blockdraft.bench.endpoint.answers import Answer, Ask, Position, Seen, extended
from blockdraft.bench.endpoint.dialects import Chat, Completions, LlamacppCompletion, SglangGenerate, VllmCompletions
from blockdraft.bench.endpoint.samples import SamplingPlan, draw, judge
from blockdraft.bench.endpoint.served_model import ServedModel, proper
from blockdraft.errors import ConfigError, EndpointError
from blockdraft.testing.scripted_server import Engine, Faults, ScriptedServer

IDS = Ask(context=(5, 6), max_tokens=3, temperature=1.0, seed=9, num_top=4)
TEXT = replace(IDS, context="so far")


class RecordingServer(ScriptedServer):
    """Keeps what it is asked, and refuses more than five likely tokens if it is to."""

    most_top = 20

    def transport(self) -> httpx.MockTransport:
        self.bodies: list[dict[str, Any]] = []

        def handle(request: httpx.Request) -> httpx.Response:
            body = json.loads(request.content) if request.content else {}
            self.bodies.append(body)
            if body.get("logprobs", 0) > self.most_top:
                return httpx.Response(400, json={"error": {"message": "too many logprobs"}})
            return super(RecordingServer, self)._handle(request)

        return httpx.MockTransport(handle)


@pytest.mark.parametrize(
    ("engine", "name", "num_top"),
    [
        ("vllm", "/v1/completions of vLLM", 6),
        ("sglang", "/generate of SGLang", 6),
        ("llamacpp", "/completion of llama.cpp", 6),
        ("openai", "/v1/completions", 5),
    ],
)
def test_each_engine_is_asked_through_its_own_route(engine: Engine, name: str, num_top: int) -> None:
    async def look(model: ServedModel) -> tuple[str, int, bool, bool]:
        return model.dialect.name, model.num_top, model.shows_tokens, model.can_be_forced

    assert on_server(look, ScriptedServer(engine=engine)) == (name, num_top, True, True)


def test_a_server_that_shows_fewer_likely_tokens_is_asked_for_fewer() -> None:
    async def num_top(model: ServedModel) -> int:
        return model.num_top

    few, none = RecordingServer(), RecordingServer()
    few.most_top, none.most_top = 5, 0
    assert (on_server(num_top, few), on_server(num_top, none)) == (5, 0)


def test_a_server_that_answers_nothing_is_an_error_that_names_what_was_tried() -> None:
    class Mute(ScriptedServer):
        def _chat(self, body: dict[str, Any]) -> None:
            return None

    async def nothing(model: ServedModel) -> None:
        raise AssertionError(model.dialect.name)

    with pytest.raises(EndpointError, match="answers neither /v1/completions nor /v1/chat/completions"):
        on_server(nothing, Mute(engine="openai", only_chats=True))


@pytest.mark.parametrize("engine", ["vllm", "sglang", "llamacpp", "openai"])
@pytest.mark.parametrize("stop", ["", "a"])
def test_single_tokens_put_together_are_the_plain_answer(engine: Engine, stop: str) -> None:
    async def both(model: ServedModel) -> list[Answer]:
        [context] = (await model.contexts_of({"p": "Hello c"})).values()
        ask = model.ask(context, max_tokens=12)
        return [await model.answer(ask), await model.stepwise(ask)]

    whole, pieces = on_server(both, ScriptedServer(engine=engine, stop=stop))
    assert (whole.text, whole.keys, whole.finish) == (pieces.text, pieces.keys, pieces.finish)
    assert whole.finish == ("stop" if stop else "length")


def test_contexts_are_of_one_kind() -> None:
    class Forgetful(ScriptedServer):
        def _tokenized(self, body: dict[str, Any]) -> dict[str, Any] | None:
            return None if "Say something about h" in str(body) else super()._tokenized(body)

    async def contexts(model: ServedModel) -> dict[str, Any]:
        return await model.contexts_of(PROMPTS)

    assert on_server(contexts, Forgetful()) == PROMPTS
    ids = on_server(contexts, ScriptedServer())
    assert ids["prompt a"] == tuple(map(ord, "Say something about a\n"))


def test_zeros_in_the_place_of_log_probabilities_are_none() -> None:
    zeros = [Seen(text="a", logprob=0.0), Seen(text="b", logprob=0.0)]
    real = [Seen(text="a", logprob=-0.3), Seen(text="b", logprob=-1.6)]
    assert (proper(zeros), proper([Seen(text="a")]), proper([Seen(text="a", logprob=float("nan"))])) == ((), (), ())
    assert proper(real) == tuple(real)


def test_every_dialect_samples_neutrally() -> None:
    path, base, body = VllmCompletions().request(IDS, "m")
    assert (path, base, body["prompt"], body["logprobs"]) == ("/completions", "api", [5, 6], 4)
    assert (body["temperature"], body["top_p"], body["top_k"], body["repetition_penalty"]) == (1.0, 1.0, -1, 1.0)
    assert body["return_token_ids"]
    assert body["return_tokens_as_token_ids"]
    path, base, body = LlamacppCompletion().request(IDS, "m")
    assert (path, base, body["samplers"], body["n_probs"], body["seed"]) == (
        "/completion",
        "root",
        ["temperature"],
        4,
        9,
    )
    path, base, body = SglangGenerate().request(IDS, "m")
    assert (path, base, body["input_ids"], body["top_logprobs_num"]) == ("/generate", "root", [5, 6], 4)
    assert body["sampling_params"]["sampling_seed"] == 9
    path, _, body = Chat().request(Ask(message="hi", max_tokens=3), "m")
    assert (path, body["messages"]) == ("/chat/completions", [{"role": "user", "content": "hi"}])
    assert "logprobs" not in body


def test_only_the_first_reading_may_come_from_a_cache() -> None:
    fresh = replace(IDS, is_fresh=True)
    salts = {VllmCompletions().request(fresh, "m")[2]["cache_salt"] for _ in range(2)}
    assert len(salts) == 2
    assert "cache_salt" not in VllmCompletions().request(IDS, "m")[2]
    assert not LlamacppCompletion().request(fresh, "m")[2]["cache_prompt"]


def test_a_text_is_continued_by_texts() -> None:
    assert "return_tokens_as_token_ids" not in VllmCompletions().request(TEXT, "m")[2]
    tokens = [Seen(text=" more", token_id=7)]
    assert extended("so far", tokens) == "so far more"
    assert extended((5, 6), tokens) == (5, 6, 7)


def test_an_answer_with_bytes_that_are_no_text_keeps_its_ids() -> None:
    answer = LlamacppCompletion().read({"content": "", "tokens": [3, 4], "completion_probabilities": []})
    assert answer.keys == (3, 4)
    with pytest.raises(EndpointError, match="without choices"):
        Completions().read({"object": "error"})


def test_answers_are_compared_by_ids_by_texts_or_by_characters() -> None:
    by_id = Answer(text="ab", positions=(Position(token=Seen(text="ab", token_id=1)),), finish="length", num_tokens=1)
    by_text = replace(by_id, positions=(Position(token=Seen(text="ab")),))
    assert (by_id.keys, by_text.keys, replace(by_id, positions=()).keys) == ((1,), ("ab",), ("a", "b"))


def test_samples_are_spread_over_the_prompts_one_after_the_other() -> None:
    server = RecordingServer(engine="openai", faults=Faults())

    async def samples(model: ServedModel) -> list[str]:
        server.bodies.clear()
        found = await draw(model, model.answer, {"a": "A", "b": "B"}, seeds=[4, 5, 6, 7], num_tokens=4)
        return [name for name, _ in found]

    assert on_server(samples, server) == ["a", "a", "b", "b"]
    assert [(body["prompt"], body["seed"]) for body in server.bodies] == [("A", 4), ("A", 5), ("B", 6), ("B", 7)]
    assert {body["max_tokens"] for body in server.bodies} == {5}  # engines may not draft the last one


def test_seeds_of_different_plans_do_not_meet() -> None:
    seeds = [{replace(QUICK, seed=seed).seed_of(number) for number in range(24_000)} for seed in (0, 1, 2)]
    assert len(set.union(*seeds)) == 3 * 24_000


@pytest.mark.parametrize(
    ("p_value", "power", "excess", "verdict", "reason"),
    [
        (0.5, 0.95, 0.001, "pass", "it follow the baseline; a bias of 3 points in x is found with power 0.950"),
        (0.001, 0.95, 0.041, "fail", "x is drawn 4.1 points more often"),
        (0.0005, 0.2, -0.041, "fail", "x is drawn 4.1 points less often"),
        (0.5, 0.89, 0.001, "inconclusive", "raise --max-samples"),
    ],
)
def test_tests_become_a_verdict(p_value: float, power: float, excess: float, verdict: str, reason: str) -> None:
    corrected = {"top": p_value, "tail": 1.0}
    check = judge(SamplingPlan(), corrected, power=power, seen="it", outcome="x", excess=excess, standard_error=0.01)
    assert check.verdict == verdict
    assert reason in check.reason


@pytest.mark.parametrize(
    "wrong", [{"bias": 0.0}, {"bias": 0.5}, {"power": 1.0}, {"false_alarm": 0.0}, {"num_tokens": 1}]
)
def test_plans_that_cannot_be_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        SamplingPlan(**wrong)
