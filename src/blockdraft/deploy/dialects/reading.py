"""What came of reading a command."""

from __future__ import annotations

from dataclasses import dataclass

from blockdraft.deploy.deployment import Deployment
from blockdraft.deploy.dialects.notes import Note


@dataclass(frozen=True, kw_only=True)
class Reading:
    """A command's meaning, and remarks on what was outdated or unknown in it."""

    deployment: Deployment
    notes: tuple[Note, ...] = ()
