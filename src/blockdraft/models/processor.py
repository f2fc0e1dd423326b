"""The name of the processor, for those who must not wait for torch."""

from __future__ import annotations

import platform
from pathlib import Path


def cpu_name() -> str:
    """Return the name that the maker gave to the processor."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or "unknown"
