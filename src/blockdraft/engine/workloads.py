"""Prompts that stand for a kind of work: the package's own small set, or any JSON Lines file of the same form.

A line is an object with `id`, `category` and `turns`, the list of a user's messages; other keys are left alone.
Whoever measures on prompts reads them here: benchmarks, and a trainer that looks at its drafter on held-out ones.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

from blockdraft.errors import ConfigError

_OWN_SET = "prompts.jsonl"


@dataclass(frozen=True, kw_only=True)
class Workload:
    """One prompt, or the user's side of one conversation."""

    id: str
    category: str
    turns: tuple[str, ...]
    """The user's messages in order; the model answers each before the next."""


def read_workloads(path: Path | None = None) -> list[Workload]:
    """Read a prompt file; the package's own set if there is none.

    Raises:
        ConfigError: the file cannot be read, or a line is not a prompt.
    """
    file = resources.files(__package__).joinpath(_OWN_SET) if path is None else path
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the prompt file {file} cannot be read ({error}); give a JSON Lines file") from error
    workloads = [_parse(line, f"{file}, line {number}") for number, line in enumerate(lines, 1) if line.strip()]
    if not workloads:
        raise ConfigError(f"the prompt file {file} holds no prompts")
    return workloads


def pick(workloads: Sequence[Workload], count: int) -> list[Workload]:
    """Return the first `count` prompts, taking the categories in turn so that each is there."""
    by_category: dict[str, list[Workload]] = {}
    for workload in workloads:
        by_category.setdefault(workload.category, []).append(workload)
    in_turn = chain.from_iterable(zip_longest(*by_category.values()))
    return [workload for workload in in_turn if workload is not None][:count]


def _parse(line: str, where: str) -> Workload:
    try:
        entry: Any = json.loads(line)
        identity, category, turns = entry["id"], entry["category"], entry["turns"]
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{where}: a prompt is a JSON object with `id`, `category` and `turns` ({error})") from error
    if not isinstance(turns, list) or not turns or not all(isinstance(turn, str) and turn.strip() for turn in turns):
        raise ConfigError(f"{where}: `turns` must be a list of messages, none of them empty")
    return Workload(id=str(identity), category=str(category), turns=tuple(turns))
