"""The terms of a drafter's loss, slot by slot.

Everything here works on the picked columns alone: the target's candidates and the label. A slot's acceptance
rate under rejection sampling is sum(min(p, q)), which is one minus the total variation distance; candidates
that are not stored count as never accepted, so it is a lower bound.

Shape legend: R blocks, K slots of a block, c candidates.
Ref: arXiv:2607.05147 (DSpark: total variation, confidence), arXiv:2605.18810 (D-PACE).
"""

from __future__ import annotations

import torch
from torch import Tensor


def decay_weights(num_slots: int, gamma: float | None, device: torch.device) -> Tensor:
    """Return exp(-k / gamma) for the slots k = 0, 1, ..., or ones without gamma. Shapes: [K]."""
    slots = torch.arange(num_slots, dtype=torch.float32, device=device)
    return torch.ones_like(slots) if gamma is None else torch.exp(-slots / gamma)


def dpace_weights(cross_entropy: Tensor, is_supervised: Tensor, alpha: float) -> Tensor:
    """Return D-PACE's weights: how much of the expected length hangs on each slot, with smoothed confidence.

    Shapes: cross_entropy and is_supervised [R, K]; returns [R, K], without gradient.
    """
    confidence = torch.exp(-cross_entropy.detach()).masked_fill(~is_supervised, 0.0)
    reached = torch.cumprod((1 - alpha) * confidence + alpha, dim=-1) * is_supervised
    return reached.flip(-1).cumsum(-1).flip(-1)


def cross_entropy(log_probs: Tensor, target_probs: Tensor) -> Tensor:
    """Return the cross entropy with the target's candidates, renormalised over those that can be drafted.

    Shapes: log_probs and target_probs [R, K, c], zero where a candidate cannot be drafted; returns [R, K].
    """
    mass = target_probs.sum(-1).clamp_min(torch.finfo(target_probs.dtype).tiny)
    return -(target_probs * log_probs).sum(-1) / mass


def acceptance_rate(log_probs: Tensor, target_probs: Tensor) -> Tensor:
    """Return sum(min(p, q)) over the candidates. Shapes: both [R, K, c]; returns [R, K]."""
    return torch.minimum(log_probs.exp(), target_probs).sum(-1)
