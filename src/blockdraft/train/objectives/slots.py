"""What objectives that predict the slots after an anchor have in common: labels, losses and their sums.

The network is trained, the target's embedding and head are not. Labels are the target's own: its distribution
over its most likely tokens at the place before the slot (`ce_labels = "soft"`), or a single token.

Shape legend: X texts, n blocks of a text, K slots of a block, R taught slots, D width, V vocabulary,
U draft vocabulary, c candidates.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from blockdraft.train.batches import BlockBatch
from blockdraft.train.head import picked_log_probs
from blockdraft.train.losses import acceptance_rate, cross_entropy, decay_weights, dpace_weights
from blockdraft.train.objectives.base import LossConfig, LossSums

BACKWARD_FACTOR = 3
"""A trained product costs itself again for its input's gradient and again for its weight's."""


@dataclass(frozen=True, kw_only=True)
class TargetTables:
    """What a drafter borrows from its target. Shapes: embedding [V, D]; head [V, D]."""

    embedding: Tensor
    head: Tensor


@dataclass(frozen=True, kw_only=True)
class TaughtSlots:
    """The slots that are taught, one after another.

    Shapes: hidden [R, D]; places [R], their index among all X*n*K; log_probs, target_probs [R, c].
    """

    hidden: Tensor
    places: Tensor
    log_probs: Tensor
    target_probs: Tensor


class SlotObjective(nn.Module):
    """Turns the hidden states of slots into losses; whoever inherits says where they come from."""

    def __init__(
        self,
        num_slots: int,
        vocab_size: int,
        tables: TargetTables,
        loss: LossConfig,
        *,
        draft_ids: Tensor | None,
        compute_dtype: torch.dtype,
        recompute_head: bool,
    ) -> None:
        """`draft_ids` [U] are the target ids of a reduced vocabulary; None for the whole."""
        super().__init__()
        self.num_slots, self.loss, self.recompute_head = num_slots, loss, recompute_head
        self.draft_ids = draft_ids
        self._embedding = tables.embedding.to(compute_dtype)
        head = tables.head if draft_ids is None else tables.head[draft_ids]
        self._head = head.to(compute_dtype)
        self._draft_places: Tensor | None = None
        if draft_ids is not None:
            places = torch.full((vocab_size,), -1, dtype=torch.long, device=draft_ids.device)
            places[draft_ids] = torch.arange(len(draft_ids), device=draft_ids.device)
            self._draft_places = places

    def forward(self, batch: BlockBatch) -> LossSums:
        """Return the sums of a batch."""
        hidden = self._slot_hidden(batch)
        slots = self._teach(hidden, batch)
        ce = cross_entropy(slots.log_probs, slots.target_probs)
        accepted = acceptance_rate(slots.log_probs, self._accepted_probs(batch, slots))
        weights = self._slot_weights(batch, ce, slots.places)
        loss = (weights * (self.loss.ce * ce + self.loss.tv * (1 - accepted))).sum()
        metrics = {"ce": (weights * ce).sum().detach(), "acceptance": (weights * accepted).sum().detach()}
        extra, extra_metrics = self._extra_terms(batch, slots, accepted.detach(), weights)
        if extra is not None:
            loss = loss + extra
        reached = batch.is_supervised.flatten(0, 1).sum(0)
        kept = torch.zeros(batch.is_supervised.numel(), device=accepted.device)
        kept = kept.index_copy(0, slots.places, accepted.detach()).view(-1, self.num_slots).sum(0)
        return LossSums(
            loss=loss,
            weight=self.weight_of(batch),
            metrics=metrics | extra_metrics,
            reached=reached,
            accepted=kept,
        )

    @property
    def sharded_layers(self) -> list[nn.Module]:
        """Return the modules that several processes gather one after another; the rest is gathered at once."""
        return []

    @abstractmethod
    def _slot_hidden(self, batch: BlockBatch) -> Tensor:
        """Return the rows that predict, [X, n, K, D]."""

    def _teach(self, hidden: Tensor, batch: BlockBatch) -> TaughtSlots:
        places = batch.is_supervised.flatten().nonzero()[:, 0]
        rows = hidden.reshape(-1, hidden.shape[-1])[places]
        ids, probs = self._labels(batch, places)
        before, table = self._markov(batch, places)
        log_probs = picked_log_probs(rows, self._head, ids, before=before, table=table, recompute=self.recompute_head)
        return TaughtSlots(hidden=rows, places=places, log_probs=log_probs, target_probs=probs)

    def _markov(self, batch: BlockBatch, places: Tensor) -> tuple[Tensor, Tensor] | tuple[None, None]:
        """Return what a Markov head adds to the logits, as two factors: [R, r] and [U, r]."""
        return None, None

    def _labels(self, batch: BlockBatch, places: Tensor) -> tuple[Tensor, Tensor]:
        """Return draft ids and label probabilities [R, c]; what cannot be drafted has probability 0."""
        ids = batch.candidate_ids.flatten(0, 2)[places]
        probs = batch.candidate_probs.flatten(0, 2)[places]
        if self.loss.ce_labels == "token":
            ids = torch.cat((batch.label_ids.flatten()[places][:, None], ids), dim=-1)
            probs = torch.cat((torch.ones_like(probs[:, :1]), torch.zeros_like(probs)), dim=-1)
        elif self.loss.ce_labels == "top1":
            probs = torch.cat((torch.ones_like(probs[:, :1]), torch.zeros_like(probs[:, 1:])), dim=-1)
        return self._drafted(ids, probs)

    def _accepted_probs(self, batch: BlockBatch, slots: TaughtSlots) -> Tensor:
        """Return the target's probabilities of the picked columns [R, c], whatever the labels are."""
        if self.loss.ce_labels == "soft":
            return slots.target_probs
        ids = batch.candidate_ids.flatten(0, 2)[slots.places]
        probs = batch.candidate_probs.flatten(0, 2)[slots.places]
        if self.loss.ce_labels == "token":
            probs = torch.cat((torch.zeros_like(probs[:, :1]), probs), dim=-1)
            ids = torch.cat((ids[:, :1], ids), dim=-1)
        return self._drafted(ids, probs)[1]

    def _drafted(self, ids: Tensor, probs: Tensor) -> tuple[Tensor, Tensor]:
        if self._draft_places is None:
            return ids, probs
        places = self._draft_places[ids]
        return places.clamp_min(0), probs.masked_fill(places < 0, 0.0)

    def _slot_weights(self, batch: BlockBatch, ce: Tensor, places: Tensor) -> Tensor:
        """Return the weight of each taught slot, [R]."""
        if self.loss.slot_weights != "dpace":
            return self._fixed_weights(batch).flatten()[places]
        wide = torch.zeros(batch.is_supervised.numel(), device=ce.device).index_copy(0, places, ce.detach())
        wide = wide.view(-1, self.num_slots)
        return dpace_weights(wide, batch.is_supervised.flatten(0, 1), self.loss.dpace_alpha).flatten()[places]

    def _fixed_weights(self, batch: BlockBatch) -> Tensor:
        gamma = self.loss.gamma if self.loss.slot_weights == "decay" else None
        return decay_weights(self.num_slots, gamma, batch.anchors.device) * batch.is_supervised

    def _extra_terms(
        self, batch: BlockBatch, slots: TaughtSlots, accepted: Tensor, weights: Tensor
    ) -> tuple[Tensor | None, dict[str, Tensor]]:
        """Return further terms of the loss and their sums."""
        return None, {}

    def weight_of(self, batch: BlockBatch) -> float:
        """Return the sum of the slot weights; D-PACE's own depend on the loss, so its slots count one each."""
        return float(self._fixed_weights(batch).sum())

    def _head_products(self) -> int:
        return 2 * self._head.numel()  # the head is not trained: no product for its own gradient

    def _vocabulary_tensors(self) -> dict[str, Tensor]:
        """Return what a checkpoint with a reduced vocabulary brings along."""
        if self.draft_ids is None:
            return {}
        offsets = self.draft_ids - torch.arange(len(self.draft_ids), device=self.draft_ids.device)
        return {"lm_head.weight": self._head, "d2t": offsets}
