"""Qwen3 mixture of experts: Qwen3's attention, and a router that sends each token to a few of many MLPs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from blockdraft.models.config import (
    DecoderConfig,
    Family,
    MoeConfig,
    decoder_from_gguf,
    decoder_from_hf,
    required,
)
from blockdraft.models.qwen3 import QWEN3_GGUF_NAMES


def _from_hf(config: Mapping[str, Any]) -> DecoderConfig:
    decoder = decoder_from_hf(config, "qwen3_moe")
    dense = set(config.get("mlp_only_layers") or ())
    every = int(config.get("decoder_sparse_step") or 1)
    moe = MoeConfig(
        num_experts=int(config.get("num_experts") or required(config, "num_local_experts")),
        num_active=int(required(config, "num_experts_per_tok")),
        intermediate_size=int(required(config, "moe_intermediate_size")),
        normalize_weights=bool(config.get("norm_topk_prob", False)),
        layers=frozenset(
            layer for layer in range(decoder.num_layers) if layer not in dense and (layer + 1) % every == 0
        ),
    )
    # One window for all layers or none: this family has no max_window_layers.
    window = config.get("sliding_window") if config.get("use_sliding_window") else None
    bias = bool(config.get("attention_bias", False))
    return replace(
        decoder,
        qk_norm=True,
        qkv_bias=bias,
        output_bias=bias,
        moe=moe,
        windows=(window,) * decoder.num_layers,
    )


def _from_gguf(metadata: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> DecoderConfig:
    decoder = decoder_from_gguf(metadata, shapes, "qwen3_moe")
    moe = MoeConfig(
        num_experts=int(required(metadata, "qwen3moe.expert_count")),
        num_active=int(required(metadata, "qwen3moe.expert_used_count")),
        intermediate_size=int(required(metadata, "qwen3moe.expert_feed_forward_length")),
        normalize_weights=True,
        layers=frozenset(layer for layer in range(decoder.num_layers) if f"blk.{layer}.ffn_gate_inp.weight" in shapes),
    )
    return replace(decoder, qk_norm=True, moe=moe)


FAMILY = Family(
    name="qwen3_moe",
    hf_architectures=("Qwen3MoeForCausalLM",),
    gguf_architectures=("qwen3moe",),
    gguf_names={
        **QWEN3_GGUF_NAMES,
        "blk.{i}.ffn_gate_inp.weight": "model.layers.{i}.mlp.gate.weight",
        "blk.{i}.ffn_gate_exps.weight": "model.layers.{i}.mlp.experts.gate_proj.weight",
        "blk.{i}.ffn_up_exps.weight": "model.layers.{i}.mlp.experts.up_proj.weight",
        "blk.{i}.ffn_down_exps.weight": "model.layers.{i}.mlp.experts.down_proj.weight",
    },
    config_from_hf=_from_hf,
    config_from_gguf=_from_gguf,
)
