"""ngram-simple: copy what followed the latest earlier occurrence of the newest n tokens."""

from __future__ import annotations

from collections.abc import Sequence

from blockdraft.drafters.config import NgramSimple
from blockdraft.drafters.ngram.base import Draft, Ngram, NgramDrafter, NgramWalk, newest_ngram


class NgramSimpleDrafter(NgramDrafter):
    """Takes the latest occurrence; drafts up to size_m of the tokens after it, the anchor excluded.

    With `size_n_min` the longest match counts: size_n tokens first, then one less, down to size_n_min.
    """

    copies = True

    def __init__(self, config: NgramSimple | None = None) -> None:
        self.config = config or NgramSimple()
        super().__init__("ngram-simple", self.config, self.config.size_m)

    def begin(self, prompt_ids: Sequence[int]) -> list[_Occurrences]:
        config = self.config
        shortest = config.size_n if config.size_n_min is None else config.size_n_min
        return [_Occurrences(size) for size in range(config.size_n, shortest - 1, -1)]

    def look_up(self, state: list[_Occurrences], token_ids: Sequence[int]) -> Draft:
        config = self.config
        end = len(token_ids) - 1
        start: int | None = None
        for occurrences in state:
            # An occurrence needs one token after it that is older than the anchor.
            occurrences.extend(token_ids, end - 1)
            if start is None:
                start = occurrences.end_of_latest(token_ids, config.min_hits)
        if start is None:
            return Draft()
        draft = token_ids[start : min(start + config.size_m, end)]
        min_draft = config.size_n if config.min_draft is None else config.min_draft
        return Draft(draft, start) if len(draft) >= min_draft else Draft()


class _Occurrences:
    """Where each n-gram of one size occurred."""

    def __init__(self, size: int) -> None:
        self._walk = NgramWalk(size)
        self._latest: dict[Ngram, int] = {}
        self._previous: list[int] = []
        """For each start, the start of the occurrence before it, or -1."""

    def extend(self, token_ids: Sequence[int], end: int) -> None:
        """Index the n-grams that end at or before `end`."""
        for start, ngram in self._walk.new_ngrams(token_ids, end):
            self._previous.append(self._latest.get(ngram, -1))
            self._latest[ngram] = start

    def end_of_latest(self, token_ids: Sequence[int], min_hits: int) -> int | None:
        """Return where the latest occurrence of the newest n-gram ends, if there are at least `min_hits`."""
        size = self._walk.size
        ngram = newest_ngram(token_ids, size)
        latest = -1 if ngram is None else self._latest.get(ngram, -1)
        hit = latest
        for _ in range(min_hits - 1):
            if hit < 0:
                break
            hit = self._previous[hit]
        return latest + size if hit >= 0 else None
