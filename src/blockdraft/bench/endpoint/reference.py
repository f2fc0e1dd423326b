"""The baseline, read token by token, and how far it agrees with itself.

Whatever is compared with the baseline is first set against what the baseline says when asked again: a server whose own
choice changes from one reading to the next cannot convict anybody.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

from blockdraft.bench.endpoint.answers import Context
from blockdraft.bench.endpoint.served_model import NextToken, ServedModel

_LIKELY = math.log(0.02)


@dataclass(frozen=True, kw_only=True)
class SelfCheck:
    """The baseline against the baseline: places that were read twice."""

    num_places: int
    num_changed_choices: int
    """Where the most likely token was another one the second time."""
    num_unstable: int
    """Of these, how many are no near-ties (or of unknown gap)."""
    logprob_noise: float
    """Root mean square of how much log-probabilities of likely tokens moved, in nat."""
    prob_noise: float
    """The same of the most likely token's probability."""

    @property
    def is_stable(self) -> bool:
        return self.num_unstable == 0

    def to_dict(self) -> dict[str, object]:
        """Return the check as plain data."""
        return asdict(self) | {"is_stable": self.is_stable}


class Reference:
    """What a baseline says next after any context; each context is read once and remembered."""

    def __init__(self, model: ServedModel) -> None:
        self.model = model
        self._read: dict[Context, NextToken] = {}

    @property
    def contexts(self) -> list[Context]:
        """All places read so far, in order."""
        return list(self._read)

    def __getitem__(self, context: Context) -> NextToken:
        return self._read[context]

    def is_as_generated(self, context: Context, start: Context, num_tokens: int) -> bool:
        """True if the server reads `context` as `start` and then as many tokens as were generated.

        Token ids are taken as they are. A text is cut anew, perhaps into other tokens: then what follows it may be
        something else, and is no measure of what was generated. Their number tells, if the server counts them.
        """
        if isinstance(context, tuple):
            return True
        whole, first = self[context].num_context_tokens, self[start].num_context_tokens
        return whole is not None and first is not None and whole == first + num_tokens

    async def read(self, contexts: Iterable[Context]) -> None:
        """Read what is new among these places."""
        # In order, so that neighbours share what the server has in its cache.
        missing = sorted({context for context in contexts if context not in self._read})
        found = await asyncio.gather(*(self.model.next_token(context) for context in missing))
        self._read.update(zip(missing, found, strict=True))

    async def read_again(self, context: Context, times: int = 1) -> list[NextToken]:
        """Read a place anew, past any cache if the server allows it, one reading after another."""
        return [await self.model.next_token(context, fresh=True) for _ in range(times)]

    async def check_itself(self, num_places: int, near_tie: float) -> SelfCheck:
        """Read places again that are spread evenly over those read so far, and compare.

        Every fourth is computed anew, past the cache: rounding depends on how a context was cut into passes.
        """
        chosen = spread(self.contexts, num_places)
        again = await asyncio.gather(
            *(self.model.next_token(context, fresh=not index % 4) for index, context in enumerate(chosen))
        )
        pairs = [(self._read[context], second) for context, second in zip(chosen, again, strict=True)]
        changed = [(first, second) for first, second in pairs if first.key != second.key]
        fresh = pairs[::4]
        return SelfCheck(
            num_places=len(pairs),
            num_changed_choices=len(changed),
            num_unstable=sum(not is_tie(first, second, near_tie) for first, second in changed),
            logprob_noise=_rms(move for first, second in fresh for move in _moves(first, second)),
            prob_noise=_rms(_prob_move(first, second) for first, second in fresh),
        )


def is_tie(first: NextToken, second: NextToken, near_tie: float) -> bool:
    """True if two readings chose differently between tokens that are nearly tied in both."""
    gaps = [
        own.gap_to(other.choice) if other.choice else _second_gap(own)
        for own, other in ((first, second), (second, first))
    ]
    return all(gap is not None and gap < near_tie for gap in gaps)


def spread(items: Sequence[Context], count: int) -> list[Context]:
    """Return `count` items at even distances, or all if there are not more."""
    if len(items) <= count:
        return list(items)
    return [items[index * len(items) // count] for index in range(count)]


def _second_gap(next_token: NextToken) -> float | None:
    """Return the gap between the two most likely tokens: the smallest that any other token can have."""
    return next_token.gap_to(next_token.top[1]) if len(next_token.top) > 1 else None


def _moves(first: NextToken, second: NextToken) -> list[float]:
    """Return how far log-probabilities of tokens moved that are likely enough to be drawn."""
    pairs = [(token.logprob, second.logprob_of(token)) for token in first.top]
    return [after - before for before, after in pairs if before is not None and after is not None and before > _LIKELY]


def _prob_move(first: NextToken, second: NextToken) -> float:
    if not first.top or first.top[0].logprob is None:
        return 0.0
    after = second.logprob_of(first.top[0])
    return 0.0 if after is None else math.exp(after) - math.exp(first.top[0].logprob)


def _rms(values: Iterable[float]) -> float:
    squares = [value * value for value in values]
    return math.sqrt(math.fsum(squares) / len(squares)) if squares else 0.0
