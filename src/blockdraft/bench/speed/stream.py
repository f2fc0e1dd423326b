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
    speculation: dict[str, Any] = field(default_factory=dict)
    """vLLM's figures of the request (`--per-request-spec-decode-metrics`)."""
    finish_reason: str | None = None
    failure: Failure | None = None

    def take(self, event: dict[str, Any]) -> None:
        """Add one event."""
        now = perf_counter() - self.sent_at
        choices = event.get("choices") or [{}]
        delta = choices[0].get("delta") or {}
        self.finish_reason = choices[0].get("finish_reason") or self.finish_reason
        self.usage = event.get("usage") or self.usage
        self.timings = event.get("timings") or self.timings
        self.speculation = (event.get("metrics") or {}).get("speculative_decoding") or self.speculation
        pieces = [delta.get(name) or "" for name in _TEXT_FIELDS]
        calls = json.dumps(delta["tool_calls"]) if delta.get("tool_calls") else ""
        if added := "".join(pieces) + calls:
            self.chunk_s.append(now)
            self.chunk_characters.append(len(added))
            self.text.append(pieces[0])
            self.everything.append(added)
            counted = (event.get("usage") or {}).get("completion_tokens") or (event.get("timings") or {}).get("predicted_n")
            if counted:
                self.counted.append(int(counted))

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
            drafts=self._drafts(),
            timings=self.timings or None,
            failure=self.failure,
        )

    def _chunk_tokens(self) -> tuple[int, ...] | None:
        """Return the tokens of each piece, if every piece told how many there were so far."""
        if not self.counted or len(self.counted) < len(self.chunk_s):
            return None
        return tuple(now - before for before, now in zip([0, *self.counted], self.counted, strict=False))

    def _drafts(self) -> DraftCounts | None:
        if self.speculation.get("num_draft_tokens") is not None:
            histogram = self.speculation.get("acceptance_histogram") or []
            return DraftCounts(
                source="vLLM, per request",
                num_drafted=int(self.speculation["num_draft_tokens"]),
                num_accepted=int(self.speculation["num_accepted_draft_tokens"]),
                num_rounds=int(self.speculation["num_spec_steps"]),
                accepted_at=tuple(sum(histogram[slot:]) for slot in range(1, len(histogram))) or None,
            )
        if "predicted_n" in self.timings:  # llama.cpp, which leaves the counters out if nothing was drafted
            return DraftCounts(
                source="llama.cpp timings",
                num_drafted=int(self.timings.get("draft_n", 0)),
                num_accepted=int(self.timings.get("draft_n_accepted", 0)),
            )
        return None


async def ask(client: httpx.AsyncClient, path: str, body: dict[str, Any], timeout_s: float) -> Answer:
    """Send one request and read its stream to the end; what goes wrong is in `Answer.failure`."""
    answer = Answer(sent_at=perf_counter())
    try:
        async with asyncio.timeout(timeout_s), client.stream("POST", path, json=body) as response:
            if response.status_code != 200:
                await response.aread()
                answer.failure = Failure(kind=f"http-{response.status_code}", message=_message(response))
                return answer
            is_done = False
            async for data in _events(response):
                if data == _DONE:
                    is_done = True
                    break
                event = json.loads(data)
                if event.get("error"):
                    answer.failure = Failure(kind="stream", message=str(event["error"])[:300])
                    return answer
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
    return answer


async def _events(response: httpx.Response) -> AsyncIterator[str]:
    """Yield the data of server-sent events; every server that is known puts each into one line."""
    async for line in response.aiter_lines():
        if line.startswith("data:"):
            yield line[5:].strip()


def _message(response: httpx.Response) -> str:
    try:
        error = response.json()["error"]
        text = error["message"] if isinstance(error, dict) else error
    except (ValueError, KeyError, TypeError):
        text = response.text
    return " ".join(str(text).split())[:300] or response.reason_phrase
