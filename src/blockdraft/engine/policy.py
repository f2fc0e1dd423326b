"""How many draft tokens to ask for, and how many of them to verify.

One rule binds every policy: whether draft token k is verified may depend on anything known before it was
drawn (confidences up to its own, other requests, measured costs, what earlier rounds kept), never on the token
itself or on what was drafted after it. Otherwise sampled output is no longer the target's. A rule that sees more is
lossless only under greedy decoding and `match`, where what is emitted are the target's own choices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from blockdraft.drafters.base import Drafter, DrafterTraits, Proposal
from blockdraft.drafters.config import SpecConfig
from blockdraft.engine.results import Round
from blockdraft.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Situation:
    """One sequence of a round, before anything is drafted."""

    state: Any
    """What the policy's `begin` returned for the sequence."""
    room: int
    """Draft tokens that length limit and context leave."""
    depth: int
    """Tokens in the target's cache."""
    num_running: int
    """Sequences of the round, this one included."""


class Policy(Protocol):
    """Decides the length of drafts."""

    name: str

    def begin(self) -> Any:
        """Return fresh state for a sequence."""
        ...

    def limits(self, situation: Situation) -> Mapping[str, int]:
        """Return how many tokens each part of the drafter may draft; a part with 0 is not asked."""
        ...

    def accepts(self, proposal: Proposal, situation: Situation) -> bool:
        """Return whether a chain may stop at this offer; its next part is asked otherwise."""
        ...

    def admit(self, proposals: Sequence[Proposal], situations: Sequence[Situation]) -> list[Proposal]:
        """Return the part of each proposal that is worth verifying, perhaps none."""
        ...

    def observe(self, state: Any, record: Round) -> None:
        """Learn what a round kept of a sequence's draft."""
        ...


@dataclass(frozen=True, kw_only=True)
class FixedPolicy:
    """Verifies what was drafted up to the first slot whose confidence is below `p_min`.

    What is left of a draft model's proposal is dropped whole if it is shorter than `n_min`.
    """

    traits: Sequence[DrafterTraits]
    p_min: float = 0.0
    n_min: int = 0
    name = "fixed"

    def begin(self) -> None:
        return None

    def limits(self, situation: Situation) -> Mapping[str, int]:
        return {traits.name: min(traits.max_draft_tokens, situation.room) for traits in self.traits}

    def accepts(self, proposal: Proposal, situation: Situation) -> bool:
        return True

    def admit(self, proposals: Sequence[Proposal], situations: Sequence[Situation]) -> list[Proposal]:
        return [self._admit(proposal) for proposal in proposals]

    def observe(self, state: Any, record: Round) -> None:
        pass

    def _admit(self, proposal: Proposal) -> Proposal:
        # n-gram drafters have limits of their own.
        if not proposal.drafter.startswith("draft-"):
            return proposal
        num_kept = len(proposal)
        if self.p_min > 0 and proposal.confidence is not None:
            confident = (slot for slot, value in enumerate(proposal.confidence) if value < self.p_min)
            num_kept = next(confident, num_kept)
        if num_kept < self.n_min:
            num_kept = 0
        return proposal.cut(num_kept)


def check_policy(config: SpecConfig, traits: DrafterTraits) -> None:
    """Check that a configuration keeps the rule above.

    Raises:
        ConfigError: it would bend the distribution of sampled answers.
    """
    if (
        config.n_min > 0
        and config.p_min > 0
        and traits.confidence_is_sequential
        and not traits.is_deterministic
        and config.rule != "match"
    ):
        raise ConfigError(
            f"n_min {config.n_min} with p_min {config.p_min} would drop a sampled draft of {traits.name} because of "
            "tokens drafted later in it, and rejection sampling would no longer give the target's distribution; "
            "set n_min to 0, or verify with `match`, or draft greedily"
        )


def check_confidences(config: SpecConfig, drafter: Drafter) -> None:
    """Check that a policy that goes by confidences gets some.

    Raises:
        ConfigError: it would get none.
    """
    if config.policy == "budget" and not any(
        part.traits.has_confidence and not part.traits.is_instant for part in drafter.parts
    ):
        raise ConfigError(
            f"the policy 'budget' goes by confidences of a network, and {drafter.traits.name} tells none; "
            "take 'adaptive', or a DSpark drafter with a confidence head"
        )


def fixed_policy(config: SpecConfig, drafter: Drafter | None) -> FixedPolicy:
    """Return the policy that keeps to a configuration's lengths."""
    return FixedPolicy(
        traits=[part.traits for part in drafter.parts] if drafter else [], p_min=config.p_min, n_min=config.n_min
    )
