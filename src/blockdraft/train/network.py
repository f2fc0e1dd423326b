"""The DFlash network with gradients: all blocks of several texts in one pass.

It computes what `drafters.block_network` computes when serving, arranged for training: the context of a text is
projected once, and every block of that text attends to the part of it before its own anchor. Weights are kept
in float32 and computed in `compute_dtype`; their names are those of the checkpoints.

Shape legend: X texts, S context rows, n blocks of a text, B rows of a block, L draft layers, M tapped layers,
D width, F MLP width, N query heads, G key/value heads, H head size.
Ref: arXiv:2602.06036.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from blockdraft.drafters.block_config import BlockDraftConfig, LayerAttention
from blockdraft.models.layers.rope import Rope
from blockdraft.train.functions import rms_norm, rotate

Cast = Callable[[Tensor], Tensor]

_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_pytorch_tanh": lambda gate: F.gelu(gate, approximate="tanh"),
}


class BlockModel(nn.Module):
    """`fc`, `hidden_norm`, the draft layers and `norm`."""

    def __init__(
        self, config: BlockDraftConfig, *, compute_dtype: torch.dtype, use_checkpointing: bool = False
    ) -> None:
        super().__init__()
        self.config, self.compute_dtype, self.use_checkpointing = config, compute_dtype, use_checkpointing
        self.fc = _matrix(config.hidden_size, len(config.target_layer_ids) * config.hidden_size)
        self.hidden_norm, self.norm = _vector(config.hidden_size), _vector(config.hidden_size)
        self.layers = nn.ModuleList(_DraftLayer(config, attention) for attention in config.layers)
        self._rope: Rope | None = None

    def forward(self, features: Tensor, block_embeddings: Tensor, anchors: Tensor) -> Tensor:
        """Return the normalised hidden states of all block rows.

        Shapes: features [X, S, M*D]; block_embeddings [X, n, B, D]; anchors [X, n], the place of each block's
        first row in its text; returns [X, n, B, D].
        """
        context = self._norm(F.linear(features.to(self.compute_dtype), self._cast(self.fc)), self.hidden_norm)
        places = _Places(self._rope_for(anchors.device), anchors, context.shape[1], block_embeddings.shape[2])
        hidden = block_embeddings.to(self.compute_dtype)
        for layer in self.layers:
            if self.use_checkpointing and torch.is_grad_enabled():
                hidden = cast(Tensor, checkpoint(layer, hidden, context, places, use_reentrant=False))
            else:
                hidden = layer(hidden, context, places)
        return self._norm(hidden, self.norm)

    def _rope_for(self, device: torch.device) -> Rope:
        if self._rope is None:
            self._rope = Rope(self.config.rope, self.compute_dtype, device)
        return self._rope

    def _cast(self, weight: Tensor) -> Tensor:
        return weight.to(self.compute_dtype)

    def _norm(self, rows: Tensor, weight: Tensor) -> Tensor:
        return rms_norm(rows, self._cast(weight), self.config.rms_norm_eps)


class _Places:
    """Where the rows of a pass stand: rotations, and what each block may see of the context."""

    def __init__(self, rope: Rope, anchors: Tensor, num_context: int, block_size: int) -> None:
        offsets = torch.arange(block_size, device=anchors.device)
        self.positions = anchors[..., None] + offsets  # [X, n, B]
        self.context_positions = torch.arange(num_context, device=anchors.device)
        highest = num_context + block_size
        self.context_rotation = rope.rows(self.context_positions.repeat(len(anchors)), highest)
        self.block_rotation = rope.rows(self.positions.flatten(), highest)
        self._anchors, self._offsets = anchors, offsets
        self._biases: dict[tuple[LayerAttention, torch.dtype], tuple[Tensor, Tensor]] = {}

    def biases(self, attention: LayerAttention, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return what is added to the scores over context and over the block.

        Shapes: [X, 1, n, B or 1, 1, S] and [B, 1, B].
        """
        key = (attention, dtype)
        if key not in self._biases:
            visible = self.context_positions < self._anchors[..., None, None]  # the anchor has no features yet
            block = torch.ones(len(self._offsets), len(self._offsets), dtype=torch.bool, device=visible.device)
            if attention.causal:
                block = block.tril()
            if attention.window is not None:
                visible = visible & (self.context_positions > self.positions[..., None] - attention.window)
                block = block & (self._offsets > self._offsets[:, None] - attention.window)
            self._biases[key] = (_bias(visible, dtype)[:, None, :, :, None], _bias(block, dtype)[:, None])
        return self._biases[key]


class _DraftLayer(nn.Module):
    """One layer. Parameter names follow the checkpoints: `self_attn.*`, `mlp.*` and two norms."""

    def __init__(self, config: BlockDraftConfig, attention: LayerAttention) -> None:
        super().__init__()
        D, width, H = config.hidden_size, config.intermediate_size, config.head_dim
        self.config, self.attention = config, attention
        self.input_layernorm, self.post_attention_layernorm = _vector(D), _vector(D)
        self.self_attn, self.mlp = nn.Module(), nn.Module()
        for name, heads in (("q", config.num_heads), ("k", config.num_kv_heads), ("v", config.num_kv_heads)):
            self.self_attn.register_parameter(f"{name}_proj", _matrix(heads * H, D))
        self.self_attn.register_parameter("o_proj", _matrix(D, config.num_heads * H))
        self.self_attn.register_parameter("q_norm", _vector(H))
        self.self_attn.register_parameter("k_norm", _vector(H))
        for name, shape in (("gate_proj", (width, D)), ("up_proj", (width, D)), ("down_proj", (D, width))):
            self.mlp.register_parameter(name, _matrix(*shape))
        self._activate = _ACTIVATIONS[config.activation]

    def forward(self, hidden: Tensor, context: Tensor, places: _Places) -> Tensor:
        """Shapes: hidden [X, n, B, D], context [X, S, D]; returns [X, n, B, D]."""
        dtype = hidden.dtype
        weights = {name: weight.to(dtype) for name, weight in self.named_parameters()}
        hidden = hidden + self._attend(hidden, context, places, weights)
        rows = self._norm(hidden, weights["post_attention_layernorm"])
        gate, up = F.linear(rows, weights["mlp.gate_proj"]), F.linear(rows, weights["mlp.up_proj"])
        return hidden + F.linear(self._activate(gate) * up, weights["mlp.down_proj"])

    def _attend(self, hidden: Tensor, context: Tensor, places: _Places, weights: dict[str, Tensor]) -> Tensor:
        config = self.config
        X, n, B, _ = hidden.shape
        S, N, G, H = context.shape[1], config.num_heads, config.num_kv_heads, config.head_dim
        g = N // G
        rows = self._norm(hidden, weights["input_layernorm"])
        # Scores are scaled through the norm's weight, which is small.
        query_norm, key_norm = weights["self_attn.q_norm"] * H**-0.5, weights["self_attn.k_norm"]
        queries = F.linear(rows, weights["self_attn.q_proj"]).view(X * n * B, N, H)
        queries = rotate(self._norm(queries, query_norm), *places.block_rotation)
        keys = F.linear(rows, weights["self_attn.k_proj"]).view(X * n * B, G, H)
        keys = rotate(self._norm(keys, key_norm), *places.block_rotation)
        values = F.linear(rows, weights["self_attn.v_proj"]).view(X, n, B, G, H)
        past_keys = F.linear(context, weights["self_attn.k_proj"]).view(X * S, G, H)
        past_keys = rotate(self._norm(past_keys, key_norm), *places.context_rotation).view(X, S, G, H)
        past_values = F.linear(context, weights["self_attn.v_proj"]).view(X, S, G, H)
        # Rows of a block and the query heads that share a key head become one axis.
        queries = queries.view(X, n, B, G, g, H).permute(0, 3, 1, 2, 4, 5).reshape(X, G, n * B * g, H)
        past_bias, block_bias = places.biases(self.attention, hidden.dtype)
        past_scores = torch.matmul(queries, past_keys.permute(0, 2, 3, 1)).view(X, G, n, B, g, S) + past_bias
        keys = keys.view(X, n, B, G, H).permute(0, 3, 1, 4, 2)
        scores = torch.matmul(queries.view(X, G, n, B * g, H), keys).view(X, G, n, B, g, B) + block_bias
        probs = torch.softmax(torch.cat((past_scores, scores), dim=-1), dim=-1)
        past_probs, own_probs = torch.split(probs, [S, B], dim=-1)
        attended = torch.matmul(past_probs.reshape(X, G, n * B * g, S), past_values.transpose(1, 2))
        own = torch.matmul(own_probs.reshape(X, G, n, B * g, B), values.permute(0, 3, 1, 2, 4))
        attended = attended.view(X, G, n, B, g, H) + own.view(X, G, n, B, g, H)
        return F.linear(attended.permute(0, 2, 3, 1, 4, 5).reshape(X, n, B, N * H), weights["self_attn.o_proj"])

    def _norm(self, rows: Tensor, weight: Tensor) -> Tensor:
        return rms_norm(rows, weight, self.config.rms_norm_eps)


def checkpoint_name(name: str) -> str:
    """Return the checkpoint's name of a parameter of `BlockModel`."""
    return f"{name}.weight"


def _matrix(rows: int, columns: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(rows, columns) * 0.02)


def _vector(size: int) -> nn.Parameter:
    return nn.Parameter(torch.ones(size))


def _bias(visible: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.zeros(visible.shape, dtype=dtype, device=visible.device).masked_fill_(~visible, float("-inf"))
