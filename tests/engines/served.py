"""`blockdraft` as a user runs it beside an engine: commands, and an engine that `blockdraft serve` keeps running."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from queue import Empty, Queue
from time import monotonic, sleep
from typing import Any

_SENTENCE = (
    "The red door opens to the green garden, and the green gate opens to the blue lake, where the boat is tied to "
    "the old tree.\n"
)
PROMPTS = {
    "copy": "Repeat this text five times:\n" + 2 * _SENTENCE,
    "code": "Write a Python function that adds two numbers.",
}
"""The first has its answer in it twice, so that drafters which only look at what was written find something."""


def blockdraft(*arguments: str | Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    command = [sys.executable, "-m", "blockdraft", *map(str, arguments)]
    return subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, check=False)


def write_prompts(path: Path) -> Path:
    """Write a few prompts as `verify` and `bench` read them."""
    lines = [json.dumps({"id": name, "category": name, "turns": [text]}) for name, text in PROMPTS.items()]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


class Served:
    """An engine under `blockdraft serve --json`, from its start until `stop`."""

    def __init__(self, arguments: Sequence[str], *, environment: dict[str, str], log: Path, timeout_s: float) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._log = log
        self._said = log.with_suffix(".said")
        command = [sys.executable, "-m", "blockdraft", "serve", "--json", "--quiet", "--log", str(log)]
        with self._said.open("w", encoding="utf-8") as said:
            self._process = subprocess.Popen(
                [*command, "--port", str(self.port), *arguments],
                stdout=subprocess.PIPE,
                stderr=said,
                text=True,
                env=os.environ | environment | {"PYTHONUNBUFFERED": "1"},
            )
        self._lines: Queue[str | None] = Queue()
        self.events: list[dict[str, Any]] = []
        threading.Thread(target=self._read, daemon=True).start()
        try:
            self._wait_until_served(timeout_s)
        except BaseException:
            self._process.send_signal(signal.SIGTERM)
            raise

    @property
    def told(self) -> dict[str, Any]:
        """What the engine was found to be."""
        return next(event for event in self.events if event["name"] == "serving")

    @property
    def engine_pid(self) -> int:
        return int(next(event for event in self.events if event["name"] == "started")["details"]["pid"])

    def stop(self) -> tuple[int, str]:
        """End it as Ctrl-C does; return the exit code, and what was said to the user."""
        self._process.send_signal(signal.SIGINT)
        code = self._process.wait(timeout=120)
        while (line := self._lines.get(timeout=10)) is not None:
            self.events.append(json.loads(line))
        return code, self._said.read_text(encoding="utf-8")

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def _wait_until_served(self, timeout_s: float) -> None:
        deadline = monotonic() + timeout_s
        while not self.events or self.events[-1]["name"] != "serving":
            try:
                line = self._lines.get(timeout=max(0.0, deadline - monotonic()))
            except Empty:
                line = None
            if line is None:
                log = self._log.read_text(encoding="utf-8")[-3000:] if self._log.exists() else ""
                said = self._said.read_text(encoding="utf-8")[-3000:]
                raise AssertionError(f"not served within {timeout_s:g} s: {self.events}\n{said}\n{log}")
            self.events.append(json.loads(line))


def is_alive(pid: int) -> bool:
    """Return whether a process or its group is still there; one that was killed gets a moment to be gone."""
    deadline = monotonic() + 10
    while monotonic() < deadline:
        try:
            os.killpg(pid, 0)
        except ProcessLookupError:
            return False
        sleep(0.1)
    return True
