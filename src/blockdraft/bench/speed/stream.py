"""One streamed answer of an OpenAI-compatible server, with the time of every piece.

A piece is what one server-sent event adds: text, reasoning or the text of a tool call. It may hold several tokens, as a
round of drafts emits several. How many is told by vLLM and SGLang (`continuous_usage_stats`) and by llama.cpp
(`timings_per_token`), which are asked for it; other servers tell the sum at the end.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import httpx

from blockdraft.bench.endpoint.connection import Connection, message_of
from blockdraft.bench.endpoint.counters import counters_of_answer
from blockdraft.bench.speed.drafts import DraftCounts
from blockdraft.bench.speed.records import Failure, Sample

_TEXT_FIELDS = ("content", "reasoning_content", "reasoning")
_DONE = "[DONE]"


@dataclass
class Answer:
    """A stream as it comes."""

    sent_at: float
    chunk_s: list[float] = field(default_factory=list)
    chunk_characters: list[int] = field(default_factory=list)
    counted: list[int] = field(default_factory=list)
    """Tokens so far, at each piece, if the server tells."""
    text: list[str] = field(default_factory=list)
    """What a following turn quotes: the content, without reasoning."""
    everything: list[str] = field(default_factory=list)
    usage: dict[str, Any] = field(default_factory=dict)
    timings: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, Any] = field(default_factory=dict)
    """vLLM's figures of the request (`--per-request-spec-decode-metrics`)."""
    finish_reason: str | None = None
    failure: Failure | None = None

    def take(self, event: dict[str, Any]) -> None:
        """Add one event."""
        now = perf_counter() - self.sent_at
        choices = event.get("choices") or [{}]
        delta = choices[0].get("delta") or {"content": choices[0].get("text")}  # of a chat, or of a plain completion
        self.finish_reason = choices[0].get("finish_reason") or self.finish_reason
        self.usage = event.get("usage") or self.usage
        self.timings = event.get("timings") or self.timings
        self.metrics = event.get("metrics") or self.metrics
        pieces = [delta.get(name) or "" for name in _TEXT_FIELDS]
        calls = json.dumps(delta["tool_calls"]) if delta.get("tool_calls") else ""
        if added := "".join(pieces) + calls:
            self.chunk_s.append(now)
            self.chunk_characters.append(len(added))
            self.text.append(pieces[0])
            self.everything.append(added)
            if counted := _tokens_so_far(event):
                self.counted.append(counted)

    def sample(self, prompt_id: str, turn: int, repeat: int, started_s: float) -> Sample:
        """Return what is kept of it."""
        if not self.chunk_s and self.failure is None:
            self.failure = Failure(kind="empty", message="the answer has no text, so it has no speed")
        told = self.usage.get("completion_tokens") or self.timings.get("predicted_n")
        if told is None and self.counted:
            told = self.counted[-1]
        details = self.usage.get("prompt_tokens_details") or {}
        return Sample(
            prompt_id=prompt_id,
            turn=turn,
            repeat=repeat,
            started_s=started_s,
            chunk_s=tuple(round(moment, 6) for moment in self.chunk_s),
            chunk_tokens=self._chunk_tokens(),
            chunk_characters=tuple(self.chunk_characters),
            num_tokens=len(self.chunk_s) if told is None else int(told),
            is_counted=told is not None,
            num_prompt_tokens=self.usage.get("prompt_tokens"),
            num_cached_tokens=details.get("cached_tokens", self.timings.get("cache_n")),
            finish_reason=self.finish_reason,
            text_sha256=hashlib.sha256("".join(self.everything).encode()).hexdigest(),
            drafts=DraftCounts.of(counters_of_answer({"timings": self.timings or None, "metrics": self.metrics})),
            timings=self.timings or None,
            failure=self.failure,
        )

    def _chunk_tokens(self) -> tuple[int, ...] | None:
        """Return the tokens of each piece, if every piece told how many there were so far."""
        if not self.counted or len(self.counted) < len(self.chunk_s):
            return None
        return tuple(now - before for before, now in zip([0, *self.counted], self.counted, strict=False))


async def ask(
    connection: Connection, body: dict[str, Any], timeout_s: float, answer: Answer, path: str = "/chat/completions"
) -> None:
    """Send one request and read its stream to the end into `answer`; what goes wrong is in its `failure`."""
    try:
        async with asyncio.timeout(timeout_s), connection.stream(path, body) as response:
            if response.status_code != 200:
                await response.aread()
                answer.failure = Failure(kind=f"http-{response.status_code}", message=message_of(response))
                return
            is_done = False
            async for data in _events(response):
                if data == _DONE:
                    is_done = True
                    break
                event = json.loads(data)
                if event.get("error"):
                    answer.failure = Failure(kind="stream", message=str(event["error"])[:300])
                    return
                answer.take(event)
            if not is_done and answer.finish_reason is None:
                answer.failure = Failure(kind="stream", message="the stream ended before the answer was finished")
    except TimeoutError:
        answer.failure = Failure(kind="timeout", message=f"no complete answer within {timeout_s:g} s")
    except (httpx.HTTPError, OSError) as error:
        answer.failure = Failure(kind="connection", message=f"{type(error).__name__}: {error}")
    except (ValueError, AttributeError, TypeError) as error:
        answer.failure = Failure(kind="stream", message=f"the stream is not what OpenAI's API gives: {error}")
    except asyncio.CancelledError:
        answer.failure = Failure(kind="cancelled", message="the run was stopped")
        raise


def _tokens_so_far(event: dict[str, Any]) -> int | None:
    usage, timings = event.get("usage") or {}, event.get("timings") or {}
    told = usage.get("completion_tokens") or timings.get("predicted_n")
    return None if told is None else int(told)


async def _events(response: httpx.Response) -> AsyncIterator[str]:
    """Yield the data of server-sent events; every server that is known puts each into one line."""
    async for line in response.aiter_lines():
        if line.startswith("data:"):
            yield line[5:].strip()
