"""What differs between two runs: the rigs and settings first, then the figures of every cell that both have.

Speeds of two rigs are set side by side and not judged. Ratios to an own baseline can be compared across rigs; two of
them differ clearly if their intervals do not touch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from blockdraft.bench.speed.records import Role, Run
from blockdraft.bench.speed.summary import CellFigures, SideFigures, summarise
from blockdraft.bench.speed.workload import Cell


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One thing that the runs do not have in common."""

    name: str
    before: Any
    after: Any

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class Change:
    """One figure of one cell in both runs."""

    cell: Cell
    figure: str
    before: float
    after: float
    is_clear: bool | None = None
    """For ratios: whether the intervals do not touch. None for speeds, of which nothing is claimed."""

    @property
    def factor(self) -> float | None:
        """After by before."""
        return self.after / self.before if self.before else None

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "factor": self.factor}


@dataclass(frozen=True, kw_only=True)
class Difference:
    """What two runs do not have in common."""

    settings: tuple[Setting, ...]
    changes: tuple[Change, ...]
    only_before: tuple[Cell, ...]
    only_after: tuple[Cell, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain data."""
        return {
            "settings": [one.to_dict() for one in self.settings],
            "changes": [one.to_dict() for one in self.changes],
            "only_before": [cell.to_dict() for cell in self.only_before],
            "only_after": [cell.to_dict() for cell in self.only_after],
        }


def compare_runs(before: Run, after: Run) -> Difference:
    """Compare two runs cell by cell."""
    left = {one.cell: one for one in summarise(before).cells}
    right = {one.cell: one for one in summarise(after).cells}
    return Difference(
        settings=tuple(_settings(_described(before), _described(after))),
        changes=tuple(change for cell in left if cell in right for change in _changes(left[cell], right[cell])),
        only_before=tuple(cell for cell in left if cell not in right),
        only_after=tuple(cell for cell in right if cell not in left),
    )


def _described(run: Run) -> dict[str, Any]:
    sides = {
        side.role: {"engine": side.engine, "model": side.model, **side.details, "where": side.where}
        for side in run.sides
    }
    return {"machine": run.machine, "versions": run.versions, "settings": run.settings, "sides": sides}


def _settings(before: Any, after: Any, name: str = "") -> Iterator[Setting]:
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for key in dict.fromkeys([*before, *after]):
            yield from _settings(before.get(key), after.get(key), f"{name}.{key}" if name else str(key))
    elif before != after:
        yield Setting(name=name, before=before, after=after)


def _changes(before: CellFigures, after: CellFigures) -> Iterator[Change]:
    for name in ("decode_ratio", "request_ratio", "throughput_ratio"):
        left, right = getattr(before, name), getattr(after, name)
        if left and right:
            yield Change(
                cell=before.cell,
                figure=name,
                before=left.value,
                after=right.value,
                is_clear=left.is_apart_from(right),
            )
    roles: tuple[Role, ...] = ("baseline", "speculative")
    for role in roles:
        if role in before.sides and role in after.sides:
            for name, value in _figures(before.sides[role]).items():
                other = _figures(after.sides[role])[name]
                if value is not None and other is not None:
                    yield Change(cell=before.cell, figure=f"{role}: {name}", before=value, after=other)


def _figures(side: SideFigures) -> dict[str, float | None]:
    drafts = side.drafts
    return {
        "tok/s": side.request_tokens_per_second.median if side.request_tokens_per_second else None,
        "tok/s in all": side.total_tokens_per_second.median if side.total_tokens_per_second else None,
        "first token, ms": side.ttft_ms.median if side.ttft_ms else None,
        "acceptance length": side.mean_acceptance_length,
        "acceptance rate": drafts.acceptance_rate if drafts else None,
        "joules per token": side.joules_per_token,
    }
