"""ngram-mod: a table from n tokens to the next one, walked token by token.

Unlike a copy of one earlier place, a walk may run from one place to another and round a loop. The table
belongs to one request, unless it is shared on purpose.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from blockdraft.drafters.base import Observation
from blockdraft.drafters.config import NgramMod
from blockdraft.drafters.ngram.base import Draft, Ngram, NgramDrafter, NgramWalk, newest_ngram

SHARED_CAPACITY = 1 << 18
"""Most n-grams in a shared table (about 85 MB with n_match 24); the oldest make room."""

BAD_SHARE = 0.25
"""A draft of which less than this share is accepted is a bad one."""

MAX_BAD_ROUNDS = 5
"""After this many bad drafts in a row a request leaves the shared table."""


@dataclass(slots=True)
class _ModState:
    """What one sequence has in which table."""

    walk: NgramWalk
    table: OrderedDict[Ngram, int] | dict[Ngram, int]
    num_bad: int = 0


class NgramModDrafter(NgramDrafter):
    """Drafts n_min to n_max tokens; the last occurrence of an n-gram decides what follows it."""

    copies = False

    def __init__(self, config: NgramMod | None = None, *, shared_capacity: int = SHARED_CAPACITY) -> None:
        self.config = config or NgramMod()
        super().__init__("ngram-mod", self.config, self.config.n_max)
        self._shared: OrderedDict[Ngram, int] | None = OrderedDict() if self.config.shared else None
        self._shared_capacity = shared_capacity

    def begin(self, prompt_ids: Sequence[int]) -> _ModState:
        return _ModState(NgramWalk(self.config.n_match), {} if self._shared is None else self._shared)

    def look_up(self, state: _ModState, token_ids: Sequence[int]) -> Draft:
        config = self.config
        self._learn(state, token_ids)
        ngram = newest_ngram(token_ids, config.n_match)
        if ngram is None:
            return Draft()
        window = list(ngram)
        for start in range(config.n_max):
            next_id = state.table.get(tuple(window[start:]))
            if next_id is None:
                break
            window.append(next_id)
        draft = window[config.n_match :]
        return Draft(draft) if len(draft) >= config.n_min else Draft()

    def _learn(self, state: _ModState, token_ids: Sequence[int]) -> None:
        table, size = state.table, self.config.n_match
        # The anchor is not learnt yet: it would lead every walk from the end of the text back to its own start.
        for start, ngram in state.walk.new_ngrams(token_ids, len(token_ids) - 2):
            table[ngram] = token_ids[start + size]
        if isinstance(table, OrderedDict):
            while len(table) > self._shared_capacity:
                table.popitem(last=False)

    def observe(self, state: _ModState, observation: Observation) -> None:
        """Count bad drafts; too many in a row, and the request goes on with a table of its own text."""
        if observation.drafter != self.traits.name or observation.num_drafted == 0:
            return
        is_bad = observation.num_accepted < BAD_SHARE * observation.num_drafted
        state.num_bad = state.num_bad + 1 if is_bad else 0
        if state.num_bad >= MAX_BAD_ROUNDS and state.table is self._shared:
            # A private table needs no such cure: refilled from the same text it would be the same.
            state.walk, state.table, state.num_bad = NgramWalk(self.config.n_match), {}, 0
