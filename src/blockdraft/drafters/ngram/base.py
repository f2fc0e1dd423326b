"""What the n-gram drafters share: traits, the cut to what was asked for, and a bounded walk over new tokens.

Each keeps an index of the committed tokens that only grows: a round costs as much as it committed tokens,
whatever the length of the text. Keys are the n-grams themselves, so nothing can collide.

Letters in comments: n the length of an n-gram, m the longest draft.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from blockdraft.drafters.base import Ask, Drafter, DrafterTraits, Proposal
from blockdraft.drafters.config import NgramLookup, NgramMod

Ngram = tuple[int, ...]


class NgramDrafter(Drafter):
    """Base of the family: deterministic, without a network, without need of hidden states."""

    def __init__(self, name: str, config: NgramLookup | NgramMod, max_draft_tokens: int) -> None:
        self._settings = asdict(config)
        self._traits = DrafterTraits(name=name, max_draft_tokens=max_draft_tokens, is_deterministic=True)

    @property
    def traits(self) -> DrafterTraits:
        return self._traits

    def describe(self) -> dict[str, object]:
        return {"name": self._traits.name, **self._settings}

    def propose(self, asks: Sequence[Ask]) -> list[Proposal]:
        return [self._propose_one(ask) for ask in asks]

    def _propose_one(self, ask: Ask) -> Proposal:
        # The drafter's own minimum length is judged before the cut to the room that is left, as in llama.cpp.
        draft = self._draft(ask.state, ask.token_ids)[: ask.num_draft_tokens]
        return Proposal(draft_ids=tuple(draft), drafter=self._traits.name) if draft else Proposal()

    @abstractmethod
    def _draft(self, state: Any, token_ids: Sequence[int]) -> Sequence[int]:
        """Index the tokens that are new to `state` and return the draft after the last of `token_ids`."""


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
