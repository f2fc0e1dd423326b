"""Arithmetic on a config.json: kinds of layers, parameters, recurrent state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Json = Mapping[str, Any]

_STATE_BYTES = 4
"""Engines keep the state of linear attention in float32 (`mamba_ssm_dtype`)."""


def layer_kinds(config: Json) -> list[str]:
    """Return `full_attention`, `sliding_attention` or `linear_attention` for each layer; empty if unknown."""
    number = config.get("num_hidden_layers")
    if declared := config.get("layer_types"):
        return [str(kind) for kind in declared]
    if not number:
        return []
    if interval := config.get("full_attention_interval"):
        return ["linear_attention" if (layer + 1) % interval else "full_attention" for layer in range(number)]
    if config.get("sliding_window") and (pattern := config.get("sliding_window_pattern")):
        return ["sliding_attention" if (layer + 1) % pattern else "full_attention" for layer in range(number)]
    return ["full_attention"] * number


def state_bytes(config: Json, kinds: Sequence[str]) -> int | None:
    """Return the recurrent state of one sequence, all layers: the matrices of all heads and the convolution's inputs.

    0 without linear layers, None if their sizes are not declared.
    """
    num_linear = kinds.count("linear_attention")
    if not num_linear:
        return 0 if kinds else None
    needed = ("linear_num_value_heads", "linear_num_key_heads", "linear_key_head_dim", "linear_value_head_dim")
    if any(config.get(key) is None for key in needed):
        return None
    value_heads, key_heads, key_dim, value_dim = (int(config[key]) for key in needed)
    matrices = value_heads * key_dim * value_dim
    channels = 2 * key_heads * key_dim + value_heads * value_dim
    return num_linear * _STATE_BYTES * (matrices + channels * (int(config.get("linear_conv_kernel_dim", 4)) - 1))


def num_parameters(config: Json) -> tuple[int | None, int]:
    """Return about how many parameters a target has, and how many of them embedding and head hold.

    Biases and norms are left out; they are less than a thousandth.
    """
    sizes = [config.get(key) for key in ("hidden_size", "num_hidden_layers", "vocab_size", "num_attention_heads")]
    if any(size is None for size in sizes) or config.get("kv_lora_rank"):
        return None, 0
    hidden, layers, vocab, heads = (int(size) for size in sizes if size is not None)
    embedding = vocab * hidden * (1 if config.get("tie_word_embeddings") else 2)
    kinds = layer_kinds(config)
    full = _attention(config, hidden, heads)
    linear = _linear_attention(config, hidden)
    if linear is None and "linear_attention" in kinds:
        return None, 0
    mixers = sum((linear or 0) if kind == "linear_attention" else full for kind in kinds)
    mtp = int(config.get("mtp_num_hidden_layers") or 0) * (full + _mlp(config, hidden) + 2 * hidden * hidden)
    return embedding + mixers + layers * _mlp(config, hidden) + mtp, embedding


def _attention(config: Json, hidden: int, heads: int) -> int:
    head_dim = int(config.get("head_dim") or hidden // heads)
    gate = 2 if config.get("attn_output_gate") or str(config.get("model_type")).startswith("qwen3_5") else 1
    kv_heads = int(config.get("num_key_value_heads") or heads)
    return hidden * head_dim * (heads * (gate + 1) + 2 * kv_heads)


def _linear_attention(config: Json, hidden: int) -> int | None:
    if config.get("linear_num_value_heads") is None:
        return None
    keys = int(config["linear_num_key_heads"]) * int(config["linear_key_head_dim"])
    values = int(config["linear_num_value_heads"]) * int(config["linear_value_head_dim"])
    return hidden * (2 * keys + 3 * values + 2 * int(config["linear_num_value_heads"]))


def _mlp(config: Json, hidden: int) -> int:
    experts = int(config.get("num_experts") or config.get("num_local_experts") or 0)
    if experts > 1 and (width := config.get("moe_intermediate_size")):
        shared = int(config.get("shared_expert_intermediate_size") or 0)
        return 3 * hidden * (experts * int(width) + shared) + hidden * experts
    return 3 * hidden * int(config.get("intermediate_size") or 4 * hidden)


def num_expert_parameters(config: Json) -> int | None:
    """Return the parameters of the routed experts; None if their width is not declared."""
    sizes = [config.get(key) for key in ("num_experts", "moe_intermediate_size", "hidden_size", "num_hidden_layers")]
    if any(size is None for size in sizes):
        return None
    experts, width, hidden, layers = (int(size) for size in sizes if size is not None)
    return 3 * hidden * width * experts * layers


def num_draft_parameters(config: Json, num_features: int, markov_rank: int | None) -> int | None:
    """Return the parameters of a block drafter without embedding and head, which are the target's."""
    needed = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
    if any(config.get(key) is None for key in needed) or not num_features:
        return None
    hidden, layers, heads, width = (int(config[key]) for key in needed)
    head_dim = int(config.get("head_dim") or hidden // heads)
    kv_heads = int(config.get("num_key_value_heads") or heads)
    layer = hidden * head_dim * 2 * (heads + kv_heads) + 3 * hidden * width
    fc = num_features * hidden * int(config.get("target_hidden_size") or hidden)
    return layers * layer + fc + 2 * int(config.get("vocab_size") or 0) * (markov_rank or 0)
