"""Norm and rotation with backward passes of their own: on a CPU, small operations cost more than the products.

Both are what the serving code computes (`F.rms_norm`, `apply_rope`), with a third of the passes over memory.

Shape legend: T rows, N heads, D width, H head size.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def rms_norm(rows: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return rows / rms(rows) * weight. Shapes: rows [..., D], weight [D]."""
    result: Tensor = _RmsNorm.apply(rows, weight, eps)  # type: ignore[no-untyped-call]
    return result


class _RmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, eps: float) -> Tensor:
        norms = torch.linalg.vector_norm(
            rows, dim=-1, keepdim=True, dtype=torch.promote_types(rows.dtype, torch.float32)
        )
        scale = torch.rsqrt(norms.square() / rows.shape[-1] + eps).to(rows.dtype)
        normed = rows * scale
        ctx.save_for_backward(normed, weight, scale)
        return normed * weight

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        normed, weight, scale = ctx.saved_tensors
        (grad,) = grads
        product = grad * normed
        weight_grad = product.flatten(0, -2).sum(0, dtype=torch.promote_types(product.dtype, torch.float32))
        # d/dx of x / rms(x) projects the gradient off the normed row.
        along = product.matmul(weight[:, None]) / normed.shape[-1]
        rows_grad = (grad * weight).addcmul_(normed, along, value=-1).mul_(scale)
        return rows_grad, weight_grad.to(weight.dtype), None


def rotate(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate all channels of each head. Shapes: heads [T, N, H]; cos and sin [T, 1, H], halves alike."""
    result: Tensor = _Rotation.apply(heads, cos, sin)  # type: ignore[no-untyped-call]
    return result


class _Rotation(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return _rotated(heads, cos, sin)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        cos, sin = ctx.saved_tensors
        return _rotated(grads[0], cos, -sin), None, None  # a rotation is undone by turning back


def _rotated(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = heads.shape[-1] // 2
    result = heads * cos
    result[..., :half].addcmul_(heads[..., half:], sin[..., :half], value=-1)
    result[..., half:].addcmul_(heads[..., :half], sin[..., half:])
    return result
