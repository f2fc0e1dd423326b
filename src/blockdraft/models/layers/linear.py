"""Matrix products whose rows keep their bits, alone or beside others, where the CPU's kernels allow it."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

_WIDEST_ALONE = 1024
"""Up to this many inputs the CPU's bfloat16 kernels add up a row alone in the order in which they add up several."""


def linear(rows: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return `F.linear`; on a CPU in bfloat16 a wide row that is alone is computed beside itself.

    Without it a few results of a row alone are rounded otherwise than the same row's in a block, on processors with
    AVX-512 bfloat16 and no AMX (docs/adr/0006). The second result is thrown away; the weights are read once for both.

    Shapes: rows [T, I], weight [O, I], bias [O]; returns [T, O].
    """
    if len(rows) == 1 and rows.shape[1] > _WIDEST_ALONE and rows.dtype == torch.bfloat16 and rows.device.type == "cpu":
        return F.linear(rows.expand(2, -1), weight, bias)[:1]
    return F.linear(rows, weight, bias)
