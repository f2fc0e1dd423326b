"""DSpark: the DFlash network, then a short walk through the block, each token seen by the next slot.

The network gives base logits for all slots in one pass. Tokens are then chosen from left to right: a Markov
head adds a bias that depends on the token chosen before (for slot 0 the anchor), and the biased, shaped
distribution is the one sampled from and reported. The confidence head tells for each slot, before its token
is drawn, how likely it is to be kept; below `p_min` the walk stops. That decision never sees the token it is
about, so it does not bend the output distribution.

Shape legend: A sequences still walking, T packed rows, D width, R Markov rank, U draft vocabulary.
Ref: arXiv:2607.05147.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, takewhile
from pathlib import Path

import torch
from torch import Tensor

from blockdraft.drafters.base import Ask, DrafterTraits, Proposal
from blockdraft.drafters.block_drafter import BlockDrafter
from blockdraft.drafters.config import DraftSampling
from blockdraft.drafters.draft_checkpoint import DraftCheckpoint, load_draft_checkpoint
from blockdraft.drafters.markov import MARKOV_HEADS, ConfidenceHead, MarkovHead
from blockdraft.drafters.packed_walk import PackedWalk, make_packed_walk
from blockdraft.drafters.token_choice import Drawn, collect
from blockdraft.errors import ConfigError
from blockdraft.models.base import Target


@dataclass
class _Walk:
    """The sequences that still draft, all at the same slot."""

    members: list[int]
    starts: Tensor
    """Where each member's rows begin among the packed ones; kept on the device, as nothing waits for it there."""
    previous_ids: Tensor
    state: Tensor | None

    def narrow(self, kept: Sequence[int]) -> None:
        """Go on with the members at these places only."""
        if len(kept) == len(self.members):
            return
        index = torch.tensor(kept, dtype=torch.long, device=self.previous_ids.device)
        self.members = [self.members[place] for place in kept]
        self.starts = self.starts[index]
        self.previous_ids = self.previous_ids[index]
        self.state = None if self.state is None else self.state[index]


class DSparkDrafter(BlockDrafter):
    """Drafts a block in one pass and chooses its tokens from left to right."""

    def __init__(
        self,
        checkpoint: DraftCheckpoint,
        target: Target,
        *,
        draft_sampling: DraftSampling = "probabilistic",
        with_confidence: bool = False,
        p_min: float = 0.0,
    ) -> None:
        if checkpoint.config.kind != "draft-dspark":
            raise ConfigError("this checkpoint holds no Markov or confidence head; use --spec-type draft-dflash")
        if not 0 <= p_min <= 1:
            raise ConfigError(f"p_min must be in [0, 1], not {p_min}")
        super().__init__(checkpoint, target, draft_sampling)
        config, tensors = self.config, checkpoint.tensors
        self.p_min = p_min
        self._markov: MarkovHead | None = MARKOV_HEADS[config.markov_head_type](tensors) if config.markov_rank else None
        self._packed_walk = make_packed_walk(self.config, self._markov, self.runner, self.choice.target_ids)
        self._confidence: ConfidenceHead | None = None
        if with_confidence or p_min > 0:
            if config.confidence_head == "none":
                raise ConfigError("this DSpark drafter has no confidence head; leave p_min and the schedule off")
            self._confidence = ConfidenceHead(tensors, config.hidden_size, config.confidence_temperatures)
        self._traits = DrafterTraits(
            name="draft-dspark",
            max_draft_tokens=config.max_draft_tokens,
            target_layer_ids=config.target_layer_ids,
            is_deterministic=draft_sampling == "greedy",
            has_confidence=self._confidence is not None,
            confidence_is_sequential=self._confidence is not None and config.confidence_head == "hidden+markov",
        )

    @classmethod
    def load(
        cls,
        path: Path,
        target: Target,
        *,
        draft_sampling: DraftSampling = "probabilistic",
        with_confidence: bool = False,
        p_min: float = 0.0,
    ) -> DSparkDrafter:
        """Load a checkpoint folder for a target.

        Raises:
            ModelError: the checkpoint is broken or not supported.
            PairError: it was made for another target.
            ConfigError: it is not a DSpark drafter, or an option does not fit it.
        """
        checkpoint = load_draft_checkpoint(path, target.info)
        return cls(checkpoint, target, draft_sampling=draft_sampling, with_confidence=with_confidence, p_min=p_min)

    @property
    def traits(self) -> DrafterTraits:
        return self._traits

    def describe(self) -> dict[str, object]:
        return super().describe() | {"p_min": self.p_min}

    def _draft(self, asks: Sequence[Ask], counts: Sequence[int]) -> list[Proposal]:
        if self._packed_walk and not any(self.choice.is_sampled(ask) for ask in asks):
            return self._draft_packed(self._packed_walk, asks, counts)
        return super()._draft(asks, counts)

    def _draw(self, asks: Sequence[Ask], counts: Sequence[int], hidden: Tensor, logits: Tensor) -> list[Proposal]:
        draws = self.choice.draws(asks, counts, hidden.device)
        walk = _Walk(
            members=list(range(len(asks))),
            starts=torch.tensor([0, *accumulate(counts[:-1])], device=hidden.device),
            previous_ids=torch.tensor([ask.token_ids[-1] for ask in asks], device=hidden.device),
            state=self._markov.initial_state(len(asks)) if self._markov else None,
        )
        partial = self._confidence.from_hidden(hidden) if self._confidence else None
        drawn = [Drawn() for _ in asks]
        order: list[Drawn] = []
        all_ids: list[Tensor] = []
        all_confidence: list[Tensor] = []
        for slot in range(max(counts)):
            walk.narrow([place for place, member in enumerate(walk.members) if counts[member] > slot])
            if partial is not None:
                all_confidence.append(self._judge(walk, partial[walk.starts + slot], slot))
            if not walk.members:
                break
            rows = walk.starts + slot
            step_logits = self._biased(walk, logits[rows], hidden[rows])
            draft_ids = self.choice.choose(
                step_logits,
                [(asks[member], drawn[member], draws[member][slot : slot + 1]) for member in walk.members],
            )
            walk.previous_ids = self.choice.to_target_ids(draft_ids)
            all_ids.append(walk.previous_ids)
            order += [drawn[member] for member in walk.members]
        collect(order, all_ids, all_confidence)
        return [own.proposal(self._traits.name, with_confidence=self._confidence is not None) for own in drawn]

    def _draft_packed(self, walk: PackedWalk, asks: Sequence[Ask], counts: Sequence[int]) -> list[Proposal]:
        """Walk to the end of every block, and cut what lies behind a slot below `p_min`."""
        anchors = [ask.token_ids[-1] for ask in asks]
        hidden, drafts = walk.choose(self._blocks(asks, counts), counts, anchors)
        proposals = [Proposal(draft_ids=tuple(ids), drafter=self._traits.name) for ids in drafts]
        if self._confidence is None:
            return proposals
        before = [token_id for anchor, ids in zip(anchors, drafts, strict=True) for token_id in (anchor, *ids[:-1])]
        slots = torch.tensor([slot for count in counts for slot in range(count)])
        embedding = self._markov.embed(torch.tensor(before)) if self._markov else None
        confidence = self._confidence.probability(self._confidence.from_hidden(hidden[: len(slots)]), embedding, slots)
        judged = []
        for proposal, values in zip(proposals, torch.split(confidence, list(counts)), strict=True):
            sure = tuple(takewhile(lambda value: self.p_min == 0 or value >= self.p_min, values.tolist()))
            judged.append(replace(proposal.cut(len(sure)), confidence=sure))
        return judged

    def _judge(self, walk: _Walk, partial: Tensor, slot: int) -> Tensor:
        """Drop the sequences whose next slot, `slot`, is below `p_min`; return the confidence of the others.

        Shapes: partial [A]; returns [A] of those left.
        """
        assert self._confidence is not None
        embedding = self._markov.embed(walk.previous_ids) if self._markov else None
        confidence = self._confidence.probability(partial, embedding, slot)
        if self.p_min == 0:
            return confidence
        kept = [place for place, passes in enumerate((confidence >= self.p_min).tolist()) if passes]
        walk.narrow(kept)
        return confidence[kept]

    def _biased(self, walk: _Walk, logits: Tensor, hidden: Tensor) -> Tensor:
        if self._markov is None or walk.state is None:
            return logits
        bias, walk.state = self._markov.bias(self._markov.embed(walk.previous_ids), hidden, walk.state)
        return logits + bias
