"""What the n-gram drafters share: traits, the cut to what was asked for, and a bounded walk over new tokens.

Each keeps an index of the committed tokens that only grows: a round costs as much as it committed tokens,
whatever the length of the text. Keys are the n-grams themselves, so nothing can collide.

A copy of an earlier place tells how sure it is: the longer the text before that place agrees with the end of the text,
the likelier it goes on to agree.

Letters in comments: n the length of an n-gram, m the longest draft.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from blockdraft.drafters.base import Ask, Drafter, DrafterTraits, Proposal
from blockdraft.drafters.config import NgramLookup, NgramMod

Ngram = tuple[int, ...]

LONGEST_MATCH = 64
"""Tokens that a match is looked at for; what agrees for longer is as sure."""

DOUBT, DOUBT_OFFSET = 1.2, 0.3
"""Behind a match of n tokens the next one differs with a chance of DOUBT / (n + DOUBT_OFFSET). Measured on greedy
answers by `benchmarks/match_length.py`, see docs/lab/LOG.md."""


@dataclass(frozen=True, slots=True)
class Draft:
    """Tokens, and the position where they were copied from, if from one place."""

    token_ids: Sequence[int] = ()
    start: int | None = None


class NgramDrafter(Drafter):
    """Base of the family: deterministic, without a network, without need of hidden states."""

    copies: ClassVar[bool]
    """Whether a draft is the text behind one earlier place, so that the match tells how sure it is."""

    def __init__(self, name: str, config: NgramLookup | NgramMod, max_draft_tokens: int) -> None:
        self._settings = asdict(config)
        self._traits = DrafterTraits(
            name=name,
            max_draft_tokens=max_draft_tokens,
            is_deterministic=True,
            has_confidence=self.copies,
            is_instant=self.copies,
        )

    @property
    def traits(self) -> DrafterTraits:
        return self._traits

    def describe(self) -> dict[str, object]:
        return {"name": self._traits.name, **self._settings}

    def propose(self, asks: Sequence[Ask]) -> list[Proposal]:
        return [self._propose_one(ask) for ask in asks]

    def _propose_one(self, ask: Ask) -> Proposal:
        # The drafter's own minimum length is judged before the cut to the room that is left, as in llama.cpp.
        draft = self.look_up(ask.state, ask.token_ids)
        if not draft.token_ids:
            return Proposal()
        draft_ids = tuple(draft.token_ids[: ask.num_draft_tokens])
        confidence = None
        if draft.start is not None:
            matched = match_length(ask.token_ids, draft.start)
            confidence = tuple(sureness(matched + slot) for slot in range(len(draft_ids)))
        return Proposal(draft_ids=draft_ids, confidence=confidence, drafter=self._traits.name)

    @abstractmethod
    def look_up(self, state: Any, token_ids: Sequence[int]) -> Draft:
        """Index the tokens that are new to `state` and return the draft after the last of `token_ids`."""


def match_length(token_ids: Sequence[int], end: int) -> int:
    """Return how many tokens before position `end` are those at the end of the text, LONGEST_MATCH at most."""
    for length in range(min(end, LONGEST_MATCH)):
        if token_ids[end - 1 - length] != token_ids[-1 - length]:
            return length
    return min(end, LONGEST_MATCH)


def sureness(matched: int) -> float:
    """Return the chance that the token behind a match is kept."""
    return 1 - DOUBT / (max(matched, 1) + DOUBT_OFFSET)


class NgramWalk:
    """Hands out every n-gram of a growing text once."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._next_start = 0

    def new_ngrams(self, token_ids: Sequence[int], end: int) -> Iterator[tuple[int, Ngram]]:
        """Yield (start, n-gram) of those that end at or before position `end` and were not handed out yet."""
        first, stop = self._next_start, end - self.size + 1
        if stop <= first:
            return
        self._next_start = stop
        tokens = tuple(token_ids[first:end])
        for offset in range(stop - first):
            yield first + offset, tokens[offset : offset + self.size]


def newest_ngram(token_ids: Sequence[int], size: int) -> Ngram | None:
    """Return the last `size` tokens, or None if there are fewer."""
    return tuple(token_ids[-size:]) if len(token_ids) >= size else None
