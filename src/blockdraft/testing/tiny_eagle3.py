"""Tiny random EAGLE-3 heads in each packaging that people publish, written as checkpoint folders.

As with `tiny_drafters` the weights depend on the seed and on each tensor's name only.
"""

from __future__ import annotations

import json
import math
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import save_file
from torch import Tensor

from blockdraft.drafters.eagle3_checkpoint import eagle3_shapes
from blockdraft.drafters.eagle3_config import read_eagle3_config
from blockdraft.models.base import TargetInfo


@dataclass(frozen=True, kw_only=True)
class TinyEagle3:
    """What a tiny head looks like; the target's sizes come from its `TargetInfo`."""

    packaging: Literal["official", "deepspec", "speculators"] = "official"
    seed: int = 0
    num_layers: int = 1
    target_layer_ids: tuple[int, ...] | None = (0, 1, 2)
    """0-based, whatever the packaging writes; None leaves them out."""
    draft_vocab_size: int | None = None
    sliding_window: int | None = None
    norm_before_residual: bool = False
    feature_norm: Literal["none", "joint", "each"] = "none"
    feeds_back_normed: bool = False
    num_trained_tokens: int = 4
    has_own_tables: bool = False
    """Write an embedding and, for a whole vocabulary, a head of its own."""


def write_tiny_eagle3(folder: Path, info: TargetInfo, head: TinyEagle3, **overrides: Any) -> Path:
    """Write config.json and model.safetensors of a head for a target; return the folder.

    `overrides` are top-level keys of config.json, as a user would edit them.
    """
    folder.mkdir(parents=True, exist_ok=True)
    config = tiny_eagle3_config(info, head) | overrides
    tensors = tiny_eagle3_tensors(config, head)
    if head.packaging == "official":
        tensors = {name.replace("layers.0.", "midlayer."): tensor for name, tensor in tensors.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
    return folder


def tiny_eagle3_config(info: TargetInfo, head: TinyEagle3) -> dict[str, Any]:
    """Return the config.json of a tiny head in its packaging."""
    kind = "full_attention" if head.sliding_window is None else "sliding_attention"
    backbone = {
        "model_type": "llama" if head.packaging == "official" else "qwen3",
        "hidden_size": info.hidden_size,
        "intermediate_size": 2 * info.hidden_size,
        "num_hidden_layers": head.num_layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 512,
        "rope_theta": 10000.0,
        "attention_bias": False,
        "tie_word_embeddings": False,
        "vocab_size": info.vocab_size,
        "layer_types": [kind] * head.num_layers,
        "use_sliding_window": head.sliding_window is not None,
        "sliding_window": head.sliding_window,
    }
    taps = head.target_layer_ids
    draft_vocab_size = head.draft_vocab_size or info.vocab_size
    if head.packaging == "deepspec":
        trained = {"ttt_length": head.num_trained_tokens, "num_target_layers": info.num_layers}
        return {"architectures": ["Qwen3Eagle3Model"], **backbone, **trained, "target_layer_ids": list(taps or ())}
    if head.packaging == "official":
        own: dict[str, Any] = {"architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": draft_vocab_size}
        if taps is not None:
            own["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": list(taps)}
        return {**backbone, **own}
    return {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "speculators_config": {
            "algorithm": "eagle3",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": head.num_trained_tokens}],
        },
        "transformer_layer_config": backbone,
        "draft_vocab_size": draft_vocab_size,
        "norm_before_residual": head.norm_before_residual,
        "norm_before_fc": head.feature_norm == "joint",
        "fc_norm": head.feature_norm == "each",
        "norm_output": head.feeds_back_normed,
        # Inputs of layers: one more than the layer whose output it is.
        "eagle_aux_hidden_state_layer_ids": None if taps is None else [layer + 1 for layer in taps],
    }


def tiny_eagle3_tensors(config: dict[str, Any], head: TinyEagle3) -> dict[str, Tensor]:
    """Return random weights that fit a config.json, by their shared names."""
    parsed = read_eagle3_config(config)
    tensors = {name: _random(name, shape, head.seed) for name, shape in eagle3_shapes(parsed).items() if name != "d2t"}
    if parsed.draft_vocab_size is not None:
        generator = torch.Generator().manual_seed(head.seed)
        ids = torch.randperm(parsed.vocab_size, generator=generator)[: parsed.draft_vocab_size].sort().values
        tensors["d2t"] = ids - torch.arange(len(ids))
        tensors["t2d"] = torch.zeros(parsed.vocab_size, dtype=torch.bool).index_fill_(0, ids, True)
    if head.has_own_tables:
        tables = ("embed_tokens.weight",) if parsed.draft_vocab_size else ("embed_tokens.weight", "lm_head.weight")
        for name in tables:
            tensors[name] = _random(name, (parsed.vocab_size, parsed.hidden_size), head.seed)
    return tensors


def _random(name: str, shape: tuple[int, ...], seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(zlib.crc32(f"{seed} {name}".encode()))
    values: Tensor = torch.randn(shape, generator=generator)
    if "norm" in name:
        return 1 + 0.1 * values
    # The head is louder, so that a test sees what it does.
    return values * ((3.0 if name == "lm_head.weight" else 1.0) / math.sqrt(shape[-1]))
