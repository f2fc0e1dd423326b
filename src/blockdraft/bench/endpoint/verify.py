"""The lossless gate for a server: greedy identity and a test of samples, each against a baseline that is tested first.

The baseline is another server of the same target without drafts, or the server itself where it cannot draft: in answers
of one token. What the gate cannot decide it calls inconclusive, with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from blockdraft.bench.endpoint.answers import Context
from blockdraft.bench.endpoint.counters import DraftCounters, counted_between
from blockdraft.bench.endpoint.greedy import NEAR_TIE, GreedyReport, check_forced, check_free
from blockdraft.bench.endpoint.reference import Reference
from blockdraft.bench.endpoint.samples import SamplingPlan
from blockdraft.bench.endpoint.sampling import SamplingReport, check_sampling
from blockdraft.bench.endpoint.served_model import ServedModel
from blockdraft.bench.endpoint.two_samples import TwoSampleReport, check_two_samples
from blockdraft.bench.endpoint.verdict import Check, Verdict, overall
from blockdraft.errors import ConfigError

_OWN_BASELINE = "the server itself, one token at a time, which no engine drafts"


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
    if baseline is None and not model.can_be_forced:
        return _nothing_to_compare_with(model, settings)
    other = baseline or model
    if not (model.can_be_forced and other.can_be_forced):  # what both are asked must be the same
        model, other = [one if not one.can_be_forced else await one.chatting() for one in (model, other)]
    is_forced = model.can_be_forced and model.shows_same_tokens_as(other)
    contexts = await model.contexts_of(prompts) if is_forced else dict(prompts)
    before = await model.read_counters()
    notify("greedy answers")
    if is_forced:
        greedy = await check_forced(
            model, Reference(other), contexts, max_tokens=settings.max_tokens, near_tie=settings.near_tie
        )
    else:
        greedy = await check_free(model, other, contexts, max_tokens=settings.max_tokens, near_tie=settings.near_tie)
    sampling = await _check_samples(model, other, contexts, settings, notify, is_forced=is_forced)
    told = [answer.counters for answer in greedy.answers.values()]
    counters = counted_between(before, await model.read_counters(), told)
    checks = [greedy.check(), *([sampling.check()] if sampling else [])]
    checks += _check_drafts(counters, model.engine.speculates)
    notes = []
    if model.can_be_forced and contexts == dict(prompts):
        notes.append("prompts were continued as they are, as the server does not show its chat template")
    if counters is None and model.engine.speculates is not False:
        notes.append("the server does not tell how much it drafts: if it never does, there was nothing to verify")
    return VerifyReport(
        endpoint=_described(model),
        baseline=f"{baseline.engine.model}, another server" if baseline else _OWN_BASELINE,
        checks=tuple(checks),
        greedy=greedy,
        sampling=sampling,
        counters=counters,
        notes=tuple(notes),
    )


async def _check_samples(
    model: ServedModel,
    baseline: ServedModel,
    contexts: Mapping[str, Context],
    settings: VerifySettings,
    notify: Callable[[str], None],
    *,
    is_forced: bool,
) -> SamplingReport | TwoSampleReport | None:
    """Draw samples of the shortest prompts, and test them against the baseline's probabilities or its own samples."""
    plan = settings.sampling
    if plan is None:
        return None
    shortest = sorted(contexts, key=lambda name: len(contexts[name]))[: settings.num_sampled_prompts]
    sampled = {name: contexts[name] for name in shortest}
    if is_forced and baseline.num_top:
        reference = Reference(baseline)
        return await check_sampling(model, reference, sampled, plan, near_tie=settings.near_tie, notify=notify)
    return await check_two_samples(model, baseline, sampled, plan, notify)


def _described(model: ServedModel) -> dict[str, Any]:
    return model.engine.to_dict() | {"asked_through": model.dialect.name, "num_top": model.num_top}


def _nothing_to_compare_with(model: ServedModel, settings: VerifySettings) -> VerifyReport:
    reason = (
        "there is nothing to compare with: this server only chats, so its target cannot be asked what follows a text; "
        "name a server of the same target without drafts with --baseline"
    )
    names = ("greedy", "sampling") if settings.sampling else ("greedy",)
    return VerifyReport(
        endpoint=_described(model),
        baseline="none",
        checks=tuple(Check(name, "inconclusive", reason) for name in names),
        greedy=None,
        sampling=None,
        counters=None,
    )


def _check_drafts(counters: DraftCounters | None, speculates: bool | None) -> list[Check]:
    if counters is None and speculates is False:
        reason = "the server says that it does not draft: whether it would be lossless if it did was not tested"
        return [Check("drafts", "inconclusive", reason)]
    if counters is None:
        return []
    if not (counters.num_drafted or counters.num_rounds):
        reason = "the server never drafted during the checks: whether it is lossless when it drafts was not tested"
        return [Check("drafts", "inconclusive", reason)]
    if counters.num_accepted == 0:
        return [Check("drafts", "inconclusive", "no draft was accepted during the checks, so none of them was tested")]
    figures = {
        "tokens drafted": counters.num_drafted,
        "accepted": counters.num_accepted,
        "rounds": counters.num_rounds,
    }
    told = ", ".join(f"{figure} {name}" for name, figure in figures.items() if figure is not None)
    return [Check("drafts", "pass", f"{told} ({counters.source})")]
