"""Qwen2 and Qwen2.5: q, k and v have biases; some layers may look through a sliding window."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from blockdraft.models.config import GGUF_NAMES, DecoderConfig, Family, decoder_from_gguf, decoder_from_hf


def _from_hf(config: Mapping[str, Any]) -> DecoderConfig:
    return replace(decoder_from_hf(config, "qwen2"), qkv_bias=True)


def _from_gguf(metadata: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> DecoderConfig:
    return replace(decoder_from_gguf(metadata, shapes, "qwen2"), qkv_bias=True)


FAMILY = Family(
    name="qwen2",
    hf_architectures=("Qwen2ForCausalLM",),
    gguf_architectures=("qwen2",),
    gguf_names=GGUF_NAMES,
    config_from_hf=_from_hf,
    config_from_gguf=_from_gguf,
)
