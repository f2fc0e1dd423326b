"""What there is to say about a command line besides what it means."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["outdated", "unknown", "converted", "no-equivalent", "by-hand", "restored", "note"]


@dataclass(frozen=True, kw_only=True)
class Note:
    """One remark about one flag, key or variable."""

    kind: Kind
    subject: str
    """The flag, key or variable, as it was written."""
    text: str
    """What became of it, and why."""

    def __str__(self) -> str:
        return f"{self.subject}: {self.text}"
