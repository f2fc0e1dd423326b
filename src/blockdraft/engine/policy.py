"""How many draft tokens to ask for, and how many of them to verify.

One rule binds every policy: whether draft token k is verified may depend on anything known before it was
drawn (confidences up to its own, other requests, measured costs), never on the token itself or on what was
drafted after it. Otherwise sampled output is no longer the target's. A rule that sees more is lossless only
under greedy decoding and `match`, where what is emitted are the target's own choices.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from blockdraft.drafters.base import DrafterTraits, Proposal
from blockdraft.drafters.config import SpecConfig
from blockdraft.errors import ConfigError


class Policy(Protocol):
    """Decides the length of drafts."""

    def num_wanted(self, traits: DrafterTraits, room: int) -> int:
        """Return how many tokens to ask for; `room` is what length limit and context leave."""
        ...

    def admit(self, proposal: Proposal) -> Proposal:
        """Return the part of a proposal that is worth verifying, perhaps none."""
        ...


@dataclass(frozen=True, kw_only=True)
class FixedPolicy:
    """Verifies what was drafted up to the first slot whose confidence is below `p_min`.

    What is left of a draft model's proposal is dropped whole if it is shorter than `n_min`.
    """

    p_min: float = 0.0
    n_min: int = 0

    def num_wanted(self, traits: DrafterTraits, room: int) -> int:
        return min(traits.max_draft_tokens, room)

    def admit(self, proposal: Proposal) -> Proposal:
        num_kept = len(proposal)
        if self.p_min > 0 and proposal.confidence is not None:
            confident = (slot for slot, value in enumerate(proposal.confidence) if value < self.p_min)
            num_kept = next(confident, num_kept)
        # n-gram drafters have minimum lengths of their own.
        if num_kept < self.n_min and proposal.drafter.startswith("draft-"):
            num_kept = 0
        return proposal.cut(num_kept)


def make_policy(config: SpecConfig, traits: DrafterTraits | None) -> FixedPolicy:
    """Return the policy of a configuration.

    Raises:
        ConfigError: the combination would bend the distribution of sampled answers.
    """
    if (
        traits is not None
        and config.n_min > 0
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
    return FixedPolicy(p_min=config.p_min, n_min=config.n_min)
