"""Qwen3, dense: every head of q and k is normalised before rope; a head may be wider than hidden / heads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from blockdraft.models.config import GGUF_NAMES, DecoderConfig, Family, decoder_from_gguf, decoder_from_hf

QWEN3_GGUF_NAMES = {
    **GGUF_NAMES,
    "blk.{i}.attn_q_norm.weight": "model.layers.{i}.self_attn.q_norm.weight",
    "blk.{i}.attn_k_norm.weight": "model.layers.{i}.self_attn.k_norm.weight",
}


def _from_hf(config: Mapping[str, Any]) -> DecoderConfig:
    bias = bool(config.get("attention_bias", False))
    # The class default of head_dim is 128 whatever the width: folders may leave the key out.
    decoder = decoder_from_hf({"head_dim": 128, **config}, "qwen3")
    return replace(decoder, qk_norm=True, qkv_bias=bias, output_bias=bias)


def _from_gguf(metadata: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> DecoderConfig:
    return replace(decoder_from_gguf(metadata, shapes, "qwen3"), qk_norm=True)


FAMILY = Family(
    name="qwen3",
    hf_architectures=("Qwen3ForCausalLM",),
    gguf_architectures=("qwen3",),
    gguf_names=QWEN3_GGUF_NAMES,
    config_from_hf=_from_hf,
    config_from_gguf=_from_gguf,
)
