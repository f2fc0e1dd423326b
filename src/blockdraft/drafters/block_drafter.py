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
import torch.nn.functional as F
from torch import Tensor

from blockdraft.cache import KVCache
from blockdraft.drafters.base import Ask, Drafter, Observation, Proposal
from blockdraft.drafters.block_network import BlockNetwork
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

    cache: KVCache
    pending: list[Tensor] = field(default_factory=list)

    @property
    def num_pending(self) -> int:
        """How many committed tokens wait to be projected."""
        return sum(len(rows) for rows in self.pending)

    def take_pending(self, empty: Tensor) -> Tensor:
        """Return and forget the stored features. Shapes: [S, M*D]; `empty` is returned if there are none."""
        rows, self.pending = self.pending, []
        return torch.cat(rows) if len(rows) > 1 else (rows or [empty])[0]


class BlockDrafter(Drafter):
    """A drafter that predicts a block of tokens in one pass over the shared network."""

    def __init__(self, checkpoint: DraftCheckpoint, target: Target, draft_sampling: DraftSampling) -> None:
        self.config = checkpoint.config
        self.network = BlockNetwork(checkpoint.config, checkpoint.tensors)
        self._embedding = target.embedding_weight
        self._num_bytes = checkpoint.num_bytes
        self.choice = TokenChoice(self.config.vocab_size, draft_sampling, checkpoint.tensors.get("d2t"))
        if self.choice.target_ids is None:
            self._head = target.head_weight
        elif self.config.borrows_head:
            self._head = target.head_weight[self.choice.target_ids]
        else:
            self._head = checkpoint.tensors["lm_head.weight"]

    def begin(self, prompt_ids: Sequence[int]) -> BlockDraftState:
        return BlockDraftState(cache=self.network.new_cache(len(prompt_ids) + self.config.block_size))

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
        hidden = self._run_block(asks, counts)
        return self._draw(asks, counts, hidden, self._logits(hidden))

    @abstractmethod
    def _draw(self, asks: Sequence[Ask], counts: Sequence[int], hidden: Tensor, logits: Tensor) -> list[Proposal]:
        """Choose the tokens. Shapes: hidden [T, D], logits [T, U] with T the sum of counts."""

    def _absorb(self, states: Sequence[BlockDraftState]) -> None:
        empty = self.network.fc.new_empty(0, self.network.fc.shape[1])
        self.network.extend_context([state.cache for state in states], [state.take_pending(empty) for state in states])

    def _run_block(self, asks: Sequence[Ask], counts: Sequence[int]) -> Tensor:
        """Return the hidden states of the rows that predict, [T, D]."""
        skipped = 0 if self.config.anchor.anchor_predicts else 1
        row_counts = [count + skipped for count in counts]
        ids: list[int] = []
        for ask, num_rows in zip(asks, row_counts, strict=True):
            ids += [ask.token_ids[-1]] + [self.config.mask_token_id] * (num_rows - 1)
        device = self.network.device
        embeddings = F.embedding(torch.tensor(ids, device=device), self._embedding) * self.config.input_embedding_scale
        hidden = self.network.run_block(embeddings, [ask.state.cache for ask in asks], row_counts)
        if not skipped:
            return hidden
        blocks = torch.split(hidden, row_counts)
        return torch.cat([block[skipped:] for block in blocks]) if len(blocks) > 1 else hidden[skipped:]

    def _logits(self, hidden: Tensor) -> Tensor:
        logits = F.linear(hidden, self._head.to(hidden.dtype))
        if self.config.output_multiplier != 1.0:
            logits = logits * self.config.output_multiplier
        if cap := self.config.logit_softcap:
            logits = torch.tanh(logits / cap) * cap
        return logits

    def describe(self) -> dict[str, object]:
        return {
            "name": self.traits.name,
            "draft_sampling": self.choice.draft_sampling,
            "max_draft_tokens": self.traits.max_draft_tokens,
            "weight_bytes": self._num_bytes,
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
