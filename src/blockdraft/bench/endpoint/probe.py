"""Finds out whether a running server really speculates, and where it quietly stops.

Everything is measured with the server's own counters: by how long an answer is, by how deep its context is, before and
after a prompt is in the prefix cache. Requests go one after another, so that what is counted in between belongs to one
of them; other traffic on the server would be counted too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from blockdraft.bench.endpoint.answers import Answer, Context
from blockdraft.bench.endpoint.counters import DraftCounters, counted_between, total_of_counters
from blockdraft.bench.endpoint.diagnosis import diagnose
from blockdraft.bench.endpoint.engines import ServedEngine
from blockdraft.bench.endpoint.served_model import ServedModel
from blockdraft.bench.findings import Finding
from blockdraft.errors import ConfigError, EndpointRefusedError

PROMPTS = {
    "story": "Write a long story, of two thousand words at least, about a lighthouse keeper who finds a locked chest.",
    "manual": "Write a complete manual for keeping bees: every season, every tool, every mistake, all in detail.",
    "code": "Write a Python module with a binary search tree: insert, delete, find, iterate, and tests of each.",
    "history": "Tell the history of writing from clay tablets to printing, century by century, as fully as you can.",
}
"""What takes a long answer."""

_CHARACTERS_PER_TOKEN = 4
_ROOM = 256
"""Tokens of the context that a deep prompt leaves for its question and its answer."""


@dataclass(frozen=True, kw_only=True)
class ProbeSettings:
    """What is measured, and what is expected of it.

    Raises:
        ConfigError: lengths do not rise, or an expectation cannot be.
    """

    lengths: tuple[int, ...] = (100, 200, 400)
    """Tokens of answers to the same prompt; acceptance between two of them is the difference."""
    depths: tuple[int, ...] = (1000, 3000)
    """About so many tokens of prompt; those that the context does not hold are left out."""
    expected_length: float | None = None
    """Mean acceptance length that the drafter's card promises, the target's own token included."""

    def __post_init__(self) -> None:
        if not self.lengths or list(self.lengths) != sorted(set(self.lengths)) or self.lengths[0] < 8:
            raise ConfigError(f"lengths must rise and begin at 8 or more, not {list(self.lengths)}")
        if self.expected_length is not None and self.expected_length <= 1:
            raise ConfigError(f"a mean acceptance length is more than 1, not {self.expected_length:g}")


@dataclass(frozen=True, kw_only=True)
class Window:
    """Tokens of answers, or of prompts, and what was drafted for them."""

    start: int
    end: int
    counters: DraftCounters


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What the probe saw."""

    engine: ServedEngine
    total: DraftCounters | None
    """Of everything; None if the server does not tell."""
    by_length: tuple[Window, ...] = ()
    by_depth: tuple[Window, ...] = ()
    depths_left_out: tuple[int, ...] = ()
    """Those that the server's context does not hold."""
    """`end` is the depth: tokens of the prompt."""
    cold: DraftCounters | None = None
    warm: DraftCounters | None = None
    """The same prompts, when they were new and when the server had seen them."""
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    """Of a prompt that was asked a second time; None if the server does not tell."""


@dataclass(frozen=True, kw_only=True)
class ProbeReport:
    """What was measured and what it means."""

    measured: Measured
    findings: tuple[Finding, ...]
    settings: ProbeSettings = field(default_factory=ProbeSettings)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain data."""
        measured = self.measured
        return {
            "endpoint": measured.engine.to_dict(),
            "findings": [finding.to_dict() for finding in self.findings],
            "drafts": measured.total.to_dict() if measured.total else None,
            "by_answer_length": [_window(window) for window in measured.by_length],
            "by_prompt_depth": [_window(window) for window in measured.by_depth],
            "depths_left_out": list(measured.depths_left_out),
            "new_prompts": measured.cold.to_dict() if measured.cold else None,
            "known_prompts": measured.warm.to_dict() if measured.warm else None,
            "known_prompt_tokens": measured.prompt_tokens,
            "of_these_cached": measured.cached_tokens,
        }


async def probe(
    model: ServedModel, prompts: Mapping[str, str], settings: ProbeSettings, notify: Callable[[str], None]
) -> ProbeReport:
    """Ask prompts at several lengths and depths, count drafts, and say what is wrong.

    Raises:
        EndpointError: the server does not answer.
    """
    contexts = list((await model.contexts_of(prompts)).values())
    before = await model.read_counters()
    sums: dict[int, DraftCounters] = {}
    for length in settings.lengths:
        notify(f"answers of {length} tokens")
        # Shorter ones first: what a drafter learns from an answer can then only help the later part.
        _, counted = await _ask_all(model, contexts, length)
        if counted:
            sums[length] = counted
    notify("the same prompts again")
    hits = await model.read_prefix_hits()
    answers, warm = await _ask_all(model, contexts, settings.lengths[0])
    cached = [answer.num_cached_tokens for answer in answers if answer.num_cached_tokens is not None]
    hits_now = await model.read_prefix_hits()
    by_depth, left_out = await _by_depth(model, list(prompts.values()), settings, notify)
    after = await model.read_counters()
    measured = Measured(
        engine=model.engine,
        total=counted_between(before, after, [*sums.values(), warm, *(window.counters for window in by_depth)]),
        by_length=_windows(settings.lengths, sums),
        by_depth=by_depth,
        depths_left_out=left_out,
        cold=sums.get(settings.lengths[0]),
        warm=warm,
        prompt_tokens=sum(answer.num_prompt_tokens or 0 for answer in answers) or None,
        cached_tokens=sum(cached) if cached else _whole(hits, hits_now),
    )
    return ProbeReport(
        measured=measured, findings=tuple(diagnose(measured, settings.expected_length)), settings=settings
    )


async def _ask_all(
    model: ServedModel, contexts: Sequence[Context], length: int
) -> tuple[list[Answer], DraftCounters | None]:
    """Return greedy answers, asked one after another, and what was drafted for them."""
    answers: list[Answer] = []
    counts: list[DraftCounters | None] = []
    for context in contexts:
        before = await model.read_counters()
        ask = model.ask(context, max_tokens=length)
        answers.append(await model.answer(replace(ask, num_top=0)))  # drafting engines need not show more
        counts.append(counted_between(before, await model.read_counters(), [answers[-1].counters]))
    return answers, total_of_counters(counts)


async def _by_depth(
    model: ServedModel, texts: Sequence[str], settings: ProbeSettings, notify: Callable[[str], None]
) -> tuple[tuple[Window, ...], tuple[int, ...]]:
    """Return what was drafted behind deep prompts, and the depths that the context does not hold."""
    windows, left_out = [], []
    room = (model.engine.context_length or math.inf) - settings.lengths[0] - _ROOM
    for depth in settings.depths:
        if depth > room:
            left_out.append(depth)
            continue
        notify(f"prompts of about {depth} tokens")
        deep = {str(index): _deep(texts, index, depth) for index in range(len(texts))}
        contexts = list((await model.contexts_of(deep)).values())
        try:
            answers, counted = await _ask_all(model, contexts, settings.lengths[0])
        except EndpointRefusedError:  # the text has more tokens than was thought
            left_out.append(depth)
            continue
        known = [answer.num_prompt_tokens for answer in answers if answer.num_prompt_tokens]
        if counted:
            end = sum(known) // len(known) if known else depth
            windows.append(Window(start=0, end=end, counters=counted))
    return tuple(windows), tuple(left_out)


def _deep(texts: Sequence[str], index: int, depth: int) -> str:
    """Return a question behind a long, varied text, which begins otherwise for each question."""
    notes: list[str] = []
    size = 0
    while size < depth * _CHARACTERS_PER_TOKEN:
        number = len(notes)
        notes.append(f"Note {index}.{number + 1}: {texts[(index + 1 + number) % len(texts)]}")
        size += len(notes[-1])
    return "\n".join([*notes, "", f"Leave these notes aside. {texts[index]}"])


def _windows(lengths: Sequence[int], sums: Mapping[int, DraftCounters]) -> tuple[Window, ...]:
    windows = []
    previous: DraftCounters | None = None
    start = 0
    for length in lengths:
        counted = sums.get(length)
        if counted is None:
            continue
        windows.append(Window(start=start, end=length, counters=counted.beyond(previous) if previous else counted))
        start, previous = length, counted
    return tuple(windows)


def _whole(before: float | None, after: float | None) -> int | None:
    return None if before is None or after is None else int(after - before)


def _window(window: Window) -> dict[str, object]:
    return {"from": window.start, "to": window.end, **window.counters.to_dict()}
