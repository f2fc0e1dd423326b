"""Runs an engine as a child: its logs, its health, its crashes and its end.

The child owns its port and is exposed as it is; nothing stands between it and its clients. What happens is told as
events, one after another, so that a terminal, a log and a test see the same.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from time import monotonic
from typing import Any, Literal

import httpx

from blockdraft.deploy.deployment import EngineName
from blockdraft.errors import ConfigError, LaunchError

EventName = Literal["started", "log", "ready", "exited", "waiting", "stopping", "stopped"]

DEFAULT_PORTS: Mapping[EngineName, int] = {"vllm": 8000, "sglang": 30000, "llamacpp": 8080}
"""Where the engines listen if nothing is said."""

_TAIL_LINES = 30
_POLL_S = 0.25


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something that happened to the child."""

    name: EventName
    seconds: float
    """Since the start of all."""
    text: str = ""
    """A line of the child's log, or what happened, in words."""
    details: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return the event as plain data."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class Launch:
    """What is to be run, and how patient to be with it.

    Raises:
        ConfigError: a time or a count is below its least.
    """

    command: Sequence[str]
    url: str
    """Root of the server, like http://127.0.0.1:8000."""
    health_path: str = "/health"
    """What answers 200 once the model is loaded, with all three engines."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Beside that of this process."""
    ready_timeout_s: float = 1800.0
    """Engines download, load and compile before they answer."""
    stop_timeout_s: float = 30.0
    """After it, a child that was asked to stop is killed."""
    max_restarts: int = 5
    """Restarts in a row, without `stable_s` of health between them."""
    first_pause_s: float = 1.0
    longest_pause_s: float = 60.0
    stable_s: float = 300.0

    def __post_init__(self) -> None:
        if not self.command:
            raise ConfigError("there is no command to run")
        for name in ("ready_timeout_s", "stop_timeout_s", "first_pause_s", "longest_pause_s", "stable_s"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"{name} must be above 0, not {getattr(self, name)}")
        if self.max_restarts < 0:
            raise ConfigError(f"max_restarts must be at least 0, not {self.max_restarts}")

    def pause_s(self, num_restarts: int) -> float:
        """Return how long to wait before a restart, the first one being number 0."""
        return float(min(self.longest_pause_s, self.first_pause_s * 2**num_restarts))


class Supervisor:
    """Keeps one child running until it is asked to stop.

    `events` runs everything; leaving it, by an error or a cancellation too, ends the child and all that it started.
    """

    def __init__(self, launch: Launch, *, transport: httpx.AsyncBaseTransport | None = None) -> None:
        """`transport` is for tests."""
        self.launch = launch
        self._transport = transport
        self._begun = monotonic()
        self._stop = asyncio.Event()
        self._tail: deque[str] = deque(maxlen=_TAIL_LINES)
        self._events: asyncio.Queue[Event | None] = asyncio.Queue()

    def request_stop(self) -> None:
        """Ask for the end; safe to call from a signal handler of the event loop, and again."""
        self._stop.set()

    async def events(self) -> AsyncGenerator[Event]:
        """Yield what happens until the child has stopped because that was asked for.

        Raises:
            LaunchError: it cannot be started, ended before it was healthy, did not become healthy in time, or crashed
                again and again.
        """
        running = asyncio.create_task(self._run())
        try:
            while (event := await self._events.get()) is not None:
                yield event
            await running
        finally:
            self._stop.set()
            await asyncio.gather(running, return_exceptions=True)

    async def _run(self) -> None:
        try:
            await self._keep_running()
        finally:
            self._events.put_nowait(None)

    async def _refuse_another_server(self) -> None:
        async with httpx.AsyncClient(timeout=2.0, transport=self._transport) as client:
            try:
                await client.get(self.launch.url)
            except httpx.TransportError:
                return
        raise LaunchError(
            f"something answers at {self.launch.url} already, and would be taken for the engine; stop it, or choose "
            "another port"
        )

    async def _keep_running(self) -> None:
        await self._refuse_another_server()
        num_restarts, was_healthy = 0, False
        while True:
            healthy_since = await self._one_life(is_first=not was_healthy)
            if healthy_since is None:
                return
            was_healthy = True
            if monotonic() - healthy_since >= self.launch.stable_s:
                num_restarts = 0
            if num_restarts >= self.launch.max_restarts:
                raise LaunchError(
                    f"the engine crashed again after {num_restarts} restarts; its last lines:\n{self._last_lines()}"
                )
            pause_s = self.launch.pause_s(num_restarts)
            num_restarts += 1
            self._tell("waiting", f"restart {num_restarts} in {pause_s:g} s", pause_s=pause_s, restart=num_restarts)
            if await _happens(self._stop.wait(), pause_s):
                self._tell("stopped", "before the restart")
                return

    async def _one_life(self, *, is_first: bool) -> float | None:
        """Run the child once; return since when it was healthy if it ended by itself, None if it was stopped."""
        child = await self._start()
        reading = asyncio.create_task(self._read_log(child))
        ended = asyncio.create_task(child.wait())
        asked = asyncio.create_task(self._stop.wait())
        try:
            healthy_since = await self._wait_for_health(child, ended, asked)
            if healthy_since is not None:
                await asyncio.wait({ended, asked}, return_when=asyncio.FIRST_COMPLETED)
            if not ended.done():
                await self._end(child, ended)
                self._tell("stopped", "as asked", code=child.returncode)
                return None
            await _happens(reading, 1.0)
            self._tell("exited", f"by itself, with {_spoken(child.returncode)}", code=child.returncode)
            if healthy_since is None and is_first:
                raise LaunchError(
                    f"the engine ended with {_spoken(child.returncode)} before it was ready; its last lines:\n"
                    f"{self._last_lines()}"
                )
            return healthy_since if healthy_since is not None else monotonic()
        finally:
            if not ended.done():
                await self._end(child, ended)
            _signal_group(child.pid, signal.SIGKILL)  # what the child has left behind
            await _happens(reading, 1.0)
            for task in (reading, ended, asked):
                task.cancel()

    async def _start(self) -> asyncio.subprocess.Process:
        try:
            child = await asyncio.create_subprocess_exec(
                *self.launch.command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                env={**os.environ, **self.launch.environment},
                limit=1 << 20,
                start_new_session=True,  # engines start processes of their own, which have to end with them
            )
        except OSError as error:
            raise LaunchError(
                f"{self.launch.command[0]} cannot be started ({error.strerror or error}); is it installed, and on the "
                "PATH?"
            ) from error
        self._tell("started", " ".join(self.launch.command), pid=child.pid)
        return child

    async def _read_log(self, child: asyncio.subprocess.Process) -> None:
        assert child.stdout is not None
        while True:
            try:
                line = await child.stdout.readline()
            except ValueError:  # a line longer than the limit; what was read of it is gone
                continue
            if not line:
                return
            text = line.decode(errors="replace").rstrip()
            self._tail.append(text)
            self._tell("log", text)

    async def _wait_for_health(
        self, child: asyncio.subprocess.Process, ended: asyncio.Task[int], asked: asyncio.Task[bool]
    ) -> float | None:
        """Return when the child became healthy; None if it ended or was asked to stop before."""
        started = monotonic()
        address = self.launch.url.rstrip("/") + self.launch.health_path
        async with httpx.AsyncClient(timeout=5.0, transport=self._transport) as client:
            while monotonic() - started < self.launch.ready_timeout_s:
                await asyncio.wait({ended, asked}, timeout=_POLL_S, return_when=asyncio.FIRST_COMPLETED)
                if ended.done() or asked.done():
                    return None
                try:
                    response = await client.get(address)
                except httpx.TransportError:
                    continue
                if response.is_success and child.returncode is None:
                    seconds = monotonic() - started
                    self._tell("ready", f"at {self.launch.url} after {seconds:.1f} s", seconds_to_ready=seconds)
                    return monotonic()
        raise LaunchError(
            f"{address} did not answer within {self.launch.ready_timeout_s:g} s; the last lines of the engine:\n"
            f"{self._last_lines()}"
        )

    async def _end(self, child: asyncio.subprocess.Process, ended: asyncio.Task[int]) -> None:
        """Ask the child and all that it started to end; kill what is left after a while."""
        self._tell("stopping", f"asking, and killing after {self.launch.stop_timeout_s:g} s")
        _signal_group(child.pid, signal.SIGTERM)
        if not await _happens(ended, self.launch.stop_timeout_s):
            _signal_group(child.pid, signal.SIGKILL)
            await ended

    def _last_lines(self) -> str:
        return "\n".join(f"  {line}" for line in self._tail) or "  (it wrote none)"

    def _tell(self, name: EventName, text: str, **details: Any) -> None:
        self._events.put_nowait(Event(name=name, seconds=monotonic() - self._begun, text=text, details=details))


async def _happens(what: Awaitable[Any], within_s: float) -> bool:
    """Return whether something is done within some seconds; it goes on if not."""
    task = asyncio.ensure_future(what)
    done, _ = await asyncio.wait({task}, timeout=within_s)
    return bool(done)


def _signal_group(pid: int, number: signal.Signals) -> None:
    """Send a signal to a process and those that it started."""
    if sys.platform == "win32":
        raise ConfigError("engines are supervised on Linux and macOS; start them by hand here")
    try:
        os.killpg(pid, number)
    except ProcessLookupError:
        pass  # all of them have ended
    except PermissionError:
        pass  # macOS says so of a group that has ended


def _spoken(code: int | None) -> str:
    """Return an exit status in words."""
    if code is not None and code < 0:
        return f"signal {signal.Signals(-code).name}"
    return f"exit code {code}"


def stop_on_signals(stop: Callable[[], None]) -> Callable[[], int | None]:
    """Have SIGINT and SIGTERM call `stop`; return what tells which of them came, if one did."""
    loop = asyncio.get_running_loop()
    came: list[int] = []

    def on_signal(number: signal.Signals) -> None:
        came.append(number)
        stop()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal, number)
    return lambda: came[0] if came else None
