"""The tensors of a decoder as they lie in memory, and where each stored tensor belongs.

q, k and v are one matrix, gate and up another: two wide products cost less than five narrow ones. The
destinations of the stored parts are views into those, named as Hugging Face names them, so that loading is
a copy by name and never holds a tensor twice.

Shape legend: V vocabulary, D width, N query heads, G key/value heads, H head size, I intermediate, E experts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from blockdraft.models.config import DecoderConfig, MoeConfig
from blockdraft.models.layers.mlp import DenseMlp, MoeMlp


@dataclass(slots=True, kw_only=True)
class LayerWeights:
    """One decoder layer. Shapes: qkv [(N + 2G) * H, D], output [D, N * H], q_norm and k_norm [H]."""

    attention_norm: Tensor
    qkv: Tensor
    qkv_bias: Tensor | None
    q_norm: Tensor | None
    k_norm: Tensor | None
    output: Tensor
    output_bias: Tensor | None
    mlp_norm: Tensor
    mlp: DenseMlp | MoeMlp


@dataclass(slots=True, kw_only=True)
class DecoderWeights:
    """A whole decoder. Shapes: embedding and head [V, D], the same tensor if they are tied."""

    embedding: Tensor
    layers: list[LayerWeights]
    final_norm: Tensor
    head: Tensor

    def tensors(self) -> Iterator[Tensor]:
        """Yield every tensor once."""
        yield self.embedding
        yield self.final_norm
        if self.head is not self.embedding:
            yield self.head
        for layer in self.layers:
            for owner in (layer, layer.mlp):
                values = (getattr(owner, field.name) for field in fields(owner))
                yield from (value for value in values if isinstance(value, Tensor))


def allocate(config: DecoderConfig, dtype: torch.dtype, device: torch.device) -> DecoderWeights:
    """Return weights of the right shapes, not yet filled."""

    def empty(*shape: int) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=device)

    width, head_dim, inner = config.hidden_size, config.head_dim, config.intermediate_size
    qkv_rows = (config.num_heads + 2 * config.num_kv_heads) * head_dim
    layers = []
    for index in range(config.num_layers):
        mlp: DenseMlp | MoeMlp
        if config.moe is not None and index in config.moe.layers:
            moe = config.moe
            mlp = MoeMlp(
                router=empty(moe.num_experts, width),
                gate_up=empty(moe.num_experts, 2 * moe.intermediate_size, width),
                down=empty(moe.num_experts, width, moe.intermediate_size),
                num_active=moe.num_active,
                normalize_weights=moe.normalize_weights,
            )
        else:
            mlp = DenseMlp(
                gate_up=empty(2 * inner, width),
                down=empty(width, inner),
                gate_up_bias=empty(2 * inner) if config.mlp_bias else None,
                down_bias=empty(width) if config.mlp_bias else None,
            )
        layers.append(
            LayerWeights(
                attention_norm=empty(width),
                qkv=empty(qkv_rows, width),
                qkv_bias=empty(qkv_rows) if config.qkv_bias else None,
                q_norm=empty(head_dim) if config.qk_norm else None,
                k_norm=empty(head_dim) if config.qk_norm else None,
                output=empty(width, config.num_heads * head_dim),
                output_bias=empty(width) if config.output_bias else None,
                mlp_norm=empty(width),
                mlp=mlp,
            )
        )
    embedding = empty(config.vocab_size, width)
    head = embedding if config.tie_embeddings else empty(config.vocab_size, width)
    return DecoderWeights(embedding=embedding, layers=layers, final_norm=empty(width), head=head)


def destinations(weights: DecoderWeights, config: DecoderConfig, stored: Collection[str]) -> dict[str, Tensor]:
    """Return for each tensor that must be stored, by its Hugging Face name, the view it is copied into.

    `stored` are the names that the checkpoint has; they tell which of three layouts its experts are in.
    """
    slots: dict[str, Tensor | None] = {
        "model.embed_tokens.weight": weights.embedding,
        "model.norm.weight": weights.final_norm,
    }
    if not config.tie_embeddings:
        slots["lm_head.weight"] = weights.head
    for index, layer in enumerate(weights.layers):
        prefix = f"model.layers.{index}."
        slots[prefix + "input_layernorm.weight"] = layer.attention_norm
        slots[prefix + "post_attention_layernorm.weight"] = layer.mlp_norm
        slots[prefix + "self_attn.q_norm.weight"] = layer.q_norm
        slots[prefix + "self_attn.k_norm.weight"] = layer.k_norm
        slots[prefix + "self_attn.o_proj.weight"] = layer.output
        slots[prefix + "self_attn.o_proj.bias"] = layer.output_bias
        for kind, fused in (("weight", layer.qkv), ("bias", layer.qkv_bias)):
            if fused is not None:
                parts = torch.split(fused, [n * config.head_dim for n in _heads(config)])
                slots |= {f"{prefix}self_attn.{x}_proj.{kind}": part for x, part in zip("qkv", parts, strict=True)}
        if isinstance(layer.mlp, MoeMlp):
            assert config.moe is not None
            slots |= _expert_slots(prefix + "mlp.", layer.mlp, config.moe, stored)
        else:
            slots |= _dense_slots(prefix + "mlp.", layer.mlp)
    return {name: tensor for name, tensor in slots.items() if tensor is not None}


def _heads(config: DecoderConfig) -> tuple[int, int, int]:
    return config.num_heads, config.num_kv_heads, config.num_kv_heads


def _dense_slots(prefix: str, mlp: DenseMlp) -> dict[str, Tensor | None]:
    gate, up = mlp.gate_up.chunk(2)
    slots: dict[str, Tensor | None] = {
        prefix + "gate_proj.weight": gate,
        prefix + "up_proj.weight": up,
        prefix + "down_proj.weight": mlp.down,
        prefix + "down_proj.bias": mlp.down_bias,
    }
    if mlp.gate_up_bias is not None:
        gate, up = mlp.gate_up_bias.chunk(2)
        slots |= {prefix + "gate_proj.bias": gate, prefix + "up_proj.bias": up}
    return slots


def _expert_slots(prefix: str, mlp: MoeMlp, moe: MoeConfig, stored: Collection[str]) -> dict[str, Tensor]:
    """Place experts that are stored fused as here, stacked by kind (GGUF), or one by one (the hub)."""
    slots = {prefix + "gate.weight": mlp.router}
    if prefix + "experts.gate_up_proj" in stored:
        return slots | {prefix + "experts.gate_up_proj": mlp.gate_up, prefix + "experts.down_proj": mlp.down}
    gate, up = mlp.gate_up.chunk(2, dim=1)
    kinds = {"gate_proj.weight": gate, "up_proj.weight": up, "down_proj.weight": mlp.down}
    if prefix + "experts.gate_proj.weight" in stored:
        return slots | {f"{prefix}experts.{kind}": tensor for kind, tensor in kinds.items()}
    for expert in range(moe.num_experts):
        slots |= {f"{prefix}experts.{expert}.{kind}": tensor[expert] for kind, tensor in kinds.items()}
    return slots


def undo_interleaved_rope(weights: DecoderWeights, config: DecoderConfig) -> None:
    """Reorder the rows of q and k from interleaved rope pairs (2i, 2i + 1) to halves (i, i + H/2), in place."""
    num_rows = (config.num_heads + config.num_kv_heads) * config.head_dim
    for layer in weights.layers:
        for tensor in (layer.qkv, layer.qkv_bias):
            if tensor is not None:
                rows = tensor[:num_rows]
                pairs = rows.view(-1, config.head_dim // 2, 2, *rows.shape[1:])
                rows.copy_(pairs.transpose(1, 2).reshape(rows.shape))
