"""Preflight rules: what goes wrong with a deployment before it is launched.

`RULES` is the table; `examine` applies it and also says which rules could not be applied; `check` returns the findings.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from blockdraft.deploy.deployment import Deployment
from blockdraft.deploy.hardware import Hardware
from blockdraft.deploy.model_facts import DraftFacts, TargetFacts
from blockdraft.deploy.rules import (
    backends,
    budgets,
    caches,
    correctness,
    llama,
    naming,
    quantised,
    shapes,
    workload,
)
from blockdraft.deploy.rules.rule import SEVERITIES, Finding, NotChecked, Rule, Severity, apply
from blockdraft.deploy.rules.situation import Situation, Workload
from blockdraft.deploy.versions import EngineVersion, known_version

__all__ = ["RULES", "SEVERITIES", "Examination", "Finding", "Rule", "Situation", "Workload", "check", "examine"]

RULES: tuple[Rule, ...] = (
    *naming.RULES,
    *shapes.RULES,
    *backends.RULES,
    *budgets.RULES,
    *caches.RULES,
    *quantised.RULES,
    *correctness.RULES,
    *workload.RULES,
    *llama.RULES,
)


@dataclass(frozen=True, kw_only=True)
class Examination:
    """What was found, the worst first, and what could not be looked at."""

    findings: tuple[Finding, ...]
    not_checked: tuple[NotChecked, ...]

    def of(self, severity: Severity) -> tuple[Finding, ...]:
        """Return the findings of one severity."""
        return tuple(finding for finding in self.findings if finding.severity == severity)

    @property
    def missing(self) -> dict[str, int]:
        """What was not known, with the number of rules that asked for it; the most wanted first."""
        return dict(Counter(each.missing for each in self.not_checked).most_common())


def examine(situation: Situation) -> Examination:
    """Apply all rules of the engine and its version."""
    results = [apply(rule, situation) for rule in RULES]
    findings = [result for result in results if isinstance(result, Finding)]
    return Examination(
        findings=tuple(sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity))),
        not_checked=tuple(result for result in results if isinstance(result, NotChecked)),
    )


def check(
    deployment: Deployment,
    facts: tuple[TargetFacts | None, DraftFacts | None],
    hardware: Hardware | None,
    *,
    version: EngineVersion | None = None,
    words: tuple[str, ...] = (),
    workload: Workload | None = None,
) -> list[Finding]:
    """Return what is wrong with a deployment, the worst first.

    `facts` are those of target and drafter, None for what is unknown; `words` the command as it was written. Without a
    version, that of the deployment counts, else the newest that the rules know.
    """
    target, draft = facts
    known = version or known_version(deployment.engine, deployment.engine_version, look=False)
    situation = Situation(
        deployment=deployment,
        version=known,
        target_facts=target,
        draft_facts=draft,
        hardware=hardware,
        words=words,
        workload=workload or Workload(),
    )
    return list(examine(situation).findings)
