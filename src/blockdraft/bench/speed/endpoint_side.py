"""A side that is an OpenAI-compatible server.

Conversations are answered through `/chat/completions`, streamed; a following turn quotes the answers that this side
gave. Nothing is tried twice: what is timed must not hide a second try.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from time import perf_counter
from typing import Any

import httpx

from blockdraft.bench.endpoint.connection import Connection
from blockdraft.bench.endpoint.counters import DraftCounters, read_counters
from blockdraft.bench.endpoint.engines import ServedEngine, recognise
from blockdraft.bench.speed.drafts import DraftCounts
from blockdraft.bench.speed.records import Role, Sample, SideInfo
from blockdraft.bench.speed.side import WARM_UP_PROMPT, WARM_UP_TOKENS, AnswerSettings, Emit
from blockdraft.bench.speed.stream import Answer, ask
from blockdraft.bench.speed.workload import WORDS_TO_CALIBRATE, filler
from blockdraft.engine.workloads import Workload
from blockdraft.errors import EndpointError

_COUNTS_OF_PIECES: dict[str, dict[str, Any]] = {
    "vllm": {"stream_options": {"include_usage": True, "continuous_usage_stats": True}},
    "sglang": {"stream_options": {"include_usage": True, "continuous_usage_stats": True}},
    "llamacpp": {"stream_options": {"include_usage": True}, "timings_per_token": True},
    "unknown": {"stream_options": {"include_usage": True}},
}
"""What makes an engine tell how many tokens a piece holds."""


class EndpointSide:
    """One server, with the same settings for every request.

    Raises:
        EndpointError: it cannot be reached, or which model to ask for is not clear.
        ConfigError: the URL is none.
    """

    def __init__(
        self,
        url: str,
        role: Role,
        settings: AnswerSettings,
        *,
        model: str | None = None,
        api_key: str | None = None,
        extra: dict[str, Any] | None = None,
        timeout_s: float = 600.0,
        max_in_flight: int = 64,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """`extra` are further fields of every request; `timeout_s` is the most that one may take."""
        self._runner = asyncio.Runner()
        self._connection = Connection(
            url,
            model=model,
            api_key=api_key,
            # A place for counters, which are read while nothing is in flight.
            num_in_flight=max_in_flight + 1,
            timeout_s=timeout_s,
            transport=transport,
        )
        self._url, self._role, self._extra, self._timeout_s = url, role, dict(extra or {}), timeout_s
        self._settings = settings
        try:
            self._engine: ServedEngine = self._runner.run(recognise(self._connection))
        except BaseException:
            self.close()
            raise
        self._before: DraftCounters | None = None
        self._told: list[DraftCounts | None] = []

    @property
    def info(self) -> SideInfo:
        known = [self._engine.engine, self._engine.version]
        return SideInfo(
            role=self._role,
            where=self._url,
            engine=" ".join(part for part in known if part),
            model=self._engine.model,
            details={"server": self._engine.to_dict(), "extra": self._extra},
        )

    def warm_up(self, concurrency: int) -> None:
        answers = self._runner.run(self._warm_up(concurrency))
        if failed := [answer.failure for answer in answers if answer.failure]:
            raise EndpointError(f"{self._url} does not answer the warm-up ({failed[0].kind}): {failed[0].message}")
        self._before = self._runner.run(read_counters(self._connection))
        self._told.clear()

    def words_per_token(self) -> float:
        sizes = [self._runner.run(self._prompt_size(words)) for words in (0, WORDS_TO_CALIBRATE)]
        if None in sizes:
            raise EndpointError(f"{self._url} does not tell how long prompts are (`usage`), so no depth can be made")
        short, long = (size for size in sizes if size is not None)
        return WORDS_TO_CALIBRATE / max(long - short, 1)

    def serve(self, conversations: Sequence[Workload], *, repeat: int, concurrency: int, emit: Emit) -> None:
        self._told.clear()
        self._runner.run(self._serve(conversations, repeat, concurrency, emit))

    def take_drafts(self) -> DraftCounts | None:
        now = self._runner.run(read_counters(self._connection))
        before, self._before = self._before, now
        if now is not None and before is not None:
            return DraftCounts.of(now - before)
        told, self._told = self._told, []
        return DraftCounts.merge(told) if told and None not in told else None

    def close(self) -> None:
        self._runner.run(self._connection.__aexit__(None, None, None))
        self._runner.close()

    async def _warm_up(self, concurrency: int) -> list[Answer]:
        prompts = [[{"role": "user", "content": f"({number}) {WARM_UP_PROMPT}"}] for number in range(concurrency)]
        answers = [Answer(sent_at=perf_counter()) for _ in prompts]
        bodies = [{**self._body(messages), "max_tokens": WARM_UP_TOKENS} for messages in prompts]
        await asyncio.gather(
            *(
                ask(self._connection, body, self._timeout_s, answer)
                for body, answer in zip(bodies, answers, strict=True)
            )
        )
        return answers

    async def _prompt_size(self, num_words: int) -> int | None:
        text = f"{filler(num_words, 'size')}\n{WARM_UP_PROMPT}".strip()
        answer = Answer(sent_at=perf_counter())
        body = {**self._body([{"role": "user", "content": text}]), "max_tokens": 2}
        await ask(self._connection, body, self._timeout_s, answer)
        size = answer.usage.get("prompt_tokens")
        return None if size is None else int(size)

    async def _serve(self, conversations: Sequence[Workload], repeat: int, concurrency: int, emit: Emit) -> None:
        """Let `concurrency` clients take one conversation after the other."""
        began = perf_counter()
        waiting = iter(conversations)

        async def client() -> None:
            for conversation in waiting:
                await self._converse(conversation, repeat, began, emit)

        clients = [asyncio.create_task(client()) for _ in range(min(concurrency, len(conversations)))]
        try:
            await asyncio.gather(*clients)
        finally:
            # An interrupt cancels this coroutine; the clients then hand over what they have.
            for task in clients:
                task.cancel()
            await asyncio.gather(*clients, return_exceptions=True)

    async def _converse(self, conversation: Workload, repeat: int, began: float, emit: Emit) -> None:
        messages: list[dict[str, str]] = []
        for turn, text in enumerate(conversation.turns):
            messages.append({"role": "user", "content": text})
            answer = Answer(sent_at=perf_counter())
            try:
                await ask(self._connection, self._body(messages), self._timeout_s, answer)
            finally:
                sample = answer.sample(conversation.id, turn, repeat, round(answer.sent_at - began, 6))
                self._take(sample, emit)
            if sample.failure:
                return  # what follows would be about an answer that is not there
            messages.append({"role": "assistant", "content": "".join(answer.text)})

    def _take(self, sample: Sample, emit: Emit) -> None:
        self._told.append(sample.drafts)
        emit(sample)

    def _body(self, messages: list[dict[str, str]]) -> dict[str, Any]:
        body = {
            "model": self._engine.model,
            "messages": list(messages),
            "max_tokens": self._settings.max_tokens,
            "temperature": self._settings.temperature,
            "stream": True,
            **_COUNTS_OF_PIECES[self._engine.engine],
        }
        if self._settings.temperature > 0:
            body |= {"top_p": self._settings.top_p, "seed": self._settings.seed}
        if self._settings.ignore_eos:
            body["ignore_eos"] = True
        return {**body, **self._extra}
