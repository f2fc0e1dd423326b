"""Three verdicts, and how those of several checks become one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Verdict = Literal["pass", "fail", "inconclusive"]

EXIT_CODES: dict[Verdict, int] = {"pass": 0, "fail": 1, "inconclusive": 3}
"""What a command ends with; 2 is taken by a wrong command line."""


@dataclass(frozen=True)
class Check:
    """One thing that was looked at."""

    name: str
    verdict: Verdict
    reason: str

    def to_dict(self) -> dict[str, str]:
        """Return the check as plain data."""
        return {"name": self.name, "verdict": self.verdict, "reason": self.reason}


def overall(checks: Iterable[Check]) -> Verdict:
    """Return `fail` if one check failed, else `inconclusive` if one has no result, else `pass`."""
    verdicts = {check.verdict for check in checks}
    return "fail" if "fail" in verdicts else "inconclusive" if "inconclusive" in verdicts else "pass"
