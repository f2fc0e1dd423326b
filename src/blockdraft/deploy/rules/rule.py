"""A preflight rule: what is looked for, in which versions, what happens, why, what to do, and who says so."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from blockdraft.deploy.deployment import Deployment, EngineName
from blockdraft.deploy.rules.situation import NotKnownError, Situation

Severity = Literal["error", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")
"""The worst first."""


@dataclass(frozen=True, kw_only=True)
class Releases:
    """Releases of one engine: from `since` on, before `before`; None for no bound."""

    engine: EngineName
    since: str | None = None
    before: str | None = None

    def describe(self) -> str:
        """Return the range for people."""
        name = {"vllm": "vLLM", "sglang": "SGLang", "llamacpp": "llama.cpp"}[self.engine]
        if self.since and self.before:
            return f"{name} {self.since} to before {self.before}"
        return f"{name} " + (f"{self.since} on" if self.since else f"before {self.before}" if self.before else "any")


def vllm(since: str | None = None, before: str | None = None) -> Releases:
    """Return a range of vLLM's releases."""
    return Releases(engine="vllm", since=since, before=before)


def sglang(since: str | None = None, before: str | None = None) -> Releases:
    """Return a range of SGLang's releases."""
    return Releases(engine="sglang", since=since, before=before)


def llamacpp(since: str | None = None, before: str | None = None) -> Releases:
    """Return a range of llama.cpp's builds."""
    return Releases(engine="llamacpp", since=since, before=before)


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One rule. `when` returns what was seen if it applies, else None or False."""

    id: str
    releases: tuple[Releases, ...]
    severity: Severity
    flag: str
    """The setting to change, in the engine's word."""
    effect: str
    """What happens."""
    fix: str
    source: str
    """An issue, or `read in VERSION`."""
    when: Callable[[Situation], str | bool | None]
    repair: Callable[[Situation], Deployment] | None = None
    """Returns the deployment with the fault mended, where that can be done without a choice."""
    topic: str
    is_reported: bool = False
    """True if only a thread says so and nobody here read the code."""

    @property
    def versions(self) -> str:
        return "; ".join(each.describe() for each in self.releases)


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A rule that applies."""

    rule: str
    severity: Severity
    topic: str
    flag: str
    seen: str
    """What of this deployment made it apply; empty where the effect says it."""
    effect: str
    fix: str
    source: str
    is_reported: bool
    repaired: Deployment | None = None


@dataclass(frozen=True, kw_only=True)
class NotChecked:
    """A rule that could not be applied, and what was missing."""

    rule: str
    missing: str


def apply(rule: Rule, situation: Situation) -> Finding | NotChecked | None:
    """Return a finding, what is missing to tell, or None."""
    if not any(situation.is_between(each.engine, each.since, each.before) for each in rule.releases):
        return None
    try:
        seen = rule.when(situation)
    except NotKnownError as missing:
        return NotChecked(rule=rule.id, missing=missing.what)
    if not seen:
        return None
    return Finding(
        rule=rule.id,
        severity=rule.severity,
        topic=rule.topic,
        flag=rule.flag,
        seen=seen if isinstance(seen, str) else "",
        effect=rule.effect,
        fix=rule.fix,
        source=rule.source,
        is_reported=rule.is_reported,
        repaired=rule.repair(situation) if rule.repair else None,
    )
