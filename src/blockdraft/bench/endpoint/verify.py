"""The lossless gate for a server: greedy identity and a test of samples, each against a baseline that is tested first.

The baseline is another server of the same target without drafts, or the server itself where it cannot draft: in answers
of one token. What the gate cannot decide it calls inconclusive, with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from blockdraft.bench.endpoint.answers import Answer
from blockdraft.bench.endpoint.counters import DraftCounters
from blockdraft.bench.endpoint.greedy import NEAR_TIE, GreedyReport, check_forced, check_free
from blockdraft.bench.endpoint.reference import Reference
from blockdraft.bench.endpoint.sampling import SamplingPlan, SamplingReport, check_sampling
from blockdraft.bench.endpoint.served_model import ServedModel
from blockdraft.bench.endpoint.two_samples import TwoSampleReport, check_two_samples
from blockdraft.bench.endpoint.verdict import Check, Verdict, overall
from blockdraft.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class VerifySettings:
    """How much is looked at.

    Raises:
        ConfigError: a figure is out of its range.
    """

    max_tokens: int = 64
    """Of each greedy answer."""
    near_tie: float = NEAR_TIE
    num_sampled_prompts: int = 8
    sampling: SamplingPlan | None = field(default_factory=SamplingPlan)
    """None to leave samples out."""

    def __post_init__(self) -> None:
        if self.max_tokens < 2:
            raise ConfigError(f"max_tokens must be 2 or more, as nothing drafts the first token; not {self.max_tokens}")
        if self.near_tie < 0:
            raise ConfigError(f"near_tie is a distance in nat and cannot be {self.near_tie:g}")


@dataclass(frozen=True, kw_only=True)
class VerifyReport:
    """All that was looked at, and one verdict."""

    endpoint: Mapping[str, Any]
    baseline: str
    """What the answers were held against."""
    checks: tuple[Check, ...]
    greedy: GreedyReport | None
    sampling: SamplingReport | TwoSampleReport | None
    counters: DraftCounters | None
    """Of drafts during the checks; None if the server does not tell."""
    notes: tuple[str, ...] = ()

    @property
    def verdict(self) -> Verdict:
        return overall(self.checks)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain data."""
        return {
            "verdict": self.verdict,
            "checks": [check.to_dict() for check in self.checks],
            "endpoint": dict(self.endpoint),
            "baseline": self.baseline,
            "drafts": self.counters.to_dict() if self.counters else None,
            "greedy": self.greedy.to_dict() if self.greedy else None,
            "sampling": self.sampling.to_dict() if self.sampling else None,
            "notes": list(self.notes),
        }


async def verify(
    model: ServedModel,
    baseline: ServedModel | None,
    prompts: Mapping[str, str],
    settings: VerifySettings,
    notify: Callable[[str], None],
) -> VerifyReport:
    """Check a server against a baseline server, or against itself if there is none.

    `prompts` are the messages of users, by name.

    Raises:
        EndpointError: one of the servers does not answer.
    """
    other = baseline or model
    notes: list[str] = []
    contexts = {name: await model.context_of(text) for name, text in prompts.items()}
    is_forced = _can_force(model, other)
    if not is_forced and any(isinstance(context, tuple) for context in contexts.values()):
        contexts = dict(prompts)
    if model.can_be_forced and contexts == dict(prompts):
        notes.append("prompts were continued as they are, as the server does not show its chat template")
    before = await model.read_counters()
    greedy: GreedyReport | None = None
    sampling: SamplingReport | TwoSampleReport | None = None
    checks: list[Check] = []
    notify("greedy answers")
    if is_forced:
        reference = Reference(other)
        greedy = await check_forced(
            model, reference, contexts, max_tokens=settings.max_tokens, near_tie=settings.near_tie
        )
    elif baseline is not None or model.can_be_forced:
        greedy = await check_free(model, other, contexts, max_tokens=settings.max_tokens, near_tie=settings.near_tie)
    checks.append(greedy.check() if greedy else _no_baseline("greedy"))
    if settings.sampling is not None:
        shortest = sorted(contexts, key=lambda name: len(contexts[name]))[: settings.num_sampled_prompts]
        sampled = {name: contexts[name] for name in shortest}
        if is_forced and other.num_top:
            sampling = await check_sampling(
                model, Reference(other), sampled, settings.sampling, near_tie=settings.near_tie, notify=notify
            )
        elif baseline is not None or model.can_be_forced:
            sampling = await check_two_samples(model, other, sampled, settings.sampling, notify)
        checks.append(sampling.check() if sampling else _no_baseline("sampling"))
    counters = await _drafted(model, before, list(greedy.answers.values()) if greedy else [])
    checks += _check_drafts(counters, model.engine.speculates)
    if counters is None and model.engine.speculates is not False:
        notes.append("the server does not tell how much it drafts: if it never does, there was nothing to verify")
    return VerifyReport(
        endpoint=model.engine.to_dict() | {"asked_through": model.dialect.name, "num_top": model.num_top},
        baseline=baseline.engine.model + " without drafts, another server" if baseline else _own_baseline(model),
        checks=tuple(checks),
        greedy=greedy,
        sampling=sampling,
        counters=counters,
        notes=tuple(notes),
    )


def _can_force(model: ServedModel, baseline: ServedModel) -> bool:
    """True if what one server says can be put to the other token by token."""
    return (
        model.can_be_forced
        and baseline.can_be_forced
        and model.shows_tokens
        and baseline.shows_tokens
        and model.dialect.takes_ids == baseline.dialect.takes_ids
    )


def _own_baseline(model: ServedModel) -> str:
    if not model.can_be_forced:
        return "none"
    return "the server itself, one token at a time, which no engine drafts"


def _no_baseline(name: str) -> Check:
    return Check(
        name,
        "inconclusive",
        "there is nothing to compare with: this server only chats, so its target cannot be asked what follows a text; "
        "name a server of the same target without drafts with --baseline",
    )


async def _drafted(model: ServedModel, before: DraftCounters | None, answers: Sequence[Answer]) -> DraftCounters | None:
    """Return what was drafted meanwhile: from the server's counters, else from what the answers say."""
    after = await model.read_counters()
    if before is not None and after is not None:
        return after - before
    found = [answer.counters for answer in answers if answer.counters]
    return sum(found[1:], start=found[0]) if found else None


def _check_drafts(counters: DraftCounters | None, speculates: bool | None) -> list[Check]:
    if counters is None and speculates is False:
        reason = "the server says that it does not draft: whether it would be lossless if it did was not tested"
        return [Check("drafts", "inconclusive", reason)]
    if counters is None:
        return []
    if not (counters.num_drafted or counters.num_rounds):
        reason = "the server never drafted during the checks: whether it is lossless when it drafts was not tested"
        return [Check("drafts", "inconclusive", reason)]
    figures = [f"{counters.num_drafted} tokens drafted, {counters.num_accepted} accepted"]
    figures += [f"{counters.num_rounds} rounds"] if counters.num_rounds else []
    return [Check("drafts", "pass", ", ".join(figures) + f" ({counters.source})")]
