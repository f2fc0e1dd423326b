"""Prompts to measure with: the package's own small set, or any file of the same form."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from blockdraft.engine.workloads import Workload, read_workloads

_OWN_SET = "prompts.jsonl"


def load_prompts(path: Path | None = None) -> list[Workload]:
    """Read a prompt file; the package's own set if there is none.

    Raises:
        ConfigError: the file cannot be read, or a line is not a prompt.
    """
    return read_workloads(resources.files(__package__).joinpath(_OWN_SET) if path is None else path)
