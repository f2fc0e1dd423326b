"""A drafter that is asked for fewer tokens than it could draft."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from blockdraft.drafters.base import Ask, Drafter, DrafterTraits, Observation, Proposal


class LimitedDrafter(Drafter):
    """Passes everything on, with asks of at most `max_draft_tokens`."""

    def __init__(self, inner: Drafter, max_draft_tokens: int) -> None:
        assert 1 <= max_draft_tokens <= inner.traits.max_draft_tokens
        self.inner = inner
        self._traits = replace(inner.traits, max_draft_tokens=max_draft_tokens)

    @property
    def traits(self) -> DrafterTraits:
        return self._traits

    def describe(self) -> dict[str, object]:
        return {**self.inner.describe(), "max_draft_tokens": self._traits.max_draft_tokens}

    def begin(self, prompt_ids: Sequence[int]) -> Any:
        return self.inner.begin(prompt_ids)

    def propose(self, asks: Sequence[Ask]) -> list[Proposal]:
        limit = self._traits.max_draft_tokens
        return self.inner.propose(
            [ask if ask.num_draft_tokens <= limit else replace(ask, num_draft_tokens=limit) for ask in asks]
        )

    def observe(self, state: Any, observation: Observation) -> None:
        self.inner.observe(state, observation)
