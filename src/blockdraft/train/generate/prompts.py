"""What is asked: prompts from files, without those that say the same twice.

A prompt file holds JSON Lines, plain or .gz. A row has one of
    turns       list of user messages; each is asked after the answer to the one before
    prompt      one user message
    messages    {"role", "content"}: an optional system message and the user's; answers in it are left out
and, if it likes, `id`, `source` and `category`. A row without an id gets one from its file and line.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from blockdraft.errors import DataError
from blockdraft.train.conversations import PromptFile

_NO_WORD = re.compile(r"[\W_]+")


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """User messages that the target is to answer in turn; without any, it writes the first one itself."""

    id: str
    turns: tuple[str, ...]
    system: str | None = None
    source: str = ""
    category: str = ""


def read_prompts(path: Path) -> Iterator[Prompt]:
    """Yield the prompts of a file.

    Raises:
        DataError: there is no such file, or a row holds no prompt.
    """
    for number, row in read_rows(path):
        try:
            yield _prompt_of(row, default_id=f"{path.name}:{number}")
        except (KeyError, TypeError, AttributeError) as error:
            raise DataError(
                f"row {number} of {path} is no prompt: it needs `turns` (texts), `prompt` (a text) or `messages` "
                f"(role and content of each)"
            ) from error


def _prompt_of(row: dict[str, Any], default_id: str) -> Prompt:
    system = None
    if "turns" in row:
        turns = row["turns"]
    elif "prompt" in row:
        turns = [row["prompt"]]
    else:
        turns = [message["content"] for message in row["messages"] if message["role"] == "user"]
        system = next((message["content"] for message in row["messages"] if message["role"] == "system"), None)
    if not turns or not all(isinstance(turn, str) and turn.strip() for turn in turns):
        raise TypeError("no text")
    return Prompt(
        id=str(row.get("id", default_id)),
        turns=tuple(turns),
        system=system,
        source=str(row.get("source", "")),
        category=str(row.get("category", "")),
    )


def read_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the objects of a JSON Lines file, plain or .gz, with their line numbers.

    Raises:
        DataError: there is no such file, or a line is no JSON object.
    """
    try:
        with _open(path) as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield number, _parse_row(line, path, number)
    except (OSError, EOFError) as error:
        raise DataError(f"{path} cannot be read: {error}") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is no text in UTF-8 ({error.reason})") from error


def _parse_row(line: str, path: Path, number: int) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise DataError(f"line {number} of {path} is no JSON: {error}") from error
    if not isinstance(row, dict):
        raise DataError(f"line {number} of {path} is no JSON object")
    return row


def _open(path: Path) -> IO[str]:
    return gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8")


def without_repeats(prompts: Iterable[Prompt]) -> Iterator[Prompt]:
    """Leave out prompts that another one before equals but for case, spaces and punctuation."""
    seen: set[bytes] = set()
    for prompt in prompts:
        key = text_key(prompt.turns)
        if key not in seen:
            seen.add(key)
            yield prompt


def text_key(turns: Iterable[str]) -> bytes:
    """Return what is equal for turns that differ in case, spaces and punctuation only."""
    words = [_NO_WORD.sub(" ", turn.lower()).strip() for turn in turns]
    if not all(words):  # nothing but punctuation, which then has to tell them apart
        words = list(turns)
    return hashlib.blake2b("\n".join(words).encode(), digest_size=16).digest()


def describe_file(path: Path) -> PromptFile:
    """Return name and checksum of a file, for the manifest.

    Raises:
        DataError: it cannot be read.
    """
    try:
        with path.open("rb") as file:
            return PromptFile(name=path.name, sha256=hashlib.file_digest(file, "sha256").hexdigest())
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error
