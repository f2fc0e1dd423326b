"""Llama and its kin (Llama 2 and 3, SmolLM2): the plain decoder, with biases where the configuration says so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from blockdraft.errors import UnsupportedModelError
from blockdraft.models.config import GGUF_NAMES, DecoderConfig, Family, decoder_from_gguf, decoder_from_hf


def _from_hf(config: Mapping[str, Any]) -> DecoderConfig:
    attention_bias = bool(config.get("attention_bias", False))
    return replace(
        decoder_from_hf(config, "llama"),
        qkv_bias=attention_bias,
        output_bias=attention_bias,
        mlp_bias=bool(config.get("mlp_bias", False)),
    )


def _from_gguf(metadata: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> DecoderConfig:
    if metadata.get("llama.expert_count"):
        raise UnsupportedModelError("Mixtral-style experts (llama.expert_count) are not supported")
    config = decoder_from_gguf(metadata, shapes, "llama")
    if config.rope.rotary_dim != config.head_dim:
        raise UnsupportedModelError(
            "GGUF files of the llama family that rotate only a part of each head are not supported"
        )
    return replace(
        config,
        qkv_bias="blk.0.attn_q.bias" in shapes,
        output_bias="blk.0.attn_output.bias" in shapes,
        mlp_bias="blk.0.ffn_down.bias" in shapes,
    )


FAMILY = Family(
    name="llama",
    hf_architectures=("LlamaForCausalLM",),
    gguf_architectures=("llama",),
    gguf_names=GGUF_NAMES,
    gguf_interleaves_rope=True,
    config_from_hf=_from_hf,
    config_from_gguf=_from_gguf,
)
