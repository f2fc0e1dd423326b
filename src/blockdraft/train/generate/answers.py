"""Conversations that were made elsewhere, taken over as they are.

A row of such a JSON Lines file (plain or .gz) has `prompt` and `answer`, or `messages` that end with an answer
(a data folder's own rows are such); and, if it likes, `id`, `finish`, `temperature`, `completion_tokens`,
`source` and `category`. Whether the target really gave these answers is the caller's word.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from blockdraft.errors import DataError
from blockdraft.models.tokenizer import Tokenizer
from blockdraft.train.conversations import Conversation
from blockdraft.train.generate.prompts import read_rows


def read_answers(path: Path, tokenizer: Tokenizer, *, thinking: bool | None) -> Iterator[Conversation]:
    """Yield the conversations of a file.

    Raises:
        DataError: there is no such file, or a row holds no answered prompt.
    """
    for number, row in read_rows(path):
        try:
            messages = tuple(
                {"role": str(message["role"]), "content": _text(message["content"])}
                for message in row.get("messages") or _messages(row)
            )
            answers = [message["content"] for message in messages if message["role"] == "assistant"]
            if messages[-1]["role"] != "assistant" or row.get("finish", "stop") not in ("stop", "length"):
                raise TypeError("no answer at the end")
        except (KeyError, TypeError, IndexError, AttributeError) as error:
            raise DataError(
                f"row {number} of {path} is no answered prompt: it needs `prompt` and `answer`, or `messages` that end "
                f'with an answer; `finish` is "stop" or "length"'
            ) from error
        is_stopped = row.get("finish", "stop") == "stop"
        num_tokens = row.get("completion_tokens", row.get("num_completion_tokens"))
        if num_tokens is None:
            encoded = [tokenizer.encode(answer, add_special_tokens=False) for answer in answers]
            num_tokens = sum(map(len, encoded)) + len(encoded) - (not is_stopped)
        yield Conversation(
            id=str(row.get("id", f"{path.name}:{number}")),
            messages=messages,
            temperature=float(row.get("temperature", 0.0)),
            finish="stop" if is_stopped else "length",
            num_completion_tokens=int(num_tokens),
            thinking=thinking,
            source=str(row.get("source", "")),
            category=str(row.get("category", "")),
        )


def _messages(row: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"role": "user", "content": row["prompt"]}, {"role": "assistant", "content": row["answer"]}]


def _text(content: object) -> str:
    if not isinstance(content, str):
        raise TypeError("no text")
    return content
