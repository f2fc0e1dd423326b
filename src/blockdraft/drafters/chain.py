"""A chain of drafters: the first that has something to offer serves the sequence in this round.

Nothing is scored or merged. A later member is asked only for the sequences that are still open, so a cheap
n-gram drafter in front of a network saves the network's passes where it hits. Every member observes every
round, hidden states included, so that a network is ready when its turn comes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from blockdraft.drafters.base import Ask, Drafter, DrafterTraits, Observation, Proposal
from blockdraft.errors import ConfigError, PairError


class ChainDrafter(Drafter):
    """Asks its members in the order given; `Proposal.drafter` names the winner.

    Raises:
        ConfigError: there are fewer than two members, or two with the same name.
        PairError: two members read different hidden states of the target.
    """

    def __init__(self, members: Sequence[Drafter]) -> None:
        self.members = tuple(members)
        self._traits = _combine([member.traits for member in self.members])

    @property
    def traits(self) -> DrafterTraits:
        return self._traits

    @property
    def parts(self) -> tuple[Drafter, ...]:
        return self.members

    def describe(self) -> dict[str, object]:
        return {"name": self._traits.name, "members": [member.describe() for member in self.members]}

    def begin(self, prompt_ids: Sequence[int]) -> list[Any]:
        return [member.begin(prompt_ids) for member in self.members]

    def propose(self, asks: Sequence[Ask]) -> list[Proposal]:
        proposals = [Proposal()] * len(asks)
        for index, member in enumerate(self.members):
            member_asks = {
                row: replace(ask, state=ask.state[index], num_draft_tokens=count)
                for row, ask in enumerate(asks)
                if not proposals[row] and (count := _most_tokens(ask, member.traits)) > 0
            }
            if member_asks:
                drafted = member.propose(list(member_asks.values()))
                for row, proposal in zip(member_asks, drafted, strict=True):
                    if proposal and asks[row].accepts(proposal):
                        proposals[row] = proposal
        return proposals

    def observe(self, state: list[Any], observation: Observation) -> None:
        for member, member_state in zip(self.members, state, strict=True):
            member.observe(member_state, observation)


def _most_tokens(ask: Ask, traits: DrafterTraits) -> int:
    return min(ask.num_draft_tokens, traits.max_draft_tokens, ask.limits.get(traits.name, ask.num_draft_tokens))


def _combine(traits: Sequence[DrafterTraits]) -> DrafterTraits:
    names = [member.name for member in traits]
    if len(names) < 2:
        raise ConfigError("a chain needs at least two drafters")
    if len(set(names)) < len(names):
        raise ConfigError(
            f"a drafter is listed twice in the chain {', '.join(names)}: its wins could not be told apart"
        )
    readers = {member.name: member.target_layer_ids for member in traits if member.target_layer_ids}
    if len(set(readers.values())) > 1:
        listed = "; ".join(f"{name} reads {list(layers)}" for name, layers in readers.items())
        raise PairError(f"drafters of a chain must read the same target layers: {listed}")
    return DrafterTraits(
        name=",".join(names),
        max_draft_tokens=max(member.max_draft_tokens for member in traits),
        target_layer_ids=next(iter(readers.values()), ()),
        is_deterministic=all(member.is_deterministic for member in traits),
        has_confidence=any(member.has_confidence for member in traits),
        confidence_is_sequential=any(member.confidence_is_sequential for member in traits),
    )
