"""The output head of training: log-probabilities of a few tokens per row, without keeping a row of logits alive.

A loss needs the probabilities of the target's candidates and of the label, out of thousands of columns. The
forward pass makes logits for some rows at a time, keeps the softmax (or nothing, and makes it again), and
picks; the backward pass is a matrix product per trained or traversed side. The head itself is the target's and
gets no gradient; a Markov head's table does.

Shape legend: R rows, D width, r Markov rank, U draft vocabulary, c picked tokens.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

ROWS_PER_CHUNK = 512


def picked_log_probs(
    hidden: Tensor,
    head: Tensor,
    picked_ids: Tensor,
    *,
    before: Tensor | None = None,
    table: Tensor | None = None,
    recompute: bool = False,
) -> Tensor:
    """Return log softmax(hidden @ head.T + before @ table.T) at some columns.

    `recompute` keeps no probabilities for the backward pass and makes them again: less memory, more arithmetic.

    Shapes: hidden [R, D], head [U, D], picked_ids [R, c] in [0, U), before [R, r] and table [U, r] or neither;
    returns [R, c] in float32.
    """
    result: Tensor = _PickedLogProbs.apply(  # type: ignore[no-untyped-call]
        hidden, head.detach(), picked_ids, before, table, recompute
    )
    return result


class _PickedLogProbs(torch.autograd.Function):
    @staticmethod
    def forward(  # noqa: PLR0917 - autograd passes arguments by position
        ctx: Any,
        hidden: Tensor,
        head: Tensor,
        picked_ids: Tensor,
        before: Tensor | None,
        table: Tensor | None,
        recompute: bool,
    ) -> Tensor:
        # One product for both parts: the bias of a Markov head is further columns of the head's input.
        rows = hidden.contiguous() if before is None else torch.cat((hidden, before), dim=-1)
        weight = head if table is None else torch.cat((head, table), dim=-1)
        keeps = any(ctx.needs_input_grad) and not recompute
        probs, picked = [], []
        for chunk, ids in zip(torch.split(rows, ROWS_PER_CHUNK), torch.split(picked_ids, ROWS_PER_CHUNK), strict=True):
            chunk_probs, chunk_picked = _softmax(chunk, weight, ids)
            picked.append(chunk_picked)
            if keeps:
                probs.append(chunk_probs)
        ctx.save_for_backward(rows, weight, picked_ids, *probs)
        ctx.width = hidden.shape[1]
        ctx.has_table = table is not None
        return torch.cat(picked)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        rows, weight, picked_ids, *kept = ctx.saved_tensors
        D = ctx.width
        rows_grad = torch.empty_like(rows)
        table_grad = torch.zeros_like(weight[:, D:], dtype=torch.float32) if ctx.has_table else None
        start = 0
        chunks = zip(torch.split(grads[0], ROWS_PER_CHUNK), torch.split(picked_ids, ROWS_PER_CHUNK), strict=True)
        for index, (grad, ids) in enumerate(chunks):
            span = slice(start, start + len(grad))
            probs = kept[index] if kept else _softmax(rows[span], weight, ids)[0]
            # d/dz sum(g_i * log p_i) = g - sum(g) * p. The gradient of the logits replaces the probabilities.
            logits_grad = probs.mul_(-grad.sum(-1, keepdim=True).to(probs.dtype))
            places = ids + torch.arange(len(ids), device=ids.device)[:, None] * probs.shape[1]
            logits_grad.view(-1).index_add_(0, places.flatten(), grad.flatten().to(probs.dtype))
            rows_grad[span] = logits_grad @ weight
            if table_grad is not None:
                table_grad += logits_grad.t() @ rows[span, D:]
            start += len(grad)
        if table_grad is None:
            return rows_grad, None, None, None, None, None
        return rows_grad[:, :D], None, None, rows_grad[:, D:], table_grad.to(weight.dtype), None


def _softmax(rows: Tensor, weight: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Return the probabilities of a chunk in its own dtype, and the picked log-probabilities in float32."""
    logits = F.linear(rows, weight)
    picked = logits.gather(1, ids).float()
    probs = torch.softmax(logits, dim=-1)
    # The log-sum is read off a column: a probability keeps its relative precision however small it is.
    highest, place = picked.max(dim=-1, keepdim=True)
    tiny = torch.finfo(probs.dtype).tiny
    log_sum = highest - probs.gather(1, ids.gather(1, place)).float().clamp_min(tiny).log()
    return probs, picked - log_sum
