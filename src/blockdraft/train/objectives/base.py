"""What every objective gives to the trainer.

An objective is the trained module as a whole: it owns the network and its heads, and turns a batch into sums.
Sums, not means, because a step may be made of several batches on several processes: the trainer divides by the
weight of all of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor

from blockdraft.train.batches import BlockBatch


@dataclass(frozen=True, kw_only=True)
class LossConfig:
    """The weights of the terms of a loss, and how slots are weighted against each other."""

    ce: float = 1.0
    """Cross entropy."""
    ce_labels: str = "soft"
    """"soft": the target's own distribution on its top tokens; "top1": its most likely token; "token": the text's."""
    tv: float = 0.0
    """Total variation: one minus the acceptance rate under rejection sampling."""
    confidence: float = 1.0
    """Cross entropy of the confidence head with the acceptance rate (DSpark)."""
    slot_weights: str = "decay"
    """"decay": exp(-k / gamma); "dpace": by how much of the expected length hangs on a slot; "equal"."""
    gamma: float = 4.0
    dpace_alpha: float = 0.5


@dataclass(kw_only=True)
class LossSums:
    """What a batch adds to a step. `loss` carries the gradient; all are sums weighted like `weight`."""

    loss: Tensor
    weight: float
    """The sum of the slot weights, which all losses are to be divided by."""
    metrics: dict[str, Tensor] = field(default_factory=dict)
    """Sums of further terms, without gradient."""
    reached: Tensor | None = None
    accepted: Tensor | None = None
    """[K] each: blocks whose slot k is taught, and the sum of their chances to keep it, given those before it."""


class Objective(Protocol):
    """A module with trainable parameters that can be called with a batch."""

    num_slots: int

    def __call__(self, batch: BlockBatch) -> LossSums:
        """Return the sums of a batch."""
        ...

    def weight_of(self, batch: BlockBatch) -> float:
        """Return `LossSums.weight` without computing the loss."""
        ...

    def flops(self, batch: BlockBatch) -> float:
        """Return the arithmetic of the model's matrix products for one training step, forward and backward."""
        ...

    def draft_tensors(self) -> dict[str, Any]:
        """Return the trained tensors by the names of checkpoints."""
        ...
