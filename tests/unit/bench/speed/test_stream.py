"""The stream of one answer, as chats and plain completions give it."""

import asyncio
import json
from time import perf_counter

import httpx
import pytest

from blockdraft.bench.endpoint.connection import Connection
from blockdraft.bench.speed import stream

EVENTS = {
    "/chat/completions": [{"choices": [{"delta": {"content": text}}]} for text in ("ab", "c")],
    "/completions": [{"choices": [{"text": text}]} for text in ("ab", "c")],
}


@pytest.mark.parametrize("path", EVENTS)
def test_pieces_and_tokens_of_either_route(path: str) -> None:
    """Counts so far come with every piece; what has no text is no piece."""
    asked: list[str] = []

    def handle(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.path)
        first, second = EVENTS[path]
        events = [
            {**first, "usage": {"completion_tokens": 2}},
            {**second, "usage": {"completion_tokens": 3}},
            {"choices": [{"finish_reason": "length"}]},
            {"choices": [], "usage": {"completion_tokens": 3}},
        ]
        lines = [f"data: {json.dumps(event)}\n\n" for event in events]
        return httpx.Response(200, text="".join(lines) + "data: [DONE]\n\n")

    async def run() -> stream.Answer:
        async with Connection("http://nowhere", model="m", transport=httpx.MockTransport(handle)) as connection:
            answer = stream.Answer(sent_at=perf_counter())
            await stream.ask(connection, {}, 10.0, answer, path)
            return answer

    answer = asyncio.run(run())
    assert asked == [f"/v1{path}"]
    assert answer.failure is None
    assert (answer.text, answer.counted, answer.finish_reason) == (["ab", "c"], [2, 3], "length")
    assert len(answer.chunk_s) == 2
