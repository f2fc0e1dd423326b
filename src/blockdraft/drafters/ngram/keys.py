"""ngram-map-k and ngram-map-k4v: n-grams are keys that remember how well their drafts did.

An occurrence is learnt once the size_m tokens after it are known. A draft is as long as its key's limit
allows; the limit starts at size_m and follows the verdicts (`_Continuation.judge`).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field

from blockdraft.drafters.base import Observation
from blockdraft.drafters.config import NgramLookup, NgramMapK, NgramMapK4v
from blockdraft.drafters.ngram.base import Draft, Ngram, NgramDrafter, NgramWalk, newest_ngram

MAX_CONTINUATIONS = 4
"""How many different continuations of a key ngram-map-k4v tells apart."""

DOMINANCE = 2
"""The winning continuation must have been seen this many times as often as all others together."""


@dataclass(slots=True)
class _Continuation:
    """One way in which the text went on after a key."""

    start: int
    """Position of its first token, when it was first seen."""
    limit: int
    """How many of its tokens may be drafted."""
    num_seen: int = 1

    def judge(self, num_drafted: int, num_accepted: int, size_m: int) -> bool:
        """Adapt the limit to a verdict; return False if the continuation should be forgotten.

        A full success doubles the limit and a partial one sets it to what was accepted. Nothing accepted
        means that the text now goes on in another way: what was learnt is wrong, and the occurrence that
        showed it is learnt in its place as soon as its own continuation is known.
        """
        if num_accepted == num_drafted:
            self.limit = min(2 * self.limit, size_m)
        elif num_accepted:
            self.limit = num_accepted
        return num_accepted > 0


@dataclass(slots=True)
class _KeyState:
    """Index of one sequence."""

    walk: NgramWalk
    keys: dict[Ngram, list[_Continuation]] = field(default_factory=dict)
    drafted: tuple[Ngram, _Continuation] | None = None
    """What the present round's draft was taken from."""


class _KeyDrafter(NgramDrafter):
    """Common part of both: indexing, the look-up and the verdicts."""

    copies = True

    def __init__(self, name: str, config: NgramLookup) -> None:
        super().__init__(name, config, config.size_m)
        self.config = config

    def begin(self, prompt_ids: Sequence[int]) -> _KeyState:
        return _KeyState(NgramWalk(self.config.size_n))

    def look_up(self, state: _KeyState, token_ids: Sequence[int]) -> Draft:
        size_n, size_m = self.config.size_n, self.config.size_m
        state.drafted = None
        # All size_m tokens of a continuation must be older than the anchor.
        for start, ngram in state.walk.new_ngrams(token_ids, len(token_ids) - 1 - size_m):
            self._learn(state.keys.setdefault(ngram, []), start + size_n, token_ids)
        key = newest_ngram(token_ids, size_n)
        if key is None:
            return Draft()
        chosen = self._choose(state.keys.get(key, []))
        if chosen is None:
            return Draft()
        state.drafted = key, chosen
        return Draft(token_ids[chosen.start : chosen.start + chosen.limit], chosen.start)

    def observe(self, state: _KeyState, observation: Observation) -> None:
        """Judge the continuation that the round's draft was taken from."""
        if state.drafted is None or observation.drafter != self.traits.name or observation.num_drafted == 0:
            return
        key, continuation = state.drafted
        state.drafted = None
        if not continuation.judge(observation.num_drafted, observation.num_accepted, self.config.size_m):
            state.keys[key].remove(continuation)

    @abstractmethod
    def _learn(self, continuations: list[_Continuation], start: int, token_ids: Sequence[int]) -> None:
        """Count the occurrence of a key that is continued at `start`."""

    @abstractmethod
    def _choose(self, continuations: list[_Continuation]) -> _Continuation | None:
        """Return the continuation to draft."""


class NgramMapKDrafter(_KeyDrafter):
    """Drafts what followed the first occurrence of the key; later ones only count as hits."""

    def __init__(self, config: NgramMapK | None = None) -> None:
        super().__init__("ngram-map-k", config or NgramMapK())

    def _learn(self, continuations: list[_Continuation], start: int, token_ids: Sequence[int]) -> None:
        if continuations:
            continuations[0].num_seen += 1
        else:
            continuations.append(_Continuation(start=start, limit=self.config.size_m))

    def _choose(self, continuations: list[_Continuation]) -> _Continuation | None:
        return next((seen for seen in continuations if seen.num_seen >= self.config.min_hits), None)


class NgramMapK4vDrafter(_KeyDrafter):
    """Counts up to four different continuations of a key and drafts the one that dominates."""

    def __init__(self, config: NgramMapK4v | None = None) -> None:
        super().__init__("ngram-map-k4v", config or NgramMapK4v())

    def _learn(self, continuations: list[_Continuation], start: int, token_ids: Sequence[int]) -> None:
        size_m = self.config.size_m
        if continuations:
            tokens = token_ids[start : start + size_m]
            for known in continuations:
                if token_ids[known.start : known.start + size_m] == tokens:
                    known.num_seen += 1
                    return
        if len(continuations) < MAX_CONTINUATIONS:
            continuations.append(_Continuation(start=start, limit=size_m))

    def _choose(self, continuations: list[_Continuation]) -> _Continuation | None:
        if not continuations:
            return None
        best = max(continuations, key=lambda seen: seen.num_seen)
        num_seen = sum(seen.num_seen for seen in continuations)
        if num_seen < self.config.min_hits or best.num_seen < DOMINANCE * (num_seen - best.num_seen):
            return None
        return best
