"""What takes turns in `cpu_vs_peers.py`: blockdraft itself, servers in processes of their own, packages on torch."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPResponse
from pathlib import Path
from typing import Protocol

import torch

from blockdraft.bench.endpoint.connection import Connection
from blockdraft.bench.speed import stream
from blockdraft.engine import Engine
from blockdraft.errors import ConfigError, EndpointError

START_S = 300
"""A server has so many seconds to start."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """One answer and what it took."""

    text: str
    num_tokens: int
    decode_s: float
    """From the first token to the last."""
    prompt_tokens_per_second: float

    @property
    def tokens_per_second(self) -> float:
        return (self.num_tokens - 1) / self.decode_s if self.decode_s > 0 else 0.0


class Setting(Protocol):
    """An engine with a way to draft, or none."""

    name: str
    plain: str
    """The setting that decodes plainly with the same engine and file."""

    def answer(self, prompt_ids: Sequence[int], max_tokens: int) -> Answer: ...

    def peak_bytes(self) -> int | None: ...

    def close(self) -> None: ...


class Own:
    """blockdraft, in this process."""

    def __init__(self, name: str, engine: Engine) -> None:
        self.name, self.plain, self._engine = name, "blockdraft plain", engine

    def answer(self, prompt_ids: Sequence[int], max_tokens: int) -> Answer:
        generation = self._engine.generate(prompt_ids, max_tokens=max_tokens)
        timings = generation.timings
        return Answer(
            text=generation.text,
            num_tokens=len(generation.token_ids),
            decode_s=timings.decode_s,
            prompt_tokens_per_second=len(prompt_ids) / timings.prefill_s,
        )

    def peak_bytes(self) -> int | None:
        return _peak_bytes("self")

    def close(self) -> None:
        pass


class Server:
    """A server in a process of its own, which has been found healthy."""

    def __init__(self, name: str, plain: str, command: Sequence[str], log: Path, *, port: int) -> None:
        self.name, self.plain, self._log = name, plain, log
        self._url = f"http://127.0.0.1:{port}"
        # It chooses for itself how its threads wait.
        environment = {key: value for key, value in os.environ.items() if not key.startswith("OMP_")}
        with log.open("wb") as output:
            self._process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment)
        self._wait_until_healthy()

    def _wait_until_healthy(self) -> None:
        for _ in range(START_S * 5):
            if self._process.poll() is not None:
                raise ConfigError(f"{self.name} did not start:\n{self._log.read_text(errors='replace')[-1500:]}")
            try:
                with self._ask("/health"):
                    return
            except (urllib.error.URLError, OSError):
                time.sleep(0.2)
        self.close()
        raise ConfigError(f"{self.name} is not healthy after {START_S} seconds; see {self._log}")

    def _ask(self, path: str, body: Mapping[str, object] | None = None) -> HTTPResponse:
        content = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self._url}{path}", content, {"Content-Type": "application/json"})
        response: HTTPResponse = urllib.request.urlopen(request, timeout=600)
        return response

    def peak_bytes(self) -> int | None:
        """Return the most memory that the process or one of its children has held."""
        peaks = [_peak_bytes(str(pid)) for pid in (self._process.pid, *_children(self._process.pid))]
        return max((peak for peak in peaks if peak is not None), default=None)

    def close(self) -> None:
        self._process.terminate()
        self._process.wait()


class LlamaServer(Server):
    """llama.cpp's server."""

    def __init__(self, name: str, plain: str, command: Sequence[str], log: Path) -> None:
        port = free_port()
        super().__init__(name, plain, [*command, "--host", "127.0.0.1", "--port", str(port)], log, port=port)

    def answer(self, prompt_ids: Sequence[int], max_tokens: int) -> Answer:
        body = {"prompt": list(prompt_ids), "n_predict": max_tokens, "temperature": 0, "cache_prompt": False}
        with self._ask("/completion", body) as response:
            found = json.load(response)
        timings = found["timings"]
        # The server's clock of an answer starts, like ours, when the first token is there.
        return Answer(
            text=found["content"],
            num_tokens=timings["predicted_n"],
            decode_s=timings["predicted_ms"] / 1000,
            prompt_tokens_per_second=timings["prompt_per_second"],
        )


class OpenAIServer(Server):
    """Any server of OpenAI's protocol that takes token ids; `{port}` in its command is replaced."""

    def __init__(self, name: str, plain: str, command: Sequence[str], log: Path) -> None:
        port = free_port()
        super().__init__(name, plain, [word.replace("{port}", str(port)) for word in command], log, port=port)

    def answer(self, prompt_ids: Sequence[int], max_tokens: int) -> Answer:
        found = asyncio.run(self._stream(prompt_ids, max_tokens))
        if found.failure or not found.chunk_s:
            raise EndpointError(f"{self.name} did not answer: {found.failure or 'no text came'}; see {self._log}")
        # What the first piece holds was there before the clock started.
        num_first = found.counted[0] if found.counted else 1
        return Answer(
            text="".join(found.text),
            num_tokens=int(found.usage["completion_tokens"]) - num_first + 1,
            decode_s=found.chunk_s[-1] - found.chunk_s[0],
            prompt_tokens_per_second=len(prompt_ids) / found.chunk_s[0],
        )

    async def _stream(self, prompt_ids: Sequence[int], max_tokens: int) -> stream.Answer:
        async with Connection(self._url) as connection:
            body = {
                "model": await connection.model(),
                "prompt": list(prompt_ids),
                "max_tokens": max_tokens,
                "temperature": 0,
                "stream": True,
                "stream_options": {"include_usage": True, "continuous_usage_stats": True},
            }
            answer = stream.Answer(sent_at=time.perf_counter())
            await stream.ask(connection, body, 600.0, answer, "/completions")
            return answer


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


class Transformers:
    """transformers on torch, in this process."""

    def __init__(self, name: str, plain: str, model: torch.nn.Module, options: Mapping[str, object]) -> None:
        self.name, self.plain, self._model, self._options = name, plain, model, options

    def answer(self, prompt_ids: Sequence[int], max_tokens: int) -> Answer:
        ids = torch.tensor([list(prompt_ids)])
        times: list[float] = []

        class Clock:
            def put(self, value: torch.Tensor) -> None:
                times.append(time.perf_counter())

            def end(self) -> None:
                pass

        started = time.perf_counter()
        with _torch_threads(2):
            output = self._model.generate(  # type: ignore[operator]
                ids, max_new_tokens=max_tokens, do_sample=False, streamer=Clock(), **self._options
            )
        # The first call is the prompt itself, the second the first token (or the first few of them).
        num_tokens = output.shape[1] - ids.shape[1]
        return Answer(
            text=" ".join(map(str, output[0, ids.shape[1] :].tolist())),
            num_tokens=num_tokens,
            decode_s=times[-1] - times[1] if len(times) > 1 else 0.0,
            prompt_tokens_per_second=len(prompt_ids) / (times[1] - started) if len(times) > 1 else 0.0,
        )

    def peak_bytes(self) -> int | None:
        return None

    def close(self) -> None:
        pass


class ZLabDFlash:
    """Z Lab's package `dflash` with a drafter in its layout, on the same model as `Transformers`."""

    name, plain = "dflash", "transformers plain"

    def __init__(self, model: torch.nn.Module, folder: Path, stop_ids: Sequence[int]) -> None:
        from dflash import DFlashDraftModel  # noqa: PLC0415 - only there where this peer takes part

        self._model, self._stop_ids = model, list(stop_ids)
        self._drafter = DFlashDraftModel.from_pretrained(folder, dtype=model.dtype)

    def answer(self, prompt_ids: Sequence[int], max_tokens: int) -> Answer:
        ids = torch.tensor([list(prompt_ids)])
        with _torch_threads(2):
            _, first_s = self._generate(ids, 1)
            output, seconds = self._generate(ids, max_tokens)
        new_ids = output[0, ids.shape[1] :].tolist()
        return Answer(
            text=" ".join(map(str, new_ids)),
            num_tokens=len(new_ids),
            decode_s=seconds - first_s,
            prompt_tokens_per_second=len(prompt_ids) / first_s,
        )

    def _generate(self, ids: torch.Tensor, max_tokens: int) -> tuple[torch.Tensor, float]:
        started = time.perf_counter()
        with torch.inference_mode():
            output = self._drafter.spec_generate(
                self._model, ids, max_new_tokens=max_tokens, stop_token_ids=self._stop_ids
            )
        return output, time.perf_counter() - started

    def peak_bytes(self) -> int | None:
        return None

    def close(self) -> None:
        pass


@contextmanager
def _torch_threads(count: int) -> Iterator[None]:
    """Let torch use so many threads, which are few while the native kernels have theirs."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _peak_bytes(process: str) -> int | None:
    status = Path(f"/proc/{process}/status")
    lines = status.read_text().splitlines() if status.exists() else []
    found = [line.split() for line in lines if line.startswith("VmHWM:")]
    return int(found[0][1]) * 1024 if found else None


def _children(pid: int) -> list[str]:
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    direct = [child for task in tasks for child in task.read_text().split()]
    return direct + [grandchild for child in direct for grandchild in _children(int(child))]
