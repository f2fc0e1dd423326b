"""EAGLE-3's network in training form: the walk of serving, from many places of a text at once.

A place is the row before an anchor. Its first step reads the target's features, every further step the output of
the step before it, each beside the text's own token (training-time test with given tokens). All steps see the
rows of the target's features up to their place, and the steps of their own walk: just what the drafter's cache
holds in serving. Keys and values of feature rows depend on nothing but their own inputs, so they are made once
for all places and all steps; that is why a head trained here has one layer.

Shape legend: X texts, S rows of a text, n places of a text, K steps, M tapped layers, D width, N query heads,
G key/value heads, g = N / G, H head size.
Ref: arXiv:2503.01840, section 3.2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from blockdraft.drafters.eagle3_checkpoint import eagle3_shapes
from blockdraft.drafters.eagle3_config import Eagle3Config
from blockdraft.drafters.eagle3_network import ACTIVATIONS
from blockdraft.errors import ConfigError
from blockdraft.models.decoder import Decoder
from blockdraft.models.layers.mlp import DenseMlp
from blockdraft.models.layers.rope import Rope, apply_rope


@dataclass(frozen=True, kw_only=True)
class _Context:
    """What all steps see of the target. Shapes: keys [X, G, H, S], values [X, G, S, H], bias [X, 1, n, 1, S]."""

    keys: Tensor
    values: Tensor
    bias: Tensor


@dataclass(frozen=True, kw_only=True)
class _Walk:
    """What a step of all walks sees, and where it stands."""

    context: _Context
    own: tuple[tuple[Tensor, Tensor], ...]
    """Keys and values [X, n, G, H] of the steps before it, without the first."""
    positions: Tensor
    is_first: bool


def init_from_last_layer(network: Eagle3Model, target: Decoder) -> None:
    """Start as the target's last layer over the highest tapped state, blind to the token beside it.

    Raises:
        ConfigError: the layer has another shape than the target's, or experts.
    """
    source, own = target.weights.layers[-1], target.config
    if not isinstance(source.mlp, DenseMlp):
        raise ConfigError('the target\'s last layer has experts and cannot be copied; set drafter.init = "random"')
    D = own.hidden_size
    q, k, v = torch.split(source.qkv, [heads * own.head_dim for heads in (own.num_heads, *[own.num_kv_heads] * 2)])
    gate, up = source.mlp.gate_up.chunk(2)
    copies = {
        "norm": target.weights.final_norm,
        "layers.0.hidden_norm": source.attention_norm,
        "layers.0.post_attention_layernorm": source.mlp_norm,
        "layers.0.self_attn.o_proj": source.output,
        "layers.0.mlp.gate_proj": gate,
        "layers.0.mlp.up_proj": up,
        "layers.0.mlp.down_proj": source.mlp.down,
    }
    parameters = dict(network.named_parameters())
    slots: dict[str, Tensor] = {name: parameters[name] for name in copies}
    for part, weight in (("q", q), ("k", k), ("v", v)):  # the right half reads the hidden state
        copies[f"{part}_proj"], slots[f"{part}_proj"] = weight, parameters[f"layers.0.self_attn.{part}_proj"][:, D:]
    with torch.no_grad():
        for name, tensor in copies.items():
            if slots[name].shape != tensor.shape:
                raise ConfigError(
                    f"the target's {name} is {list(tensor.shape)}, the head's {list(slots[name].shape)}; "
                    'leave the sizes of the drafter to the target, or set drafter.init = "random"'
                )
            slots[name].copy_(tensor)
        parameters["fc"][:, -D:] += torch.eye(D, device=parameters["fc"].device)


class Eagle3Model(nn.Module):
    """`fc`, one layer and `norm`; parameters are named as in checkpoints, without their ".weight".

    Raises:
        ConfigError: the head has a part that can be served and not trained.
    """

    def __init__(self, config: Eagle3Config, *, compute_dtype: torch.dtype, use_checkpointing: bool = False) -> None:
        super().__init__()
        if config.windows != (None,) or config.feature_norm != "none":
            raise ConfigError(
                "an EAGLE-3 head is trained with one layer of full attention and no norm before fc; "
                f"this one has {len(config.windows)} layers, windows {list(config.windows)} and "
                f"feature norm {config.feature_norm!r}"
            )
        self.config, self.compute_dtype, self.use_checkpointing = config, compute_dtype, use_checkpointing
        for name, shape in eagle3_shapes(config).items():
            if name not in ("lm_head.weight", "d2t"):
                self._add(name.removesuffix(".weight"), shape)
        self._rope: Rope | None = None

    def _add(self, name: str, shape: tuple[int, ...]) -> None:
        """Register a parameter under its dotted name."""
        owner: nn.Module = self
        *path, last = name.split(".")
        for part in path:
            if part not in dict(owner.named_children()):
                owner.add_module(part, nn.Module())
            owner = owner.get_submodule(part)
        value = torch.ones(shape) if len(shape) == 1 else torch.randn(shape) * 0.02
        owner.register_parameter(last, nn.Parameter(value))

    def forward(self, features: Tensor, embeddings: Tensor, step_embeddings: Tensor, places: Tensor) -> Tensor:
        """Return the normalised output of every step, which the head expects.

        Shapes: features [X, S, M*D]; embeddings [X, S, D], of the token after each row's; step_embeddings
        [X, n, K, D], of the token each step reads; places [X, n], the row each walk starts from;
        returns [X, n, K, D].
        """
        weights = {name: weight.to(self.compute_dtype) for name, weight in self.named_parameters()}
        fused = F.linear(features.to(self.compute_dtype), weights["fc"])
        context = self._context(fused, embeddings, places, weights)
        hidden = fused.gather(1, places[..., None].expand(-1, -1, fused.shape[-1]))
        own: list[tuple[Tensor, Tensor]] = []
        outputs = []
        for step in range(step_embeddings.shape[2]):
            walk = _Walk(context=context, own=tuple(own), positions=places + step, is_first=step == 0)
            arguments = (hidden, step_embeddings[:, :, step], walk, weights)
            if self.use_checkpointing and torch.is_grad_enabled():
                hidden, keys, values = cast(
                    tuple[Tensor, Tensor, Tensor], checkpoint(self._step, *arguments, use_reentrant=False)
                )
            else:
                hidden, keys, values = self._step(*arguments)
            if step:  # the first step's row is one of the target's features, and in the context
                own.append((keys, values))
            outputs.append(self._norm(hidden, weights["norm"]))
            hidden = outputs[-1] if self.config.feeds_back_normed else hidden
        return torch.stack(outputs, dim=2)

    def _context(self, fused: Tensor, embeddings: Tensor, places: Tensor, weights: dict[str, Tensor]) -> _Context:
        config = self.config
        X, S, _ = fused.shape
        G, H = config.num_kv_heads, config.head_dim
        inputs, _ = self._inputs(fused, embeddings, weights)
        projections = torch.cat([weights[f"layers.0.self_attn.{part}_proj"] for part in "kv"])
        rows = F.linear(inputs, projections).view(X, S, 2 * G, H)
        positions = torch.arange(S, device=fused.device)
        keys = self._rotated(rows[:, :, :G], positions, weights, "k")
        visible = positions <= places[..., None]
        bias = torch.zeros(visible.shape, dtype=fused.dtype, device=fused.device).masked_fill_(~visible, float("-inf"))
        return _Context(
            keys=keys.permute(0, 2, 3, 1), values=rows[:, :, G:].transpose(1, 2), bias=bias[:, None, :, None]
        )

    def _step(
        self, hidden: Tensor, embedding: Tensor, walk: _Walk, weights: dict[str, Tensor]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Run one step of all walks.

        Shapes: hidden and embedding [X, n, D]; returns the output [X, n, D], and its keys and values [X, n, G, H].
        """
        config = self.config
        X, n, _ = hidden.shape
        N, G, H = config.num_heads, config.num_kv_heads, config.head_dim
        inputs, residual = self._inputs(hidden, embedding, weights)
        qkv = F.linear(inputs, torch.cat([weights[f"layers.0.self_attn.{part}_proj"] for part in "qkv"]))
        queries, keys, values = torch.split(qkv.view(X, n, N + 2 * G, H), [N, G, G], dim=2)
        queries = self._rotated(queries, walk.positions, weights, "q")
        keys = self._rotated(keys, walk.positions, weights, "k")
        own = walk.own if walk.is_first else (*walk.own, (keys, values))
        attended = self._attend(queries, walk.context, own)
        hidden = residual + F.linear(attended, weights["layers.0.self_attn.o_proj"])
        rows = self._norm(hidden, weights["layers.0.post_attention_layernorm"])
        gate = F.linear(rows, weights["layers.0.mlp.gate_proj"])
        up = F.linear(rows, weights["layers.0.mlp.up_proj"])
        hidden = hidden + F.linear(ACTIVATIONS[config.activation](gate) * up, weights["layers.0.mlp.down_proj"])
        return hidden, keys, values

    def _attend(self, queries: Tensor, context: _Context, own: tuple[tuple[Tensor, Tensor], ...]) -> Tensor:
        """Shapes: queries [X, n, N, H]; returns [X, n, N*H]."""
        X, n, N, H = queries.shape
        G, S = context.keys.shape[1], context.keys.shape[3]
        g = N // G
        grouped = (queries * H**-0.5).view(X, n, G, g, H).permute(0, 2, 1, 3, 4)
        scores = torch.matmul(grouped.reshape(X, G, n * g, H), context.keys).view(X, G, n, g, S) + context.bias
        if own:
            keys = torch.stack([pair[0] for pair in own], dim=-1)  # [X, n, G, H, s]
            scores = torch.cat((scores, torch.matmul(grouped, keys.transpose(1, 2))), dim=-1)
        probs = torch.softmax(scores, dim=-1)
        past, rest = torch.split(probs, [S, len(own)], dim=-1)
        attended = torch.matmul(past.reshape(X, G, n * g, S), context.values).view(X, G, n, g, H)
        if own:
            values = torch.stack([pair[1] for pair in own], dim=-2)  # [X, n, G, s, H]
            attended = attended + torch.matmul(rest, values.transpose(1, 2))
        return attended.permute(0, 2, 1, 3, 4).reshape(X, n, N * H)

    def _inputs(self, hidden: Tensor, embedding: Tensor, weights: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Return what the projections read [..., 2D], and where the residual stream starts [..., D]."""
        normed = self._norm(hidden, weights["layers.0.hidden_norm"])
        beside = self._norm(embedding.to(hidden.dtype), weights["layers.0.input_layernorm"])
        return torch.cat((beside, normed), dim=-1), normed if self.config.norm_before_residual else hidden

    def _rotated(self, heads: Tensor, positions: Tensor, weights: dict[str, Tensor], part: str) -> Tensor:
        """Norm (if the head does) and rotate. Shapes: heads [X, n, N or G, H]; positions [X, n] or [n]."""
        if self.config.has_qk_norm:
            heads = self._norm(heads, weights[f"layers.0.self_attn.{part}_norm"])
        if self._rope is None:
            self._rope = Rope(self.config.rope, self.compute_dtype, heads.device)
        everywhere = positions.expand(heads.shape[:2]).flatten()
        cos, sin = self._rope.rows(everywhere, int(everywhere.max()))
        return apply_rope(heads.flatten(0, 1), cos, sin).view(heads.shape)

    def _norm(self, rows: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(rows, weight.shape, weight, self.config.rms_norm_eps)
