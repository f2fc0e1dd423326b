"""A server on this machine that streams what a script says, when it says it, to test what measures streams.

with SseServer(lambda body: [(0.1, piece("Hello")), (0, ending()), (0, DONE)]) as server:
...  # ask server.url
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Sequence
from typing import Any

Event = tuple[float, dict[str, Any] | str]
"""How long to wait, and what to send then: an object, or the line itself."""
Script = Callable[[dict[str, Any]], Sequence[Event]]

DONE = "data: [DONE]\n\n"


def piece(text: str, **more: Any) -> dict[str, Any]:
    """Return the event that adds a piece of content."""
    return {"choices": [{"delta": {"content": text}}], **more}


def ending(reason: str = "stop", **more: Any) -> dict[str, Any]:
    """Return the event that ends an answer."""
    return {"choices": [{"delta": {}, "finish_reason": reason}], **more}


class SseServer:
    """Serves `/v1/chat/completions` from a script; other routes from `pages` (text or JSON)."""

    def __init__(self, script: Script, *, pages: dict[str, Any] | None = None, status: int = 200) -> None:
        self.script, self.status = script, status
        self.pages = {"/v1/models": {"data": [{"id": "m"}]}, **(pages or {})}
        self.bodies: list[dict[str, Any]] = []
        self.heads: list[dict[str, str]] = []
        """Header fields of all requests, names in lower case."""
        self.in_flight = self.most_in_flight = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> SseServer:
        self._thread.start()
        started = asyncio.run_coroutine_threadsafe(asyncio.start_server(self._serve, "127.0.0.1", 0), self._loop)
        self._server = started.result()
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    def __exit__(self, *_error: object) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _stop(self) -> None:
        self._server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            path = head.split()[1]
            fields = [line.partition(":") for line in head.splitlines()[1:]]
            self.heads.append({name.lower(): value.strip() for name, _, value in fields})
            length = int(self.heads[-1].get("content-length", 0))
            body = json.loads(await reader.readexactly(length)) if length else {}
            if path == "/v1/chat/completions":
                await self._stream(writer, body)
            else:
                page = self.pages.get(path)
                page = page() if callable(page) else page
                text = page if isinstance(page, str) else json.dumps(page)
                self._head(writer, 404 if page is None else 200, len(text.encode()))
                writer.write(text.encode())
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _stream(self, writer: asyncio.StreamWriter, body: dict[str, Any]) -> None:
        self.bodies.append(body)
        if self.status != 200:
            text = json.dumps({"error": {"message": "no room for you"}})
            self._head(writer, self.status, len(text))
            writer.write(text.encode())
            return
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n")
            for wait_s, event in self.script(body):
                await asyncio.sleep(wait_s)
                writer.write((event if isinstance(event, str) else f"data: {json.dumps(event)}\n\n").encode())
                await writer.drain()
        finally:
            self.in_flight -= 1

    @staticmethod
    def _head(writer: asyncio.StreamWriter, status: int, length: int) -> None:
        writer.write(f"HTTP/1.1 {status} X\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n".encode())
