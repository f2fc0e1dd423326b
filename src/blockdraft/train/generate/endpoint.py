"""Answers from an OpenAI-compatible server that runs the target: vLLM, SGLang, llama.cpp's server and others.

Many requests are in flight at once, so that the server can batch them. Answers come through
`/chat/completions`, where the server applies the target's own chat template; user messages that the target
writes itself come through `/completions`, which takes the beginning that the template would write. Only texts
come back: an answer whose tokens are not what its text encodes to cannot be told here.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import httpx

from blockdraft.core.sampling import SamplingParams
from blockdraft.errors import DataError
from blockdraft.models.tokenizer import Tokenizer
from blockdraft.train.generate.dialogue import Answer, Dialogue, Task
from blockdraft.train.generate.own import question_prefix

_TIMEOUT = httpx.Timeout(600.0, connect=10.0)
"""An answer may wait for its turn on the server for minutes."""
_NUM_TRIES = 5
_FIRST_PAUSE_S = 0.5
_REFUSED = (400, 413, 422)
"""The request itself is at fault, for example a prompt that is longer than the context."""
_TRY_AGAIN = (408, 409, 425, 429)


class _RequestRefusedError(Exception):
    """The server will not answer this one. Its first argument is short, the second one says more."""


class EndpointRuntime:
    """Answers dialogues through a server.

    Raises:
        DataError: it cannot be reached, does not let us in, or serves several models and none was chosen.
    """

    def __init__(
        self,
        url: str,
        tokenizer: Tokenizer,
        *,
        model: str | None = None,
        api_key: str | None = None,
        num_in_flight: int = 64,
        thinking: bool | None = None,
        notify: Callable[[str], None],
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """`url` ends before `/chat/completions`, as a rule in `/v1`; `transport` is for tests."""
        self._url = url.rstrip("/")
        self._tokenizer = tokenizer
        self._model = model
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._num_in_flight = num_in_flight
        self._thinking = thinking
        self._notify = notify
        self._told: set[str] = set()
        self._transport = transport

    def run(self, dialogues: Iterable[Dialogue]) -> Iterator[Dialogue]:
        """Yield the dialogues as they are finished; `num_in_flight` at most are begun."""
        # One loop, turned by whoever iterates: between two dialogues nothing happens behind the caller's back.
        with asyncio.Runner() as runner:
            client = httpx.AsyncClient(
                timeout=_TIMEOUT,
                headers=self._headers,
                transport=self._transport,
                limits=httpx.Limits(max_connections=self._num_in_flight),
            )
            try:
                if self._model is None:
                    self._model = runner.run(self._only_model(client))
                source = iter(dialogues)
                running: set[asyncio.Task[Dialogue]] = set()
                while True:
                    running |= runner.run(self._start(client, source, self._num_in_flight - len(running)))
                    if not running:
                        return
                    done, running = runner.run(_first_done(running))
                    for task in done:
                        yield task.result()
            finally:
                runner.run(client.aclose())

    async def _start(
        self, client: httpx.AsyncClient, source: Iterator[Dialogue], count: int
    ) -> set[asyncio.Task[Dialogue]]:
        return {
            asyncio.create_task(self._finish(client, dialogue))
            for _, dialogue in zip(range(count), source, strict=False)
        }

    async def _only_model(self, client: httpx.AsyncClient) -> str:
        try:
            listing = await self._request(client, "GET", "/models")
        except _RequestRefusedError as error:
            raise DataError(f"{self._url} does not list its models; name one with --endpoint-model") from error
        names = [entry["id"] for entry in listing.get("data", ())]
        if len(names) != 1:
            raise DataError(f"{self._url} serves {', '.join(names) or 'no model'}; choose one with --endpoint-model")
        return str(names[0])

    async def _finish(self, client: httpx.AsyncClient, dialogue: Dialogue) -> Dialogue:
        while not dialogue.is_finished:
            try:
                dialogue.take(await self._answer(client, dialogue.task()))
            except _RequestRefusedError as error:
                dialogue.discarded = self._refused(error)
        return dialogue

    def _refused(self, error: _RequestRefusedError) -> str:
        """Return why a dialogue was discarded; tell what the server says the first time."""
        reason = f"the server refused it ({error.args[0]})"
        if reason not in self._told:
            self._told.add(reason)
            self._notify(": ".join((reason, *error.args[1:])))
        return reason

    async def _answer(self, client: httpx.AsyncClient, task: Task) -> Answer:
        body = {"model": self._model, "max_tokens": task.max_tokens, **_sampling_fields(task)}
        if task.is_question:
            body |= {"prompt": question_prefix(self._tokenizer, task)}
            choice, usage = _first_choice(await self._request(client, "POST", "/completions", body))
            text = choice.get("text")
        else:
            body |= {"messages": [dict(message) for message in task.messages]}
            if self._thinking is not None:
                # Understood by vLLM, SGLang and llama.cpp alike.
                body |= {"chat_template_kwargs": {"enable_thinking": self._thinking, "thinking": self._thinking}}
            choice, usage = _first_choice(await self._request(client, "POST", "/chat/completions", body))
            text = choice.get("message", {}).get("content")
        if not isinstance(text, str) or choice.get("finish_reason") not in ("stop", "length"):
            raise _RequestRefusedError(f"an answer with finish_reason {choice.get('finish_reason')!r}")
        num_tokens = usage.get("completion_tokens")
        if num_tokens is None:
            num_tokens = len(self._tokenizer.encode(text, add_special_tokens=False))
        return Answer(text=text, finish=choice["finish_reason"], num_tokens=int(num_tokens))

    async def _request(
        self, client: httpx.AsyncClient, method: str, path: str, body: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Send a request, again after a while if the server is busy or away for a moment."""
        problem = ""
        for attempt in range(_NUM_TRIES):
            if attempt:
                await asyncio.sleep(_FIRST_PAUSE_S * 2 ** (attempt - 1))
            try:
                response = await client.request(method, self._url + path, json=body)
            except httpx.InvalidURL as error:
                raise DataError(f"{self._url} is no URL: {error}") from error
            except httpx.TransportError as error:
                problem = f"{type(error).__name__} {error}".strip()
                continue
            if response.status_code in _REFUSED:
                raise _RequestRefusedError(f"status {response.status_code}", _message(response))
            if response.status_code in _TRY_AGAIN or response.status_code >= 500:
                problem = f"{response.status_code} {_message(response)}"
                continue
            if not response.is_success:
                raise DataError(f"{self._url}{path} answers {response.status_code}: {_message(response)}")
            try:
                parsed: dict[str, Any] = response.json()
            except json.JSONDecodeError as error:
                raise DataError(
                    f"{self._url}{path} answers with something that is not JSON; is the URL right?"
                ) from error
            return parsed
        raise DataError(
            f"{self._url}{path} gave no answer in {_NUM_TRIES} tries ({problem}); what is finished is kept: "
            f"start the server and run the command again"
        )


async def _first_done(
    running: set[asyncio.Task[Dialogue]],
) -> tuple[set[asyncio.Task[Dialogue]], set[asyncio.Task[Dialogue]]]:
    return await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)


def _sampling_fields(task: Task) -> dict[str, Any]:
    sampling: SamplingParams = task.sampling
    if sampling.is_greedy:
        return {"temperature": 0.0}
    fields = {"temperature": sampling.temperature, "top_p": sampling.top_p}
    fields |= {"seed": (sampling.seed + task.sample_index) % 2**31}
    return fields | ({"top_k": sampling.top_k} if sampling.top_k else {})


def _first_choice(answer: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    choices = answer.get("choices")
    if not choices:
        raise _RequestRefusedError("an answer without choices")
    return choices[0], answer.get("usage") or {}


def _message(response: httpx.Response) -> str:
    """Return what an error answer says, in one short line."""
    try:
        error = response.json()
        error = error.get("error", error)
        text = error.get("message", error) if isinstance(error, dict) else error
    except (ValueError, AttributeError):
        text = response.text
    return " ".join(str(text).split())[:200]
