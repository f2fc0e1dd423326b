"""The output head of training: log-probabilities of a few tokens per row, without keeping a row of logits alive.

A loss needs the probabilities of the target's candidates and of the label, out of thousands of columns. The
forward pass makes logits for some rows at a time, keeps the softmax (or nothing, and makes it again), and
picks; the backward pass is two matrix products and a scatter.

Shape legend: R rows, W inputs (width, plus the rank of a Markov head), U draft vocabulary, c picked tokens.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

ROWS_PER_CHUNK = 512


def picked_log_probs(rows: Tensor, weight: Tensor, picked_ids: Tensor, *, recompute: bool = False) -> Tensor:
    """Return log softmax(rows @ weight.T) at some columns.

    `recompute` keeps no probabilities for the backward pass and makes them again: less memory, more arithmetic.

    Shapes: rows [R, W], weight [U, W], picked_ids [R, c] in [0, U); returns [R, c] in float32.
    """
    result: Tensor = _PickedLogProbs.apply(rows, weight, picked_ids, recompute)
    return result


class _PickedLogProbs(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, picked_ids: Tensor, recompute: bool) -> Tensor:
        # An embedding view of many rows arrives as it is; a product with one that is not contiguous is slow.
        rows = rows.contiguous()
        keeps = any(ctx.needs_input_grad) and not recompute
        probs, picked = [], []
        for chunk, ids in zip(rows.split(ROWS_PER_CHUNK), picked_ids.split(ROWS_PER_CHUNK), strict=True):
            chunk_probs, chunk_picked = _softmax(chunk, weight, ids)
            picked.append(chunk_picked)
            if keeps:
                probs.append(chunk_probs)
        ctx.save_for_backward(rows, weight, picked_ids, *probs)
        return torch.cat(picked)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        rows, weight, picked_ids, *kept = ctx.saved_tensors
        needs_rows, needs_weight = ctx.needs_input_grad[:2]
        rows_grad = torch.empty_like(rows) if needs_rows else None
        weight_grad = torch.zeros(weight.shape, dtype=torch.float32, device=weight.device) if needs_weight else None
        start = 0
        chunks = zip(grads[0].split(ROWS_PER_CHUNK), picked_ids.split(ROWS_PER_CHUNK), strict=True)
        for index, (grad, ids) in enumerate(chunks):
            span = slice(start, start + len(grad))
            probs = kept[index] if kept else _softmax(rows[span], weight, ids)[0]
            # d/dz sum(g_i * log p_i) = g - sum(g) * p. The gradient of the logits replaces the probabilities.
            logits_grad = probs.mul_(-grad.sum(-1, keepdim=True).to(probs.dtype))
            logits_grad.scatter_add_(1, ids, grad.to(probs.dtype))
            if rows_grad is not None:
                rows_grad[span] = logits_grad @ weight
            if weight_grad is not None:
                weight_grad += logits_grad.t() @ rows[span]
            start += len(grad)
        return rows_grad, None if weight_grad is None else weight_grad.to(weight.dtype), None, None


def _softmax(rows: Tensor, weight: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Return the probabilities of a chunk in its own dtype, and the picked log-probabilities in float32."""
    logits = F.linear(rows, weight)
    probs = torch.softmax(logits, dim=-1)
    # The log-sum is read off the largest column, whose probability is the best conditioned one.
    highest, place = logits.max(dim=-1, keepdim=True)
    log_sum = highest.float() - probs.gather(1, place).float().log()
    return probs, logits.gather(1, ids).float() - log_sum
