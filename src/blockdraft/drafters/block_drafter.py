"""What DFlash and DSpark do alike: collect the target's features, run the block, hand its rows to a drawing rule.

Features are stored when they are observed and projected when a proposal is asked for, so a sequence whose
drafts come from elsewhere in a chain costs nothing here.

Shape legend: T packed rows that predict, K draft tokens of one sequence, S feature rows, M tapped target
layers, D width, U draft vocabulary (the target's unless reduced).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from blockdraft.drafters.base import Ask, Drafter, Observation, Proposal
from blockdraft.drafters.block_runner import make_runner
from blockdraft.drafters.config import DraftSampling
from blockdraft.drafters.draft_checkpoint import DraftCheckpoint
from blockdraft.drafters.token_choice import TokenChoice
from blockdraft.models.base import Target

MAX_PENDING_ROWS = 8192
"""More stored feature rows than this are projected at once: they are several times as wide as the context."""

MAX_PENDING_PIECES = 64
"""So are more stored pieces than this: each keeps the features of its whole pass, rejected rows too, in memory."""


@dataclass
class BlockDraftState:
    """The context of one sequence, and the features that are not part of it yet."""

    cache: Any
    pending: list[Tensor] = field(default_factory=list)

    @property
    def num_pending(self) -> int:
        """How many committed tokens wait to be projected."""
        return sum(len(rows) for rows in self.pending)

    def take_pending(self) -> list[Tensor]:
        """Return and forget the stored features. Shapes: pieces of [S, M*D]."""
        pieces, self.pending = self.pending, []
        return pieces


class BlockDrafter(Drafter):
    """A drafter that predicts a block of tokens in one pass over the shared network."""

    def __init__(self, checkpoint: DraftCheckpoint, target: Target, draft_sampling: DraftSampling) -> None:
        self.config = checkpoint.config
        self._num_bytes = checkpoint.num_bytes
        self.choice = TokenChoice(self.config.vocab_size, draft_sampling, checkpoint.tensors.get("d2t"))
        self.runner = make_runner(checkpoint, target, self.choice.target_ids)

    def begin(self, prompt_ids: Sequence[int]) -> BlockDraftState:
        return BlockDraftState(cache=self.runner.new_cache(len(prompt_ids) + self.config.block_size))

    @torch.inference_mode()
    def observe(self, state: Any, observation: Observation) -> None:
        if observation.target_hidden is None or not len(observation.target_hidden):
            return
        state.pending.append(observation.target_hidden)
        if len(state.pending) > MAX_PENDING_PIECES or state.num_pending > MAX_PENDING_ROWS:
            self._absorb([state])

    @torch.inference_mode()
    def propose(self, asks: Sequence[Ask]) -> list[Proposal]:
        if not asks:
            return []
        counts = [min(ask.num_draft_tokens, self.config.max_draft_tokens) for ask in asks]
        for ask in asks:
            _check_features(ask)
        self._absorb([ask.state for ask in asks])
        hidden, logits = self._run_block(asks, counts)
        return self._draw(asks, counts, hidden, logits)

    @abstractmethod
    def _draw(self, asks: Sequence[Ask], counts: Sequence[int], hidden: Tensor, logits: Tensor) -> list[Proposal]:
        """Choose the tokens. Shapes: hidden [T, D], logits [T, U] with T the sum of counts."""

    def _absorb(self, states: Sequence[BlockDraftState]) -> None:
        self.runner.extend_context([state.cache for state in states], [state.take_pending() for state in states])

    def _run_block(self, asks: Sequence[Ask], counts: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return hidden states [T, D] and logits [T, U] of the rows that predict."""
        num_skipped = 0 if self.config.anchor.anchor_predicts else 1
        row_counts = [count + num_skipped for count in counts]
        ids: list[int] = []
        for ask, num_rows in zip(asks, row_counts, strict=True):
            ids += [ask.token_ids[-1]] + [self.config.mask_token_id] * (num_rows - 1)
        hidden, logits = self.runner.predict(ids, [ask.state.cache for ask in asks], row_counts, num_skipped)
        if self.config.output_multiplier != 1.0:
            logits = logits * self.config.output_multiplier
        if cap := self.config.logit_softcap:
            logits = torch.tanh(logits / cap) * cap
        return hidden, logits

    def describe(self) -> dict[str, object]:
        return {
            "name": self.traits.name,
            "draft_sampling": self.choice.draft_sampling,
            "max_draft_tokens": self.traits.max_draft_tokens,
            "weight_bytes": self._num_bytes,
            "kernels": self.runner.kernels,
            **self.config.to_dict(),
        }


def _check_features(ask: Ask) -> None:
    state: BlockDraftState = ask.state
    held, needed = state.cache.length + state.num_pending, len(ask.token_ids) - 1
    if held != needed:
        raise RuntimeError(
            f"internal error: the block drafter holds target features of {held} tokens, but {needed} precede the "
            "anchor; every pass of the target must be observed with its tapped hidden states"
        )
