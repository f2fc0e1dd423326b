"""A child is started, watched, restarted and ended; a script plays the engine."""

import asyncio
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from blockdraft.deploy.launch import Event, Launch, Supervisor
from blockdraft.errors import ConfigError, LaunchError

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="process groups are those of POSIX")

ENGINE = """
import http.server, os, signal, subprocess, sys, threading, time

port, *behaviours = sys.argv[1:]
print("loading", flush=True)
marks = os.environ["MARKS"]
with open(marks, "a") as file:
    file.write("life\\n")
lives = open(marks).read().count("life")
if "dies early" in behaviours:
    print("no such model", file=sys.stderr, flush=True)
    sys.exit(3)
if "deaf" in behaviours:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if "has a helper" in behaviours:
    helper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    print("helper", helper.pid, flush=True)

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path == "/crash":
            os._exit(11)
        self.send_response(503 if time.monotonic() < ready_at else 200)
        self.end_headers()

    def log_message(self, *_):
        pass

ready_at = time.monotonic() + (1e9 if "never ready" in behaviours else 0.3)
server = http.server.ThreadingHTTPServer(("127.0.0.1", int(port)), Handler)
if "crashes" in behaviours or ("crashes once" in behaviours and lives == 1):
    threading.Timer(0.9, lambda: os._exit(11)).start()
server.serve_forever()
"""


@pytest.fixture
def launch(tmp_path: Path) -> Launch:
    script = tmp_path / "engine.py"
    script.write_text(ENGINE)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    return Launch(
        command=(sys.executable, str(script), str(port)),
        url=f"http://127.0.0.1:{port}",
        environment={"MARKS": str(tmp_path / "marks")},
        ready_timeout_s=30.0,
        stop_timeout_s=5.0,
        first_pause_s=0.05,
    )


def behaving(launch: Launch, *behaviours: str, **changes: object) -> Launch:
    return replace(launch, command=(*launch.command, *behaviours), **changes)  # type: ignore[arg-type]


def watch(launch: Launch, *, stop_at: str = "ready", times: int = 1) -> list[Event]:
    """Run until an event has come so often, then ask for the end."""

    async def run() -> list[Event]:
        supervisor = Supervisor(launch)
        seen: list[Event] = []
        async for event in supervisor.events():
            seen.append(event)
            if [one.name for one in seen].count(stop_at) == times:
                supervisor.request_stop()
        return seen

    return asyncio.run(run())


def names(events: list[Event]) -> list[str]:
    return [event.name for event in events if event.name != "log"]


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z" if Path("/proc").exists() else True


def test_it_starts_becomes_ready_and_ends_when_asked(launch: Launch) -> None:
    events = watch(launch)
    assert names(events) == ["started", "ready", "stopping", "stopped"]
    assert "loading" in [event.text for event in events if event.name == "log"]
    ready = next(event for event in events if event.name == "ready")
    assert ready.details["seconds_to_ready"] >= 0.3
    assert not is_running(events[0].details["pid"])


def test_a_child_that_ends_before_it_is_ready_is_an_error_with_its_last_lines(launch: Launch) -> None:
    with pytest.raises(LaunchError, match=r"(?s)exit code 3 before it was ready.*no such model"):
        watch(behaving(launch, "dies early"))


def test_a_child_that_does_not_become_ready_is_ended(launch: Launch) -> None:
    with pytest.raises(LaunchError, match=r"did not answer within 1 s"):
        watch(behaving(launch, "never ready", ready_timeout_s=1.0))
    time.sleep(0.2)
    with pytest.raises(OSError, match=r"refused"), socket.create_connection(("127.0.0.1", int(launch.command[2]))):
        pass


def test_a_command_that_is_not_there_is_one_clear_error(launch: Launch) -> None:
    with pytest.raises(LaunchError, match=r"no-such-engine cannot be started .* is it installed"):
        watch(replace(launch, command=("no-such-engine", "serve")))


def test_after_a_crash_it_is_started_again(launch: Launch) -> None:
    events = watch(behaving(launch, "crashes once"), times=2)
    assert names(events) == ["started", "ready", "exited", "waiting", "started", "ready", "stopping", "stopped"]
    exited = next(event for event in events if event.name == "exited")
    assert exited.details["code"] == 11


def test_crashes_in_a_row_end_it(launch: Launch) -> None:
    with pytest.raises(LaunchError, match=r"crashed again after 1 restarts"):
        watch(behaving(launch, "crashes", max_restarts=1), times=9)


def test_health_that_lasted_forgives_earlier_crashes(launch: Launch) -> None:
    events = watch(behaving(launch, "crashes", max_restarts=1, stable_s=0.1), times=4)
    assert names(events).count("ready") == 4


def test_pauses_double_up_to_the_longest(launch: Launch) -> None:
    pauses = [replace(launch, first_pause_s=1.0, longest_pause_s=10.0).pause_s(number) for number in range(6)]
    assert pauses == [1, 2, 4, 8, 10, 10]


def test_a_deaf_child_is_killed(launch: Launch) -> None:
    started = time.monotonic()
    events = watch(behaving(launch, "deaf", stop_timeout_s=1.0))
    assert 1.0 <= time.monotonic() - started < 20
    assert events[-1].details["code"] == -signal.SIGKILL
    assert not is_running(events[0].details["pid"])


@pytest.mark.parametrize("end", ["asked", "left"])
def test_processes_of_the_child_end_with_it(launch: Launch, end: str) -> None:
    helper = 0

    async def run() -> None:
        nonlocal helper
        supervisor = Supervisor(behaving(launch, "has a helper"))
        events: AsyncIterator[Event] = supervisor.events()
        async for event in events:
            if event.text.startswith("helper"):
                helper = int(event.text.split()[1])
            if event.name == "ready":
                if end == "left":
                    break
                supervisor.request_stop()
        await events.aclose()  # type: ignore[attr-defined]

    asyncio.run(run())
    assert helper
    deadline = time.monotonic() + 5
    while is_running(helper) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not is_running(helper)


def test_another_server_at_the_address_is_not_taken_for_the_engine(launch: Launch) -> None:
    with socket.create_server(("127.0.0.1", int(launch.command[2]))) as other:
        other.settimeout(10)

        def answer() -> None:
            connection, _ = other.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")

        async def run() -> None:
            answering = asyncio.get_running_loop().run_in_executor(None, answer)
            try:
                async for _ in Supervisor(launch).events():
                    pass
            finally:
                await answering

        with pytest.raises(LaunchError, match=r"something answers at .* already"):
            asyncio.run(run())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"command": ()}, "no command"),
        ({"stop_timeout_s": 0.0}, "stop_timeout_s must be above 0"),
        ({"max_restarts": -1}, "max_restarts must be at least 0"),
    ],
)
def test_wrong_settings_are_refused(launch: Launch, change: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        replace(launch, **change)  # type: ignore[arg-type]
