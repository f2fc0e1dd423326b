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
from blockdraft.drafters.block_runner import Blocks, make_runner
from blockdraft.drafters.config import DraftSampling
from blockdraft.drafters.draft_checkpoint import DraftCheckpoint
from blockdraft.drafters.token_choice import TokenChoice
from blockdraft.models.base import Target

MAX_PENDING_ROWS = 8192
"""More stored feature rows than this are projected at once: they are several times as wide as the context."""

TAIL_ROWS = 64
"""Fewer rows than this are copied together: kept one by one, they would hold the memory of whole passes, and every pass
would have to be given new."""


@dataclass
class BlockDraftState:
    """The context of one sequence, and the features that are not part of it yet."""

    cache: Any
    num_pending: int = 0
    """How many committed tokens wait to be projected."""
    _pieces: list[Tensor] = field(default_factory=list)
    _tail: Tensor | None = None
    _num_tail: int = 0

    def add_pending(self, rows: Tensor) -> None:
        """Store features. Shapes: rows [S, M*D]."""
        count = rows.shape[0]
        self.num_pending += count
        if self._tail is None or self._num_tail + count > TAIL_ROWS:
            self._close_tail()
        if count >= TAIL_ROWS:
            self._pieces.append(rows)
            return
        if self._tail is None:
            self._tail = rows.new_empty(TAIL_ROWS, rows.shape[1])
        self._tail[self._num_tail : self._num_tail + count] = rows
        self._num_tail += count

    def take_pending(self) -> list[Tensor]:
        """Return and forget the stored features, good until the next are stored. Shapes: pieces of [S, M*D]."""
        pieces, self._pieces = self._pieces, []
        if self._tail is not None and self._num_tail:
            pieces.append(self._tail[: self._num_tail])
        self.num_pending = self._num_tail = 0
        return pieces

    def _close_tail(self) -> None:
        if self._tail is not None and self._num_tail:
            self._pieces.append(self._tail[: self._num_tail])
            self._tail, self._num_tail = None, 0


class BlockDrafter(Drafter):
    """A drafter that predicts a block of tokens in one pass over the shared network."""

    def __init__(self, checkpoint: DraftCheckpoint, target: Target, draft_sampling: DraftSampling) -> None:
        self.config = checkpoint.config
        self._num_bytes = checkpoint.num_bytes
        self.choice = TokenChoice(self.config.vocab_size, draft_sampling, checkpoint.tensors.get("d2t"))
        self.runner = make_runner(checkpoint, target, self.choice.target_ids)

    def begin(self, prompt_ids: Sequence[int]) -> BlockDraftState:
        return BlockDraftState(cache=self.runner.new_cache(len(prompt_ids) + self.config.block_size))

    def observe(self, state: Any, observation: Observation) -> None:
        if observation.target_hidden is None or not observation.target_hidden.shape[0]:
            return
        state.add_pending(observation.target_hidden)
        if state.num_pending > MAX_PENDING_ROWS:
            self._absorb([state])

    def propose(self, asks: Sequence[Ask]) -> list[Proposal]:
        if not asks:
            return []
        counts = [min(ask.num_draft_tokens, self.config.max_draft_tokens) for ask in asks]
        for ask in asks:
            _check_features(ask)
        return self._draft(asks, counts)

    @torch.inference_mode()
    def _draft(self, asks: Sequence[Ask], counts: Sequence[int]) -> list[Proposal]:
        hidden, logits = self._run_block(asks, counts)
        return self._draw(asks, counts, hidden, logits)

    @abstractmethod
    def _draw(self, asks: Sequence[Ask], counts: Sequence[int], hidden: Tensor, logits: Tensor) -> list[Proposal]:
        """Choose the tokens. Shapes: hidden [T, D], logits [T, U] with T the sum of counts."""

    def _absorb(self, states: Sequence[BlockDraftState]) -> None:
        self.runner.extend_context([state.cache for state in states], [state.take_pending() for state in states])

    def _run_block(self, asks: Sequence[Ask], counts: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return hidden states [T, D] and logits [T, U] of the rows that predict."""
        hidden, logits = self.runner.predict(self._blocks(asks, counts))
        if self.config.output_multiplier != 1.0:
            logits = logits * self.config.output_multiplier
        if cap := self.config.logit_softcap:
            logits = torch.tanh(logits / cap) * cap
        return hidden, logits

    def _blocks(self, asks: Sequence[Ask], counts: Sequence[int]) -> Blocks:
        """Return the blocks that draft so many tokens for each sequence; their contexts take what is pending."""
        num_skipped = 0 if self.config.anchor.anchor_predicts else 1
        row_counts = [count + num_skipped for count in counts]
        ids: list[int] = []
        for ask, num_rows in zip(asks, row_counts, strict=True):
            ids += [ask.token_ids[-1]] + [self.config.mask_token_id] * (num_rows - 1)
        return Blocks(
            caches=[ask.state.cache for ask in asks],
            features=[ask.state.take_pending() for ask in asks],
            token_ids=ids,
            counts=row_counts,
            num_skipped=num_skipped,
        )

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
