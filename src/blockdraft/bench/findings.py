"""What a doctor says: findings with a severity, a reason, a fix, and where it was read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Literal

Severity = Literal["error", "warning", "note"]

_ORDER: tuple[Severity, ...] = ("error", "warning", "note")


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that is wrong, suspicious, or worth knowing."""

    severity: Severity
    """An error breaks drafting or makes it useless; a warning costs acceptance or speed; a note is to be known."""
    name: str
    """Short and stable, for programs: `never-drafts`."""
    what: str
    reason: str
    """Why it matters."""
    fix: str
    source: str
    """Where it was read: a key, a tensor, a counter."""

    def to_dict(self) -> dict[str, str]:
        """Return the finding as plain data."""
        return asdict(self)


def by_severity(findings: Iterable[Finding]) -> list[Finding]:
    """Return findings with the worst first, else in their order."""
    return sorted(findings, key=lambda finding: _ORDER.index(finding.severity))


def has_errors(findings: Iterable[Finding]) -> bool:
    """True if one of the findings is an error."""
    return any(finding.severity == "error" for finding in findings)
