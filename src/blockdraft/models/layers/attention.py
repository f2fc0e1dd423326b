"""Attention of a few query rows over one sequence's cached keys and values.

Two habits keep a row's result independent of how many rows are computed beside it, on CPUs where the
library's kernels allow it (measured in benchmarks/row_invariance.py, not promised): the number of keys read
is padded to a multiple of ROW_MULTIPLE behind a mask, and the query heads that share a key/value head are
folded into rows of one product.

Shape legend: T query rows, S stored rows, N query heads, G key/value heads, H head size.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from blockdraft.cache import KVCache
from blockdraft.cache.rows import padded_length


def causal_mask(num_past: int, num_rows: int, device: torch.device, window: int | None = None) -> Tensor:
    """Return which stored rows each new row may see; row i stands at position num_past + i.

    With a window W a row sees itself and the W - 1 rows before it.

    Shapes: returns bool [num_rows, padded_length(num_past + num_rows)].
    """
    rows = torch.arange(num_past, num_past + num_rows, device=device)[:, None]
    stored = torch.arange(padded_length(num_past + num_rows), device=device)
    mask = stored <= rows
    return mask if window is None else mask & (stored > rows - window)


def block_mask(
    num_past: int, num_rows: int, device: torch.device, *, causal: bool, window: int | None = None
) -> Tensor:
    """Return what the rows of a draft block see: all earlier context and the block, in one or both directions.

    With a window W a row at position p sees no key at position p - W or before.

    Shapes: returns bool [num_rows, padded_length(num_past + num_rows)].
    """
    if causal:
        return causal_mask(num_past, num_rows, device, window)
    rows = torch.arange(num_past, num_past + num_rows, device=device)[:, None]
    stored = torch.arange(padded_length(num_past + num_rows), device=device)
    mask = (stored < num_past + num_rows).expand(num_rows, -1)
    return mask if window is None else mask & (stored > rows - window)


def attention_bias(mask: Tensor, group: int, dtype: torch.dtype) -> Tensor:
    """Return what `attend` adds to the scores for a mask: 0 or minus infinity, repeated for the heads of a group.

    `attend` makes this from a bool mask itself; made once for all layers of a pass, it saves operations in each.

    Shapes: mask bool [T, S], group = N / G; returns [R, S] with R = group * T; on a CPU in bfloat16 its `folded_rows`.
    """
    bias = torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(~mask, float("-inf")).repeat(group, 1)
    if dtype != torch.bfloat16 or mask.device.type != "cpu":
        return bias
    num_idle = folded_rows(len(bias)) - len(bias)
    return torch.cat((bias, bias[-1:].expand(num_idle, -1))) if num_idle else bias


def folded_rows(num_rows: int) -> int:
    """Return how many rows a CPU computes for `num_rows` that are wanted.

    Its kernel works on 32 rows at a time and computes one to three that are left over in another way, with other
    bits. Idle rows beside them avoid that.
    """
    left_over = num_rows % 32
    return num_rows + (4 - left_over if 0 < left_over < 4 else 0)


def attend(queries: Tensor, cache: KVCache, layer: int, mask: Tensor, scale: float | None = None) -> Tensor:
    """Attend over the rows of `layer` that `mask` spans; the new rows must have been written.

    Shapes: queries [T, N, H], mask bool [T, S] or its `attention_bias`; returns [T, N * H].
    """
    num_rows, num_heads, head_dim = queries.shape
    keys, values = cache.read(layer, mask.shape[1])
    num_kv_heads = keys.shape[0]
    group = num_heads // num_kv_heads
    bias = attention_bias(mask, group, queries.dtype) if mask.dtype == torch.bool else mask
    folded = queries.view(num_rows, num_kv_heads, group, head_dim).permute(1, 2, 0, 3)
    if len(bias) > group * num_rows:
        with_idle = queries.new_zeros(num_kv_heads, len(bias), head_dim)
        with_idle[:, : group * num_rows].view(folded.shape).copy_(folded)
        folded = with_idle
    folded = folded.reshape(1, num_kv_heads, len(bias), head_dim)
    output = F.scaled_dot_product_attention(folded, keys[None], values[None], attn_mask=bias, scale=scale)
    output = output[:, :, : group * num_rows].view(num_kv_heads, group, num_rows, head_dim).permute(2, 0, 1, 3)
    return output.reshape(num_rows, num_heads * head_dim)
