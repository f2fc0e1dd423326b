"""The processor's name and how busy it is, for those who must not wait for torch."""

from __future__ import annotations

import os
import platform
from pathlib import Path

BUSY_LOAD = 0.5
"""More running processes than this on average, and timings are noisy."""


def load_average() -> float | None:
    """Return how many processes ran on average in the last minute; None where that is not told."""
    try:
        return round(os.getloadavg()[0], 2)
    except (OSError, AttributeError):
        return None


def cpu_name() -> str:
    """Return the name that the maker gave to the processor."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or "unknown"
