"""What is asked of a server and what came back, in no engine's words.

A context is what an answer continues: token ids where the server takes and tells them, else a text. An answer's tokens
are told apart by their ids, or by their texts where a server shows nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from blockdraft.bench.endpoint.counters import DraftCounters

Context = tuple[int, ...] | str
"""What an answer continues."""


@dataclass(frozen=True, kw_only=True)
class Seen:
    """A token as a server shows it."""

    text: str
    token_id: int | None = None
    logprob: float | None = None
    """In nat, before truncation; None if it is not told."""

    @property
    def key(self) -> int | str:
        """Equal for equal tokens of one model."""
        return self.text if self.token_id is None else self.token_id


@dataclass(frozen=True, kw_only=True)
class Position:
    """A token of an answer, with what else was likely there."""

    token: Seen
    top: tuple[Seen, ...] = ()
    """The most likely tokens, best first; empty if the server does not tell."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """One answer of a server."""

    text: str
    positions: tuple[Position, ...]
    """Its tokens, without one that ended it and is not shown; empty if the server shows none."""
    finish: str
    """`length`, `stop`, or what else the server calls it."""
    num_tokens: int | None
    """How many tokens the server counted."""
    num_prompt_tokens: int | None = None
    num_cached_tokens: int | None = None
    """Of the prompt, how many the server did not compute anew; None if it does not tell."""
    counters: DraftCounters | None = None
    """What the answer says about its own drafts."""

    @property
    def tokens(self) -> tuple[Seen, ...]:
        return tuple(position.token for position in self.positions)

    @property
    def keys(self) -> tuple[int | str, ...]:
        """What two answers are compared by: their tokens, or their characters if none are shown."""
        return tuple(token.key for token in self.tokens) if self.positions else tuple(self.text)


@dataclass(frozen=True, kw_only=True)
class Ask:
    """A request: continue a context, or answer a message."""

    context: Context | None = None
    message: str | None = None
    """What a user says, for servers that only chat."""
    max_tokens: int
    temperature: float = 0.0
    seed: int | None = None
    num_top: int = 0
    """How many likely tokens to show at each position; 0 for none."""
    is_fresh: bool = False
    """Compute the context anew, where a server can be told to."""


def extended(context: Context, tokens: Sequence[Seen]) -> Context:
    """Return a context with the beginning of an answer after it."""
    if isinstance(context, str):
        return context + "".join(token.text for token in tokens)
    return (*context, *(token.token_id for token in tokens if token.token_id is not None))


def legacy_positions(logprobs: Mapping[str, Any], token_ids: Sequence[int]) -> tuple[Position, ...]:
    """Read the `logprobs` of /v1/completions: lists of tokens and log-probabilities, and a table for each position."""
    texts = logprobs.get("tokens") or []
    own = logprobs.get("token_logprobs") or [None] * len(texts)
    tables = logprobs.get("top_logprobs") or [None] * len(texts)
    ids: Sequence[int | None] = token_ids if len(token_ids) == len(texts) else [id_in(text) for text in texts]
    return tuple(
        Position(
            token=Seen(text=text, token_id=token_id, logprob=logprob),
            top=best_first(Seen(text=key, token_id=id_in(key), logprob=value) for key, value in (table or {}).items()),
        )
        for text, token_id, logprob, table in zip(texts, ids, own, tables, strict=True)
    )


def content_positions(content: Iterable[Mapping[str, Any]]) -> tuple[Position, ...]:
    """Read the `logprobs.content` of /v1/chat/completions, which llama.cpp uses everywhere and adds ids to."""
    return tuple(
        Position(token=_seen(entry), top=best_first(map(_seen, entry.get("top_logprobs") or ()))) for entry in content
    )


def best_first(tokens: Iterable[Seen]) -> tuple[Seen, ...]:
    """Return tokens in falling order of their log-probabilities."""
    return tuple(sorted(tokens, key=lambda token: -(token.logprob if token.logprob is not None else -math.inf)))


def id_in(text: str) -> int | None:
    """Return 5 for "token_id:5", vLLM's way to show a token without decoding it; None for any other text."""
    head, _, number = text.partition(":")
    return int(number) if head == "token_id" and number.isdigit() else None


def _seen(entry: Mapping[str, Any]) -> Seen:
    return Seen(text=entry.get("token", ""), token_id=entry.get("id"), logprob=entry.get("logprob"))
