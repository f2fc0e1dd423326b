"""What an export says when it is done."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from blockdraft.train.export.layout import StoredType
from blockdraft.train.export.verify import Comparison


@dataclass(frozen=True, kw_only=True)
class ExportReport:
    """Where the drafter is now, and how its drafts compare with those of the drafter it was written from."""

    layout: str
    source: Path
    path: Path
    """What to name as the drafter: the folder, or the GGUF file in it."""
    stored_type: StoredType
    num_bytes: int
    comparison: Comparison
    """With the drafter as it was given: rounding or quantisation may change a draft token."""
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, object]:
        """Return everything as plain data."""
        return {
            "layout": self.layout,
            "source": str(self.source),
            "path": str(self.path),
            "stored_type": self.stored_type,
            "num_bytes": self.num_bytes,
            "comparison": self.comparison.to_dict(),
            "notes": list(self.notes),
        }
