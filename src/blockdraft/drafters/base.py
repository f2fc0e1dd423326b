"""The contract of a drafter: begin, propose, observe.

A drafter keeps its own state for each sequence. It proposes tokens for several sequences at once, and is
told after every round what the target made of them. It never decides what is emitted: verification does.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from blockdraft.core.random import PositionalRandom
from blockdraft.core.sampling import SamplingParams


@dataclass(frozen=True, kw_only=True)
class DrafterTraits:
    """What a drafter needs and can do; checked against the target and the options at start-up."""

    name: str
    """As in --spec-type: "draft-dflash", "ngram-mod", ..."""
    max_draft_tokens: int
    """The most tokens one proposal can hold."""
    target_layer_ids: tuple[int, ...] = ()
    """Decoder layers of the target whose outputs the drafter reads; empty if it needs none."""
    is_deterministic: bool
    """True if draft tokens are never sampled, so that `match` and `rejection` coincide."""
    has_confidence: bool = False
    """True if proposals carry `confidence`."""
    confidence_is_sequential: bool = False
    """True if confidence at slot k depends on the tokens drafted before it."""

    is_instant: bool = False
    """True if drafts take next to no time, so that one may be made only to see how sure it is. It is deterministic then
    and has confidences, so that all of them may be looked at before any slot is admitted."""

    @property
    def needs_target_hidden(self) -> bool:
        return bool(self.target_layer_ids)


@dataclass(frozen=True, kw_only=True)
class Ask:
    """A request for draft tokens of one sequence.

    `token_ids` are all committed tokens; the last one is the anchor, which the target has not run yet.
    Draft token k is for position len(token_ids) + k.
    """

    state: Any
    token_ids: Sequence[int]
    num_draft_tokens: int
    """How many draft tokens are wanted at most (>= 1)."""
    sampling: SamplingParams
    random: PositionalRandom
    limits: Mapping[str, int] = field(default_factory=dict)
    """How many of them a part of a chain may draft, by its name; 0 passes it over. Parts not named may draft all."""
    accepts: Callable[[Proposal], bool] = bool
    """Whether a chain may stop at an offer of one of its parts; the next is asked otherwise."""


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """Draft tokens for one sequence; empty if the drafter has nothing to offer.

    Shapes: draft_probs [K, V] (the distribution each token was sampled from, over the target's vocabulary)
    or None when the tokens were chosen deterministically; confidence: K numbers in [0, 1], the
    probability that slot k is kept given that the slots before it are, known before token k was drawn.
    """

    draft_ids: tuple[int, ...] = ()
    draft_probs: Tensor | None = None
    confidence: tuple[float, ...] | None = None
    drafter: str = ""

    def __len__(self) -> int:
        return len(self.draft_ids)

    def cut(self, num_kept: int) -> Proposal:
        """Return the proposal's first `num_kept` tokens."""
        if num_kept >= len(self):
            return self
        return Proposal(
            draft_ids=self.draft_ids[:num_kept],
            draft_probs=None if self.draft_probs is None else self.draft_probs[:num_kept],
            confidence=None if self.confidence is None else self.confidence[:num_kept],
            drafter=self.drafter,
        )


@dataclass(frozen=True, kw_only=True)
class Observation:
    """What a round (or the prefill) committed.

    `target_hidden` [n, M*D] holds the tapped states of the n tokens that entered the target's state: at
    prefill the prompt (perhaps in several chunks), later the old anchor and the accepted drafts. The
    token in `committed_ids[-1]` is the new anchor and has no features yet.
    """

    committed_ids: Sequence[int]
    """Tokens emitted by this round; empty for a prefill chunk that is not the last."""
    target_hidden: Tensor | None = None
    drafter: str = ""
    """Who proposed; empty if nobody did."""
    num_drafted: int = 0
    num_accepted: int = 0


class Drafter(ABC):
    """Proposes tokens for the target to check."""

    @property
    @abstractmethod
    def traits(self) -> DrafterTraits: ...

    @property
    def parts(self) -> tuple[Drafter, ...]:
        """The drafters that proposals name: itself, or the members of a chain, in the order in which they are asked."""
        return (self,)

    @abstractmethod
    def begin(self, prompt_ids: Sequence[int]) -> Any:
        """Return fresh state for a sequence."""

    @abstractmethod
    def propose(self, asks: Sequence[Ask]) -> list[Proposal]:
        """Return one proposal per ask, in order."""

    def observe(self, state: Any, observation: Observation) -> None:
        """Learn what was committed. Called for every sequence after each pass of the target."""

    def describe(self) -> dict[str, object]:
        """Return every effective setting, as plain data for --json and saved results."""
        return {"name": self.traits.name}
