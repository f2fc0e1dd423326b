"""What a run keeps: every request with every time, every pass, and what is needed to repeat it. JSON and back."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from blockdraft.bench.speed.drafts import DraftCounts
from blockdraft.bench.speed.workload import Cell
from blockdraft.errors import ConfigError, nearest_name

SCHEMA = "blockdraft-bench/1"
"""Its number rises when the meaning of a field changes or one goes."""

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

    def __post_init__(self) -> None:
        lengths = {len(of) for of in (self.chunk_s, self.chunk_characters, self.chunk_tokens) if of is not None}
        if len(lengths) > 1:
            raise ValueError("every piece has a time, characters and, if they are told, tokens")

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


def drafting_of(side: SideInfo) -> str | None:
    """Return in words what drafts on a side, as far as it told; None if it did not, or does not draft."""
    spec, drafter = side.details.get("spec") or {}, side.details.get("drafter")
    server = side.details.get("server") or {}
    kinds = [one for one in spec.get("types", ()) if one != "none"] if drafter else [server.get("method")]
    parts = [", then ".join(filter(None, kinds)) or None]
    if drafter:
        most, model = drafter.get("max_draft_tokens"), spec.get("draft_model")
        parts += [f"from {model}" if model else None, f"up to {most} tokens" if most else None]
        parts += [f"{spec['policy']} policy" if spec.get("policy") else None]
    return ", ".join(filter(None, parts)) or None


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
    if data["schema"] != SCHEMA:
        raise ConfigError(f"{path} has another schema than {SCHEMA}; measure again with this version of blockdraft")
    return _build(data, path)


def _build(data: dict[str, Any], path: Path) -> Run:
    from pydantic import TypeAdapter, ValidationError  # noqa: PLC0415 - only what was kept needs it

    try:
        # What JSON cannot tell apart, like lists and tuples, is allowed; a text in the place of a number is not.
        run = TypeAdapter(Run).validate_json(json.dumps(data), strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        message = first["msg"].removeprefix("Value error, ")
        message = f"{message[:1].lower()}{message[1:]}; faults in all: {error.error_count()}"
        raise ConfigError(f"the run {path} is damaged at {place}: {message}") from error
    if unknown := _unknown(data, json.loads(json.dumps(run.to_dict()))):
        raise ConfigError(f"the run {path} has a field that no run has: {unknown}")
    return run


def _unknown(given: Any, known: Any, place: str = "") -> str | None:
    """Return the place of a field in `given` that `known` lacks, with the nearest name; None if there is none."""
    if isinstance(given, list):
        pairs = [(f"{place}.{index}", one, other) for index, (one, other) in enumerate(zip(given, known, strict=True))]
    elif isinstance(given, dict) and isinstance(known, dict):
        for name in given.keys() - known.keys():
            return f"{place}.{name}".lstrip(".") + nearest_name(name, known)
        pairs = [(f"{place}.{name}", value, known[name]) for name, value in given.items()]
    else:
        return None
    return next((found for where, one, other in pairs if (found := _unknown(one, other, where))), None)
