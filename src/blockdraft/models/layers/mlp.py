"""The gated SiLU MLP of a decoder layer: one for all tokens, or a few of many experts for each.

Plain objects with fused weights instead of modules: a pass over thirty layers should not pay for thirty
times the bookkeeping of `nn.Module.__call__`.

Shape legend: T rows, D width, I intermediate width, E experts, A active experts of a row.
Ref: arXiv:2002.05202 (gated MLP); arXiv:1701.06538 (mixture of experts).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from blockdraft.models.layers.linear import linear


@dataclass(slots=True, kw_only=True)
class DenseMlp:
    """One MLP. Shapes: gate_up [2I, D], down [D, I], their biases [2I] and [D] or None."""

    gate_up: Tensor
    down: Tensor
    gate_up_bias: Tensor | None = None
    down_bias: Tensor | None = None

    def __call__(self, rows: Tensor) -> Tensor:
        """Shapes: rows [T, D]; returns [T, D]."""
        gate, up = linear(rows, self.gate_up, self.gate_up_bias).chunk(2, dim=-1)
        return linear(F.silu(gate).mul_(up), self.down, self.down_bias)


@dataclass(slots=True, kw_only=True)
class MoeMlp:
    """A router and its experts. Shapes: router [E, D], gate_up [E, 2I, D], down [E, D, I]."""

    router: Tensor
    gate_up: Tensor
    down: Tensor
    num_active: int
    normalize_weights: bool

    def __call__(self, rows: Tensor) -> Tensor:
        """Run each row through its most likely experts and add them up by weight.

        Shapes: rows [T, D]; returns [T, D]. Asks the device once how many rows each expert got.
        """
        num_rows, width = rows.shape
        probs = F.softmax(linear(rows, self.router), dim=-1, dtype=torch.float32)
        weights, experts = probs.topk(self.num_active, dim=-1)
        if self.normalize_weights:
            weights = weights / weights.sum(-1, keepdim=True)
        experts = experts.flatten()
        order = experts.argsort(stable=True)
        counts = experts.bincount(minlength=len(self.router)).tolist()
        gathered = rows[order // self.num_active]
        outputs = torch.cat(
            [self._expert(e, part) for e, part in enumerate(torch.split(gathered, counts)) if len(part)]
        )
        # Back to the order of rows instead of index_add: the sum then has one order, on every device.
        unsorted = torch.empty_like(outputs).index_copy_(0, order, outputs)
        unsorted = unsorted.view(num_rows, self.num_active, width)
        return (unsorted * weights.to(rows.dtype)[..., None]).sum(dim=1)

    def _expert(self, expert: int, rows: Tensor) -> Tensor:
        gate, up = linear(rows, self.gate_up[expert]).chunk(2, dim=-1)
        return linear(F.silu(gate).mul_(up), self.down[expert])
