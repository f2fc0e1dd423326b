"""The endpoint runtime asks as OpenAI's interface says, keeps many requests in flight, and is patient up to a point."""

import asyncio
import json

import httpx
import pytest

from blockdraft.errors import DataError
from blockdraft.models.tokenizer import Tokenizer, load_tokenizer
from blockdraft.testing.tiny_gguf import write_tiny_gguf
from blockdraft.train.generate import endpoint
from blockdraft.train.generate.dialogue import Dialogue, GenerationSettings
from blockdraft.train.generate.endpoint import EndpointRuntime
from blockdraft.train.generate.prompts import Prompt

SETTINGS = GenerationSettings(max_tokens=7, temperatures=((0.7, 1.0),), seed=5)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return load_tokenizer(write_tiny_gguf(tmp_path_factory.mktemp("endpoint") / "tiny.gguf"))


class Server:
    """Answers every request with its number, and remembers what it was asked."""

    def __init__(self, *statuses: int) -> None:
        self.statuses = list(statuses)
        """Of the first requests; 200 afterwards."""
        self.requests: list[httpx.Request] = []
        self.num_open = self.most_open = 0

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        if request.url.path == "/v1/models":
            return httpx.Response(200, json={"data": [{"id": "the-model"}]})
        self.requests.append(request)
        self.num_open += 1
        self.most_open = max(self.most_open, self.num_open)
        await asyncio.sleep(0.01)
        self.num_open -= 1
        if self.statuses and (status := self.statuses.pop(0)) != 200:
            return httpx.Response(status, json={"error": {"message": "no,\nsorry"}})
        text = f"answer {len(self.requests)}"
        is_chat = request.url.path == "/v1/chat/completions"
        part = {"message": {"content": text}} if is_chat else {"text": text}
        return httpx.Response(
            200, json={"choices": [{**part, "finish_reason": "stop"}], "usage": {"completion_tokens": 4}}
        )

    def bodies(self) -> list[dict[str, object]]:
        return [json.loads(request.content) for request in self.requests]


def run(server: object, tokenizer: Tokenizer, *prompts: Prompt, **options: object) -> list[Dialogue]:
    options = {"notify": lambda _: None, **options}
    runtime = EndpointRuntime("http://here/v1/", tokenizer, transport=httpx.MockTransport(server), **options)
    return list(runtime.run(Dialogue(prompt, SETTINGS) for prompt in prompts))


def prompts(count: int) -> list[Prompt]:
    return [Prompt(id=str(number), turns=(f"question {number}",)) for number in range(count)]


def test_settings_and_messages_arrive_and_answers_come_back(tokenizer: Tokenizer) -> None:
    server = Server()
    [done] = run(
        server, tokenizer, Prompt(id="a", turns=("one", "two"), system="be kind"), api_key="secret", thinking=False
    )
    first, second = server.bodies()
    assert server.requests[0].headers["authorization"] == "Bearer secret"
    assert (first["model"], first["max_tokens"], first["temperature"]) == ("the-model", 7, 0.7)
    assert (first["top_p"], first["top_k"]) == (SETTINGS.top_p, SETTINGS.top_k)
    assert first["chat_template_kwargs"]["enable_thinking"] is False
    assert first["seed"] != second["seed"]
    assert [message["content"] for message in second["messages"]] == ["be kind", "one", "answer 1", "two"]
    conversation = done.conversation(tokenizer)
    assert conversation is not None
    assert conversation.messages[-1] == {"role": "assistant", "content": "answer 2"}
    assert conversation.num_completion_tokens == 8


def test_many_requests_are_in_flight_but_not_more_than_allowed(tokenizer: Tokenizer) -> None:
    server = Server()
    done = run(server, tokenizer, *prompts(40), num_in_flight=8)
    assert len(done) == 40
    assert server.most_open == 8


def test_a_question_of_its_own_begins_where_the_template_puts_the_users_words(tokenizer: Tokenizer) -> None:
    server = Server()
    [done] = run(server, tokenizer, Prompt(id="s", turns=()))
    question, answer = server.bodies()
    assert question["prompt"] == "<|im_start|>user\n"
    assert answer["messages"] == [{"role": "user", "content": "answer 1"}]
    assert done.questions() == ("answer 1",)


def test_a_busy_server_is_asked_again(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "_FIRST_PAUSE_S", 0.001)
    done = run(Server(503, 429), tokenizer, *prompts(1))
    assert done[0].discarded is None


def test_a_request_that_the_server_refuses_is_left_out_and_told_once(tokenizer: Tokenizer) -> None:
    told: list[str] = []
    done = run(Server(400, 400), tokenizer, *prompts(3), notify=told.append)
    assert sorted(str(dialogue.discarded) for dialogue in done) == ["None"] + ["the server refused it (status 400)"] * 2
    assert told == ["the server refused it (status 400): no, sorry"]


def test_a_server_that_is_away_ends_the_run_with_its_name(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoint, "_FIRST_PAUSE_S", 0.001)

    def away(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("nobody there", request=request)

    with pytest.raises(DataError, match=r"http://here/v1/chat/completions gave no answer .*nobody there.*is kept"):
        run(away, tokenizer, *prompts(2), model="m")


@pytest.mark.parametrize("status", [401, 404])
def test_a_wrong_key_or_url_is_told_at_once(tokenizer: Tokenizer, status: int) -> None:
    with pytest.raises(DataError, match=f"answers {status}: no, sorry"):
        run(Server(status), tokenizer, *prompts(1), model="m")


def test_several_models_need_a_choice(tokenizer: Tokenizer) -> None:
    def two(_request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, json={"data": [{"id": "a"}, {"id": "b"}]})

    with pytest.raises(DataError, match="serves a, b; choose one"):
        run(two, tokenizer, *prompts(1))
