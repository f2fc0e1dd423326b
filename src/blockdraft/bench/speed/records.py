"""What a run keeps: every request with every time, every pass, and what is needed to repeat it. JSON and back."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, TypeVar

from blockdraft.bench.speed.drafts import DraftCounts
from blockdraft.bench.speed.workload import Cell
from blockdraft.errors import ConfigError, nearest_name

SCHEMA = "blockdraft-bench/1"
"""Its number rises when the meaning of a field changes or one goes."""

_Kind = TypeVar("_Kind")

Role = Literal["baseline", "speculative"]
"""With and without drafts. A run of one side alone calls it "speculative", whatever it does."""


@dataclass(frozen=True, kw_only=True)
class Failure:
    """Why there is no answer, or only a part of one."""

    kind: str
    """timeout, connection, http-500, stream, empty, refused or cancelled."""
    message: str


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One request. Times are seconds since it was sent."""

    prompt_id: str
    turn: int
    """Which message of the conversation, from 0."""
    repeat: int
    started_s: float
    """Since the pass began."""
    chunk_s: tuple[float, ...] = ()
    """When each piece of the answer came; a round of drafts may give one piece or several at once."""
    chunk_tokens: tuple[int, ...] | None = None
    """Tokens in each piece; None if the server does not tell."""
    chunk_characters: tuple[int, ...] = ()
    num_tokens: int = 0
    """Of the answer, as the server counts them; the number of pieces if it does not."""
    is_counted: bool = True
    """Whether the server counted the tokens."""
    num_prompt_tokens: int | None = None
    num_cached_tokens: int | None = None
    """Tokens of the prompt that a prefix cache knew."""
    finish_reason: str | None = None
    text_sha256: str = ""
    drafts: DraftCounts | None = None
    """Of this request, where the engine tells them apart."""
    timings: dict[str, Any] | None = None
    """The engine's own figures, as it gave them."""
    failure: Failure | None = None

    @property
    def key(self) -> tuple[str, int, int]:
        """What the other side's request must agree in to be compared with this one."""
        return self.prompt_id, self.turn, self.repeat

    @property
    def ttft_s(self) -> float | None:
        """Time to the first piece of the answer."""
        return self.chunk_s[0] if self.chunk_s else None

    @property
    def e2e_s(self) -> float | None:
        """Time to the last piece of the answer."""
        return self.chunk_s[-1] if self.chunk_s else None

    @property
    def tpot_s(self) -> float | None:
        """Time per token after the first: (last - first piece) / (tokens - 1).

        Where the server tells that the first piece held several tokens, they are left out instead of one. None if the
        answer is too short to have a speed.
        """
        if self.failure or len(self.chunk_s) < 2:
            return None
        num_first = self.chunk_tokens[0] if self.chunk_tokens else 1
        spent, num_after = self.chunk_s[-1] - self.chunk_s[0], self.num_tokens - num_first
        return spent / num_after if num_after > 0 and spent > 0 else None

    @property
    def gaps_s(self) -> list[float]:
        """Seconds between neighbouring pieces."""
        return [later - earlier for earlier, later in zip(self.chunk_s, self.chunk_s[1:], strict=False)]

    def token_times(self) -> list[float]:
        """Return when each token came; where the server tells no counts, pieces share them by their characters."""
        weights = self.chunk_tokens or self.chunk_characters
        total = sum(weights)
        times: list[float] = []
        passed = 0
        for moment, weight in zip(self.chunk_s, weights, strict=True):
            passed += weight
            num_now = round(self.num_tokens * passed / total) if total else 0
            times += [moment] * (num_now - len(times))
        return times


@dataclass(frozen=True, kw_only=True)
class Pass:
    """All conversations of a cell, once, on one side."""

    cell: Cell
    role: Role
    repeat: int
    order: int
    """Which pass of the run this was, from 0."""
    wall_s: float
    samples: tuple[Sample, ...]
    drafts: DraftCounts | None = None
    energy_j: float | None = None
    """Of the whole machine's processors or cards while the pass ran; None if it does not report it."""

    @property
    def num_tokens(self) -> int:
        return sum(sample.num_tokens for sample in self.samples)

    @property
    def tokens_per_second(self) -> float:
        """Of all conversations together, prefills included."""
        return self.num_tokens / self.wall_s if self.wall_s > 0 else 0.0


@dataclass(frozen=True, kw_only=True)
class SideInfo:
    """What was measured."""

    role: Role
    where: str
    """A URL, or "native"."""
    engine: str | None = None
    """Name and version of the engine, if it told."""
    model: str | None = None
    details: dict[str, Any] = field(default_factory=dict)
    """Settings that are known: the speculation of the own engine, extra fields of requests."""

    @property
    def model_name(self) -> str:
        """The model for readers: of a path, its last part."""
        name = self.model or "unknown model"
        return name.rpartition("/")[2] if name.startswith("/") else name


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run, complete or cut short."""

    date: str
    command: tuple[str, ...]
    versions: dict[str, str]
    machine: dict[str, Any]
    """The machine that measured; that of a remote server is unknown."""
    settings: dict[str, Any]
    sides: tuple[SideInfo, ...]
    passes: tuple[Pass, ...]
    is_complete: bool
    energy_source: str | None = None
    load_before: float | None = None
    """Processes that ran on average in the minute before, on the machine that measured."""

    @property
    def has_baseline(self) -> bool:
        return any(side.role == "baseline" for side in self.sides)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain data."""
        return {"schema": SCHEMA, **asdict(self)}


def write_run(run: Run, path: Path) -> None:
    """Write a run; a reader finds the whole file or the one before.

    Raises:
        ConfigError: it cannot be written.
    """
    partial = path.with_name(path.name + ".partial")
    try:
        partial.write_text(json.dumps(run.to_dict(), ensure_ascii=False), encoding="utf-8")
        partial.replace(path)
    except OSError as error:
        raise ConfigError(f"the result {path} cannot be written: {error}") from error


def read_run(path: Path) -> Run:
    """Read what `write_run` wrote.

    Raises:
        ConfigError: it cannot be read, or is not a run of this schema.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"the run {path} cannot be read: {error}") from error
    if not isinstance(data, dict) or "schema" not in data:
        raise ConfigError(f"{path} is not a run: it has no `schema`; give what `blockdraft bench --out` wrote")
    if data.pop("schema") != SCHEMA:
        raise ConfigError(f"{path} has another schema than {SCHEMA}; measure again with this version of blockdraft")
    try:
        passes = [_pass(entry) for entry in data.pop("passes")]
        sides = tuple(_build(SideInfo, side) for side in data.pop("sides"))
        return _build(Run, {**data, "command": tuple(data["command"]), "sides": sides, "passes": tuple(passes)})
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"the run {path} is damaged: {error}") from error


def _pass(entry: dict[str, Any]) -> Pass:
    samples = tuple(_sample(one) for one in entry["samples"])
    return _build(
        Pass, {**entry, "cell": _build(Cell, entry["cell"]), "samples": samples, "drafts": _drafts(entry["drafts"])}
    )


def _sample(entry: dict[str, Any]) -> Sample:
    return _build(
        Sample,
        {
            **entry,
            "chunk_s": tuple(entry["chunk_s"]),
            "chunk_tokens": _tuple(entry["chunk_tokens"]),
            "chunk_characters": tuple(entry["chunk_characters"]),
            "drafts": _drafts(entry["drafts"]),
            "failure": _build(Failure, entry["failure"]) if entry["failure"] else None,
        },
    )


def _drafts(entry: dict[str, Any] | None) -> DraftCounts | None:
    if entry is None:
        return None
    slots = {name: tuple(entry[name]) for name in ("accepted_at", "reached_at")}
    return _build(DraftCounts, {**entry, **slots})


def _tuple(values: Sequence[int] | None) -> tuple[int, ...] | None:
    return None if values is None else tuple(values)


def _build(kind: type[_Kind], values: dict[str, Any]) -> _Kind:
    known = {item.name for item in fields(kind)}  # type: ignore[arg-type]
    for name in values.keys() - known:
        raise ValueError(f"{kind.__name__} has no field {name!r}{nearest_name(name, known)}")
    return kind(**values)
