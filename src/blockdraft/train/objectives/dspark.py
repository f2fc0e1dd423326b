"""DSpark's objective: DFlash's, with the token before each slot known, and a confidence head.

The Markov head is taught with the text's own tokens: slot k sees the true token before it. The confidence head
learns the analytic acceptance rate of its slot; it reads the network's hidden states without changing them.

Shape legend: R taught slots, D width, r Markov rank, U draft vocabulary, V vocabulary.
Ref: arXiv:2607.05147, section 3.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from blockdraft.drafters.block_config import BlockDraftConfig
from blockdraft.errors import ConfigError
from blockdraft.train.batches import BlockBatch
from blockdraft.train.objectives.base import LossConfig
from blockdraft.train.objectives.dflash import DFlashObjective
from blockdraft.train.objectives.slots import TargetTables, TaughtSlots


class DSparkObjective(DFlashObjective):
    """The DFlash network with a Markov head and a confidence head."""

    def __init__(self, config: BlockDraftConfig, tables: TargetTables, loss: LossConfig, **options: Any) -> None:
        super().__init__(config, tables, loss, **options)
        if config.markov_rank and config.markov_head_type != "vanilla":
            raise ConfigError(f"a {config.markov_head_type} Markov head cannot be trained; use markov_head = 'vanilla'")
        U, r = len(self._head), config.markov_rank
        self.markov_w1 = nn.Parameter(torch.randn(config.vocab_size, r) * 0.01) if r else None
        self.markov_w2 = nn.Parameter(torch.zeros(U, r)) if r else None
        self.confidence: nn.Linear | None = None
        if config.confidence_head != "none":
            width = config.hidden_size + (r if config.confidence_head == "hidden+markov" else 0)
            self.confidence = nn.Linear(width, 1)
            nn.init.zeros_(self.confidence.weight)
            nn.init.zeros_(self.confidence.bias)

    def _markov(self, batch: BlockBatch, places: Tensor) -> tuple[Tensor, Tensor] | tuple[None, None]:
        if self.markov_w2 is None:
            return None, None
        return self._previous(batch, places).to(self._head.dtype), self.markov_w2.to(self._head.dtype)

    def _previous(self, batch: BlockBatch, places: Tensor) -> Tensor:
        """Return the Markov embedding of the token before each slot, [R, r]."""
        assert self.markov_w1 is not None
        return F.embedding(batch.previous_ids.flatten()[places], self.markov_w1)

    def _extra_terms(
        self, batch: BlockBatch, slots: TaughtSlots, accepted: Tensor, weights: Tensor
    ) -> tuple[Tensor | None, dict[str, Tensor]]:
        if self.confidence is None:
            return None, {}
        seen = slots.hidden.detach().float()
        if self.config.confidence_head == "hidden+markov":
            seen = torch.cat((seen, self._previous(batch, slots.places).detach().float()), dim=-1)
        logits = self.confidence(seen)[:, 0]
        bce = F.binary_cross_entropy_with_logits(logits, accepted.clamp(0, 1), reduction="none")
        error = (torch.sigmoid(logits.detach()) - accepted).abs()
        term = (weights * bce).sum()
        sums = {"confidence_bce": term.detach(), "confidence_error": (weights * error).sum()}
        return self.loss.confidence * term, sums

    def _head_products(self) -> int:
        markov = 0 if self.markov_w2 is None else self.markov_w2.numel()
        return 2 * self._head.numel() + 3 * markov

    def draft_tensors(self) -> dict[str, Tensor]:
        """Return the trained tensors by the names of checkpoints, in float32."""
        tensors = super().draft_tensors()
        if self.markov_w1 is not None and self.markov_w2 is not None:
            tensors["markov_head.markov_w1.weight"] = self.markov_w1.detach()
            tensors["markov_head.markov_w2.weight"] = self.markov_w2.detach()
        if self.confidence is not None:
            tensors["confidence_head.proj.weight"] = self.confidence.weight.detach()
            tensors["confidence_head.proj.bias"] = self.confidence.bias.detach()
        return tensors
