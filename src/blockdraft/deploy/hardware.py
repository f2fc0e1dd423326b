"""What an engine runs on: devices, their memory and what they can compute; profiles, own files, or this machine.

`profile("rtx3090")`, `profile("h100x8")`: NAME or NAMExN, from `hardware.toml`. `from_file`: the same keys for one
device in a TOML or JSON file, and `num_devices`. `detect()` asks nvidia-smi, rocm-smi and /proc.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, get_args

from blockdraft.errors import ConfigError, nearest_name

Vendor = Literal["nvidia", "amd", "intel", "cpu"]

GIB = 1 << 30
MAX_DEVICES = 64
_TIMEOUT_S = 3.0
_COUNTED = re.compile(r"(?P<name>.+?)x(?P<count>\d+)")


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """Devices of one kind, all alike."""

    name: str
    title: str
    vendor: Vendor
    memory_bytes: int
    """Of one device; of the whole machine where the memory is shared with the processor."""
    bandwidth_gb_s: float | None = None
    """Of one device's memory, in 10^9 bytes a second."""
    compute_capability: tuple[int, int] | None = None
    """NVIDIA only: (8, 6) is sm_86."""
    gfx: str | None = None
    """AMD only."""
    num_devices: int = 1
    devices_per_node: int = 8
    unified_memory: bool = False
    link: str = "unknown"
    origin: str = "profile"
    """profile, detected, or the file that it was read from."""

    @property
    def num_nodes(self) -> int:
        return -(-self.num_devices // self.devices_per_node)

    @property
    def accelerator(self) -> str:
        """The kind of device in one word, as engines name it: sm_86, gfx1151, SYCL, cpu."""
        if self.compute_capability:
            return "sm_{}{}".format(*self.compute_capability)
        return self.gfx or {"intel": "SYCL", "cpu": "cpu"}.get(self.vendor, self.vendor)

    def describe(self) -> str:
        """Return one line for people."""
        count = f"{self.num_devices} x " if self.num_devices > 1 else ""
        shared = ", shared with the processor" if self.unified_memory and self.vendor != "cpu" else ""
        speed = f", {self.bandwidth_gb_s:.0f} GB/s" if self.bandwidth_gb_s else ""
        return f"{count}{self.title} ({self.accelerator}), {self.memory_bytes / GIB:.0f} GiB{shared}{speed}"


_KEYS: Mapping[str, type | tuple[type, ...]] = {
    "title": str,
    "vendor": str,
    "memory_gib": (int, float),
    "bandwidth_gb_s": (int, float),
    "compute_capability": str,
    "gfx": str,
    "num_devices": int,
    "devices_per_node": int,
    "unified_memory": bool,
    "link": str,
}


@lru_cache(maxsize=1)
def _table() -> dict[str, dict[str, Any]]:
    return tomllib.loads(Path(__file__).with_name("hardware.toml").read_text(encoding="utf-8"))


def profile_names() -> tuple[str, ...]:
    """Return the names that `profile` knows, each for one device."""
    return tuple(_table())


def profile(name: str) -> Hardware:
    """Return the hardware called NAME or NAMExN.

    Raises:
        ConfigError: there is no such profile, or N is no sensible number.
    """
    known = _table()
    counted = None if name in known else _COUNTED.fullmatch(name)
    base, count = (counted["name"], int(counted["count"])) if counted else (name, 1)
    if base not in known:
        near = nearest_name(base, known) or nearest_name(name, known)
        raise ConfigError(
            f"there is no hardware profile {name!r}{near}; known are {', '.join(known)}, each also as NAMExN for N "
            "devices, auto for this machine, or a TOML or JSON file that describes one device"
        )
    if not 1 <= count <= MAX_DEVICES:
        raise ConfigError(f"{name!r} asks for {count} devices; 1 to {MAX_DEVICES} can be planned for")
    return replace(_read(known[base], base, f"profile {base}"), num_devices=count, name=name, origin="profile")


def from_file(path: Path) -> Hardware:
    """Return the hardware that a TOML or JSON file describes, in the keys of `hardware.toml` and `num_devices`.

    Raises:
        ConfigError: the file cannot be read, lacks a key or has one that means nothing.
    """
    try:
        text = path.read_text(encoding="utf-8")
        data = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read as a description of hardware: {error}") from error
    if not isinstance(data, dict):
        raise ConfigError(f"{path} must hold one table of keys: {', '.join(_KEYS)}")
    return replace(_read(data, path.stem, str(path)), origin=str(path))


def _read(data: Mapping[str, Any], name: str, where: str) -> Hardware:
    for key, value in data.items():
        if key not in _KEYS:
            raise ConfigError(f"{where}: {key!r} means nothing{nearest_name(key, _KEYS)}; keys are {', '.join(_KEYS)}")
        if not isinstance(value, _KEYS[key]) or (isinstance(value, bool) and _KEYS[key] is not bool):
            raise ConfigError(f"{where}: {key} is {value!r}, which is not of the right kind")
    if missing := {"vendor", "memory_gib"} - data.keys():
        raise ConfigError(f"{where} does not say {', '.join(sorted(missing))}")
    if data["vendor"] not in get_args(Vendor):
        raise ConfigError(f"{where}: vendor is {data['vendor']!r}; it is one of {', '.join(get_args(Vendor))}")
    capability = data.get("compute_capability")
    if capability is not None and not re.fullmatch(r"\d+\.\d+", capability):
        raise ConfigError(f'{where}: compute_capability is {capability!r}; write it like "8.6"')
    others = ("bandwidth_gb_s", "gfx", "num_devices", "devices_per_node", "unified_memory", "link")
    return Hardware(
        name=name,
        title=data.get("title", name),
        vendor=data["vendor"],
        memory_bytes=int(data["memory_gib"] * GIB),
        compute_capability=_capability(capability) if capability else None,
        **{key: data[key] for key in others if key in data},
    )


def _capability(text: str) -> tuple[int, int]:
    major, minor = text.strip().split(".")
    return int(major), int(minor)


Ask = Callable[[list[str]], str | None]


def detect(ask: Ask | None = None, meminfo: Path = Path("/proc/meminfo")) -> Hardware:
    """Return the hardware of this machine; `ask` runs a program and returns what it prints, or None.

    Raises:
        ConfigError: neither an accelerator nor the size of the memory could be found out.
    """
    run = ask or _run
    return _nvidia(run, meminfo) or _amd(run, meminfo) or _processor(meminfo)


def _run(command: list[str]) -> str | None:
    if shutil.which(command[0]) is None:
        return None
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout


def _nvidia(ask: Ask, meminfo: Path) -> Hardware | None:
    printed = ask(["nvidia-smi", "--query-gpu=name,memory.total,compute_cap", "--format=csv,noheader,nounits"])
    rows = [[cell.strip() for cell in line.split(",")] for line in (printed or "").splitlines() if line.count(",") == 2]
    rows = [row for row in rows if re.fullmatch(r"\d+\.\d+", row[2])]
    if not rows:
        return None
    name, megabytes, capability = rows[0]
    unified = not megabytes.isdigit()  # a GB10 prints "[N/A]": it has no memory of its own
    num_alike = sum(row == rows[0] for row in rows)
    known = next((entry for entry in _table().values() if _same_device(entry["title"], name)), {})
    return Hardware(
        name="auto",
        title=f"NVIDIA {name.removeprefix('NVIDIA ')}",
        vendor="nvidia",
        memory_bytes=_system_memory(meminfo) if unified else int(megabytes) << 20,
        bandwidth_gb_s=known.get("bandwidth_gb_s"),
        compute_capability=_capability(capability),
        num_devices=num_alike,
        devices_per_node=1 if unified else max(8, num_alike),
        unified_memory=unified,
        link=known.get("link", "unknown"),
        origin="detected" + (f"; {len(rows) - num_alike} unlike devices left out" if num_alike < len(rows) else ""),
    )


def _same_device(title: str, name: str) -> bool:
    """True if a profile's title names the device: `GeForce RTX 3090` does, `GeForce RTX 3090 Ti` is another."""
    strip = re.compile(r"NVIDIA|GeForce|\(.*\)|\d+ ?GB|SXM\d?|HBM\d\w?|\s|-")
    return strip.sub("", title).lower() == strip.sub("", name).lower()


def _amd(ask: Ask, meminfo: Path) -> Hardware | None:
    printed = ask(["rocm-smi", "--showproductname", "--showmeminfo", "vram", "--json"])
    try:
        cards = [card for key, card in json.loads(printed or "{}").items() if key.startswith("card")]
    except ValueError:
        return None
    if not cards:
        return None
    gfx = str(cards[0].get("GFX Version") or "unknown")
    known = next((entry for entry in _table().values() if entry.get("gfx") == gfx), {})
    unified = bool(known.get("unified_memory", False))
    memory = int(cards[0].get("VRAM Total Memory (B)") or 0)
    return Hardware(
        name="auto",
        title=str(cards[0].get("Card Series") or known.get("title") or "AMD GPU"),
        vendor="amd",
        memory_bytes=_system_memory(meminfo) if unified or not memory else memory,
        bandwidth_gb_s=known.get("bandwidth_gb_s"),
        gfx=gfx,
        num_devices=len(cards),
        devices_per_node=max(8, len(cards)),
        unified_memory=unified,
        link=known.get("link", "unknown"),
        origin="detected",
    )


def _processor(meminfo: Path) -> Hardware:
    return Hardware(
        name="auto",
        title="this computer's processor",
        vendor="cpu",
        memory_bytes=_system_memory(meminfo),
        unified_memory=True,
        devices_per_node=1,
        link="none",
        origin="detected",
    )


def _system_memory(meminfo: Path) -> int:
    """Return the bytes of main memory."""
    try:
        total = re.search(r"^MemTotal:\s+(\d+) kB", meminfo.read_text(encoding="utf-8"), re.MULTILINE)
    except OSError:
        total = None
    if total is None:
        raise ConfigError(f"{meminfo} does not say how much memory there is; name a profile or write a hardware file")
    return int(total[1]) << 10


def resolve_hardware(text: str) -> Hardware:
    """Return the hardware of `auto`, of a file, or of a profile's name.

    Raises:
        ConfigError: it is none of these.
    """
    if text == "auto":
        return detect()
    path = Path(text).expanduser()
    if path.suffix in (".toml", ".json") or path.is_file():
        return from_file(path)
    return profile(text)
