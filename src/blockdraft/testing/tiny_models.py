"""Tiny random models of every own family, in memory or as Hugging Face folders, in milliseconds.

The weights depend on the seed and on each tensor's name only, so the same seed gives the same model in
memory and on disk. Logits spread enough that greedy choices are not ties.
"""

from __future__ import annotations

import json
import math
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from blockdraft.models.config import DecoderConfig
from blockdraft.models.decoder import Decoder
from blockdraft.models.families import FAMILIES
from blockdraft.models.packed_decoder import PackedDecoder
from blockdraft.models.weights.fill import StoredTensor, fill
from blockdraft.models.weights.kept import KeptMatrices
from blockdraft.models.weights.layout import allocate, destinations
from blockdraft.models.weights.packing import pack_decoder
from blockdraft.runtime.native_core import shared_core

_COMMON: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 12,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
    "bos_token_id": 1,
    "eos_token_id": 2,
}

_OWN: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {"tie_word_embeddings": True},
    "qwen3": {"head_dim": 16},
    "qwen3_moe": {
        "num_experts": 6,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "norm_topk_prob": True,
        "mlp_only_layers": [1],
    },
}


def tiny_config(family: str = "llama", **overrides: Any) -> dict[str, Any]:
    """Return the config.json of a tiny model; `overrides` are keys of config.json."""
    return {
        "architectures": list(FAMILIES[family].hf_architectures),
        "model_type": family,
        **_COMMON,
        **_OWN[family],
        **overrides,
    }


def tiny_tensors(config: dict[str, Any], seed: int = 0) -> dict[str, Tensor]:
    """Return random float32 weights for a config.json, by their Hugging Face names."""
    decoder_config = _decoder_config(config)
    shapes = allocate(decoder_config, torch.float32, torch.device("meta"))
    slots = destinations(shapes, decoder_config, stored=())
    return {name: _random(name, tuple(slot.shape), seed) for name, slot in slots.items()}


def write_tiny_model(
    folder: Path, family: str = "llama", seed: int = 0, *, dtype: torch.dtype = torch.float32, **overrides: Any
) -> Path:
    """Write config.json and model.safetensors of a tiny random model; return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    config = tiny_config(family, **overrides)
    tensors = {name: tensor.to(dtype) for name, tensor in tiny_tensors(config, seed).items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
    return folder


def tiny_target(
    family: str = "llama", seed: int = 0, *, dtype: torch.dtype = torch.float32, device: str = "cpu", **overrides: Any
) -> Decoder:
    """Return a tiny random target; `overrides` are keys of config.json."""
    config = tiny_config(family, **overrides)
    decoder_config = _decoder_config(config)
    weights = allocate(decoder_config, dtype, torch.device(device))
    tensors = tiny_tensors(config, seed)
    stored = [
        StoredTensor(name=name, shape=tuple(tensor.shape), type_name="f32", read_rows=_reader(tensor))
        for name, tensor in tensors.items()
    ]
    fill(destinations(weights, decoder_config, stored=()), stored, source="the tiny model")
    return Decoder(decoder_config, weights, quantization="f32")


def tiny_packed_target(family: str = "llama", seed: int = 0, **overrides: Any) -> PackedDecoder:
    """Return a tiny random target on the native kernels, with widths that they can do."""
    config = tiny_config(family, **{"hidden_size": 64, "intermediate_size": 96, "head_dim": 32, **overrides})
    decoder_config = _decoder_config(config)
    stored = [
        StoredTensor(name=name, shape=tuple(tensor.shape), type_name="f32", read_rows=_reader(tensor))
        for name, tensor in tiny_tensors(config, seed).items()
    ]
    kept = KeptMatrices((), "the tiny model", warnings.warn)
    network = pack_decoder(decoder_config, stored, kept, interleaved_rope=False, source="the tiny model")
    return PackedDecoder(decoder_config, network, shared_core(), quantization="f32", num_parameters=0)


def _decoder_config(config: dict[str, Any]) -> DecoderConfig:
    return FAMILIES[config["model_type"]].config_from_hf(config)


def _reader(tensor: Tensor) -> Callable[[int, int], Tensor]:
    return lambda start, end: tensor[start:end]


def _random(name: str, shape: tuple[int, ...], seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(zlib.crc32(f"{seed} {name}".encode()))
    values: Tensor = torch.randn(shape, generator=generator)
    if "norm" in name:
        return 1 + 0.1 * values
    if len(shape) == 1:
        return 0.1 * values
    # Unit variance through every product; the head is louder, so that logits are a few units apart.
    gain = 3.0 if name in ("lm_head.weight", "model.embed_tokens.weight") else 1.0
    return values * (gain / math.sqrt(shape[-1]))
