"""DFlash: all tokens of a block are predicted at once, each slot from its own row.

In the published layout row j of the block predicts the token of its own position, so the anchor's row is
discarded; DeepSpec's DFlash checkpoints use the anchor-first layout of DSpark. Slots do not see each other's
tokens: every slot has a distribution of its own, and confidence is the mass of its most likely token.

Ref: arXiv:2602.06036.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from blockdraft.core.sampling import greedy_ids
from blockdraft.drafters.base import Ask, DrafterTraits, Proposal
from blockdraft.drafters.block_drafter import BlockDrafter
from blockdraft.drafters.config import DraftSampling
from blockdraft.drafters.draft_checkpoint import DraftCheckpoint, load_draft_checkpoint
from blockdraft.errors import ConfigError
from blockdraft.models.base import Target


class DFlashDrafter(BlockDrafter):
    """Drafts a block in one pass, slots independent of each other."""

    def __init__(
        self,
        checkpoint: DraftCheckpoint,
        target: Target,
        *,
        draft_sampling: DraftSampling = "probabilistic",
        with_confidence: bool = False,
    ) -> None:
        if checkpoint.config.kind != "draft-dflash":
            raise ConfigError("this checkpoint holds a DSpark drafter; use --spec-type draft-dspark")
        super().__init__(checkpoint, target, draft_sampling)
        self._traits = DrafterTraits(
            name="draft-dflash",
            max_draft_tokens=self.config.max_draft_tokens,
            target_layer_ids=self.config.target_layer_ids,
            is_deterministic=draft_sampling == "greedy",
            has_confidence=with_confidence,
        )

    @classmethod
    def load(
        cls,
        path: Path,
        target: Target,
        *,
        draft_sampling: DraftSampling = "probabilistic",
        with_confidence: bool = False,
    ) -> DFlashDrafter:
        """Load a checkpoint folder for a target.

        Raises:
            ModelError: the checkpoint is broken or not supported.
            PairError: it was made for another target.
            ConfigError: it is not a DFlash drafter, or `draft_sampling` is unknown.
        """
        checkpoint = load_draft_checkpoint(path, target.info)
        return cls(checkpoint, target, draft_sampling=draft_sampling, with_confidence=with_confidence)

    @property
    def traits(self) -> DrafterTraits:
        return self._traits

    def _draw(self, asks: Sequence[Ask], counts: Sequence[int], hidden: Tensor, logits: Tensor) -> list[Proposal]:
        confidence = None
        if self._traits.has_confidence:
            confidence = torch.softmax(logits.float(), dim=-1).amax(-1).tolist()
        all_probs: list[Tensor | None] = [None] * len(asks)
        if any(self.choice.is_sampled(ask) for ask in asks):
            chosen = []
            blocks = zip(
                asks, torch.split(logits, list(counts)), self.choice.draws(asks, counts, logits.device), strict=True
            )
            for index, (ask, rows, draws) in enumerate(blocks):
                if self.choice.is_sampled(ask):
                    ids, probs = self.choice.sample(rows, ask, draws)
                    all_probs[index] = self.choice.to_target_probs(probs)
                else:
                    ids = greedy_ids(rows)
                chosen.append(ids)
            draft_ids = torch.cat(chosen)
        else:
            draft_ids = greedy_ids(logits)
        packed = self.choice.to_target_ids(draft_ids).tolist()
        proposals, start = [], 0
        for count, probs_or_none in zip(counts, all_probs, strict=True):
            block = slice(start, start + count)
            proposals.append(
                Proposal(
                    draft_ids=tuple(packed[block]),
                    draft_probs=probs_or_none,
                    confidence=None if confidence is None else tuple(confidence[block]),
                    drafter=self._traits.name,
                )
            )
            start += count
        return proposals
