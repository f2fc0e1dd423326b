"""How much energy the machine took, where it reports it: RAPL counters of processors, nvidia-smi for cards.

Both are of the whole machine. Processors count joules since start-up; cards tell their power, which is read twice a
second and summed over time.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from threading import Event, Thread
from time import perf_counter
from typing import Protocol

RAPL = Path("/sys/class/powercap")
_MICRO = 1e-6
_EVERY_S = 0.5
_QUERY = ("nvidia-smi", "--query-gpu=power.draw", "--format=csv,noheader,nounits")


class Meter(Protocol):
    """Measures between `start` and `stop`."""

    source: str

    def start(self) -> None: ...

    def stop(self) -> float | None:
        """Return joules since `start`; None if the machine stopped reporting them."""


@dataclass(frozen=True)
class _Counter:
    path: Path
    range_j: float
    """Where it starts again at 0."""

    def read_j(self) -> float:
        return int(self.path.read_text(encoding="ascii")) * _MICRO


class RaplMeter:
    """The energy counters of all processor packages."""

    def __init__(self, counters: list[_Counter]) -> None:
        self._counters = counters
        self._before: list[float] = []
        self.source = f"RAPL, {len(counters)} processor package{'s' if len(counters) > 1 else ''}"

    def start(self) -> None:
        self._before = [counter.read_j() for counter in self._counters]

    def stop(self) -> float | None:
        try:
            now = [counter.read_j() for counter in self._counters]
        except (OSError, ValueError):
            return None
        spent = [
            later - before if later >= before else later - before + counter.range_j
            for counter, before, later in zip(self._counters, self._before, now, strict=True)
        ]
        return sum(spent)


class PowerMeter:
    """Power that is read again and again by a thread, summed over time by trapezes."""

    def __init__(self, read_watts: Callable[[], float | None], source: str, every_s: float = _EVERY_S) -> None:
        self._read_watts, self._every_s, self.source = read_watts, every_s, source
        self._stopped = Event()
        self._thread: Thread | None = None
        self._readings: list[tuple[float, float]] = []

    def start(self) -> None:
        self._readings, self._stopped = [], Event()
        self._take()
        self._thread = Thread(target=self._watch, daemon=True)
        self._thread.start()

    def stop(self) -> float | None:
        self._stopped.set()
        if self._thread:
            self._thread.join()
        self._take()
        return joules(self._readings) if len(self._readings) > 1 else None

    def _watch(self) -> None:
        while not self._stopped.wait(self._every_s):
            self._take()

    def _take(self) -> None:
        watts = self._read_watts()
        if watts is not None:
            self._readings.append((perf_counter(), watts))


def joules(readings: list[tuple[float, float]]) -> float:
    """Return the energy of (seconds, watts) readings."""
    pairs = pairwise(readings)
    return sum((later - earlier) * (low + high) / 2 for (earlier, low), (later, high) in pairs)


def find_meter(rapl: Path = RAPL) -> Meter | None:
    """Return what this machine reports; cards before processors. None if it reports nothing, or not to this user."""
    if read_card_watts() is not None:
        return PowerMeter(read_card_watts, "nvidia-smi power.draw, all cards")
    counters = _packages(rapl)
    return RaplMeter(counters) if counters else None


def read_card_watts() -> float | None:
    """Return the power of all cards together; None without nvidia-smi."""
    if not shutil.which(_QUERY[0]):
        return None
    try:
        found = subprocess.run(_QUERY, capture_output=True, text=True, timeout=10, check=True)
        return sum(float(line) for line in found.stdout.split())
    except (OSError, subprocess.SubprocessError, ValueError):
        return None


def _packages(folder: Path) -> list[_Counter]:
    """Return the counters of packages; those of cores, memory and so on lie inside or beside them."""
    found = []
    for zone in sorted(folder.glob("*-rapl:*")):
        try:
            if (zone / "name").read_text(encoding="ascii").startswith("package"):
                limit = int((zone / "max_energy_range_uj").read_text(encoding="ascii")) * _MICRO
                counter = _Counter(zone / "energy_uj", limit)
                counter.read_j()
                found.append(counter)
        except (OSError, ValueError):
            continue
    return found
