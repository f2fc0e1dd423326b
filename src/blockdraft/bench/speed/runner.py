"""Runs every cell on both sides, in turns, and keeps what is there if it is stopped."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter
from typing import Any

from blockdraft.bench.speed.energy import Meter
from blockdraft.bench.speed.records import Pass, Role, Run, Sample, write_run
from blockdraft.bench.speed.rig import describe_rig, versions
from blockdraft.bench.speed.side import AnswerSettings, Side
from blockdraft.bench.speed.workload import Cell, fill_places, with_prefix
from blockdraft.engine.workloads import Workload
from blockdraft.errors import ConfigError
from blockdraft.models.processor import load_average

Notify = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is measured, and how often.

    Raises:
        ConfigError: there is nothing to measure, or a number makes no sense.
    """

    prompts: Mapping[str, Sequence[Workload]]
    """By category."""
    depths: tuple[int, ...] = (0,)
    concurrencies: tuple[int, ...] = (1,)
    repeats: int = 3
    seed: int = 0
    marked: bool = True
    """Whether each repeat of a prompt carries a mark, so that no prefix cache knows it."""

    def __post_init__(self) -> None:
        if not any(self.prompts.values()):
            raise ConfigError("there are no prompts to measure with")
        if min(self.depths) < 0 or min(self.concurrencies) < 1 or self.repeats < 1:
            raise ConfigError("depths must not be negative; concurrency and repeats must be at least 1")

    @property
    def cells(self) -> list[Cell]:
        """Return all conditions: shallow and few at once first."""
        return [
            Cell(category=category, depth=depth, concurrency=concurrency)
            for depth in sorted(set(self.depths))
            for concurrency in sorted(set(self.concurrencies))
            for category in self.prompts
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as plain data; prompts by their ids."""
        return {
            "prompts": {category: [one.id for one in chosen] for category, chosen in self.prompts.items()},
            "depths": list(self.depths),
            "concurrencies": list(self.concurrencies),
            "repeats": self.repeats,
            "seed": self.seed,
            "marked": self.marked,
        }


class SpeedRun:
    """A run that grows pass by pass."""

    def __init__(
        self,
        plan: Plan,
        sides: Sequence[Side],
        settings: AnswerSettings,
        *,
        command: Sequence[str] = (),
        meter: Meter | None = None,
        out: Path | None = None,
        notify: Notify = lambda _: None,
    ) -> None:
        """`sides` are the one in question and the baseline, if there is one.

        The run is written to `out` after every pass; `notify` is told before each which one it is.
        """
        self._plan, self._sides, self._settings = plan, sides, settings
        self._command, self._meter, self._out, self._notify = tuple(command), meter, out, notify
        self._passes: list[Pass] = []
        self._date = datetime.now(UTC).isoformat(timespec="seconds")
        self._machine = describe_rig()
        self._load = load_average()
        self._words_per_token = 0.0

    def run(self) -> Run:
        """Measure everything; on Ctrl-C return what is there, marked as incomplete.

        Raises:
            BlockdraftError: a side does not answer at all.
        """
        try:
            self._prepare()
            for cell in self._plan.cells:
                for repeat in range(self._plan.repeats):
                    for side in self._order(cell, repeat):
                        self._measure(cell, side, repeat)
        except KeyboardInterrupt:
            return self._keep(is_complete=False)
        return self._keep(is_complete=True)

    def _prepare(self) -> None:
        for side in self._sides:
            self._notify(f"warm-up: {side.info.role}")
            side.warm_up(max(self._plan.concurrencies))
        if any(self._plan.depths):
            self._words_per_token = self._sides[0].words_per_token()
            self._sides[0].take_drafts()  # what was asked to measure the filler is no part of the run

    def _order(self, cell: Cell, repeat: int) -> Sequence[Side]:
        """Return who goes first: it alternates from repeat to repeat, and cells begin in turns."""
        if len(self._sides) == 1:
            return self._sides
        speculative, baseline = self._sides
        is_even = (self._plan.cells.index(cell) + repeat) % 2 == 0
        return (baseline, speculative) if is_even else (speculative, baseline)

    def _measure(self, cell: Cell, side: Side, repeat: int) -> None:
        role: Role = side.info.role
        self._notify(f"{cell}: repeat {repeat + 1} of {self._plan.repeats}, {role}")
        num_words = round(cell.depth * self._words_per_token)
        # Other cells ask the same prompts: the mark tells them apart, too.
        number = self._plan.cells.index(cell) * self._plan.repeats + repeat
        conversations = [
            with_prefix(one, num_words, number, self._plan.seed, marked=self._plan.marked)
            for one in fill_places(self._plan.prompts[cell.category], cell.concurrency)
        ]
        samples: list[Sample] = []
        if self._meter:
            self._meter.start()
        began = perf_counter()
        try:
            side.serve(conversations, repeat=repeat, concurrency=cell.concurrency, emit=samples.append)
        finally:
            wall_s = perf_counter() - began
            energy_j = self._meter.stop() if self._meter else None
            self._passes.append(
                Pass(
                    cell=cell,
                    role=role,
                    repeat=repeat,
                    order=len(self._passes),
                    wall_s=wall_s,
                    samples=tuple(samples),
                    drafts=side.take_drafts(),
                    energy_j=energy_j,
                )
            )
            self._keep(is_complete=False)

    def _keep(self, *, is_complete: bool) -> Run:
        run = Run(
            date=self._date,
            command=self._command,
            versions=versions(),
            machine=self._machine,
            settings={
                "plan": self._plan.to_dict(),
                "answers": self._settings.to_dict(),
                "words_per_filler_token": self._words_per_token or None,
            },
            sides=tuple(side.info for side in self._sides),
            passes=tuple(self._passes),
            is_complete=is_complete,
            energy_source=self._meter.source if self._meter else None,
            load_before=self._load,
        )
        if self._out:
            write_run(run, self._out)
        return run
