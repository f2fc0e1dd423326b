"""The machine that measures, by its kind and not by its name, and the versions at work."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

from blockdraft import __version__
from blockdraft.models.processor import cpu_name

_CARDS = ("nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader,nounits")
_PACKAGES = ("torch", "numpy", "httpx")


def describe_rig() -> dict[str, Any]:
    """Return what the operating system tells about the machine."""
    return {
        "cpu": cpu_name(),
        "num_cores": os.cpu_count() or 1,
        "ram_gb": _ram_gb(),
        "gpus": _cards(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
    }


def versions() -> dict[str, str]:
    """Return the versions of blockdraft, Python and what measures or computes."""
    found = {"blockdraft": __version__, "python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _ram_gb() -> float | None:
    info = Path("/proc/meminfo")
    if not info.exists():
        return None
    lines = info.read_text(encoding="ascii").splitlines()
    kilobytes = next((line.split()[1] for line in lines if line.startswith("MemTotal")), 0)
    return round(int(kilobytes) / 2**20, 1)


def _cards() -> list[dict[str, Any]]:
    if not shutil.which(_CARDS[0]):
        return []
    try:
        found = subprocess.run(_CARDS, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    rows = [[part.strip() for part in line.split(",")] for line in found.stdout.splitlines() if line.count(",") == 2]
    return [{"name": name, "vram_gb": _gigabytes(size), "driver": driver} for name, size, driver in rows]


def _gigabytes(megabytes: str) -> float | None:
    try:
        return round(float(megabytes) / 1024, 1)
    except ValueError:
        return None  # cards that share the memory of the processor
