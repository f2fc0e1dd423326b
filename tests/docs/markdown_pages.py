"""The pages of the documentation, cut into what tests look at."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(?<!!)\[[^\]]+\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


@dataclass(frozen=True)
class CodeBlock:
    """A fenced block of a page."""

    page: Path
    line: int
    language: str
    text: str


def name_of(page: Path) -> str:
    """Return a page's path inside the repository."""
    return page.relative_to(ROOT).as_posix()


def blocks_of(page: Path, language: str) -> list[CodeBlock]:
    """Return a page's fenced blocks in a language."""
    text = page.read_text(encoding="utf-8")
    return [
        CodeBlock(page=page, line=text.count("\n", 0, match.start()) + 1, language=match[1], text=match[2])
        for match in _FENCE.finditer(text)
        if match[1] == language
    ]


def links_of(page: Path) -> list[str]:
    """Return the destinations of a page's links, code aside."""
    prose = re.sub(r"`[^`\n]*`", "", _FENCE.sub("", page.read_text(encoding="utf-8")))
    return _LINK.findall(prose)


def anchors_of(page: Path) -> set[str]:
    """Return what links into a page may end with: its headings, as GitHub writes them."""
    headings = _HEADING.findall(_FENCE.sub("", page.read_text(encoding="utf-8")))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
