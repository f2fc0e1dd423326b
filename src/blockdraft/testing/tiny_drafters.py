"""Tiny random block drafters in each packaging that people publish, written as checkpoint folders.

The weights depend on the seed and on each tensor's name only, so the same drafter can be written in two
packagings and compared.
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

from blockdraft.drafters.block_config import read_block_config
from blockdraft.drafters.draft_checkpoint import kept_shapes
from blockdraft.models.base import TargetInfo

Packaging = Literal["z-lab", "z-lab-nested", "deepspec", "speculators", "specforge"]


@dataclass(frozen=True, kw_only=True)
class TinyDrafter:
    """What a tiny drafter looks like; the target's sizes come from its `TargetInfo`."""

    method: Literal["dflash", "dspark"] = "dflash"
    packaging: Packaging = "z-lab"
    seed: int = 0
    block_size: int = 4
    head_dim: int = 32
    """A width that the native kernels can compute."""
    num_layers: int = 2
    target_layer_ids: tuple[int, ...] = (0, 2)
    mask_token_id: int = 3
    sliding_window: int | None = None
    """All layers slide with this window; None for full attention."""
    is_causal: bool | None = None
    draft_vocab_size: int | None = None
    """A reduced output vocabulary (speculators only)."""
    markov_rank: int = 8
    markov_head_type: str = "vanilla"
    confidence_head: Literal["none", "hidden", "hidden+markov"] = "hidden+markov"


def write_tiny_drafter(folder: Path, info: TargetInfo, drafter: TinyDrafter, **overrides: Any) -> Path:
    """Write config.json and model.safetensors of a drafter for a target; return the folder.

    `overrides` are top-level keys of config.json, as a user would edit them.
    """
    folder.mkdir(parents=True, exist_ok=True)
    config = tiny_drafter_config(info, drafter) | overrides
    tensors = tiny_drafter_tensors(config, drafter, info)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
    return folder


def tiny_drafter_config(info: TargetInfo, drafter: TinyDrafter) -> dict[str, Any]:
    """Return the config.json of a tiny drafter in its packaging."""
    backbone = _backbone(info, drafter)
    taps = {"mask_token_id": drafter.mask_token_id, "target_layer_ids": list(drafter.target_layer_ids)}
    heads = _heads(drafter) if drafter.method == "dspark" else {}
    block = {"block_size": drafter.block_size}
    depth = {"num_target_layers": info.num_layers}
    causal = {} if drafter.is_causal is None else {"is_causal": drafter.is_causal}
    if drafter.packaging == "speculators":
        return _speculators(info, drafter, backbone, heads)
    if drafter.packaging == "deepspec":
        # Both methods share the architecture's name; DFlash has its heads off.
        off = {"markov_rank": 0, "enable_confidence_head": False}
        return {"architectures": ["Qwen3DSparkModel"], **backbone, **depth, **block, **taps, **(heads or off), **causal}
    if drafter.packaging == "specforge":
        nested = {"projector_type": drafter.method, **taps, **heads}
        name = "DSparkDraftModel" if drafter.method == "dspark" else "DFlashDraftModel"
        return {"architectures": [name], **backbone, **depth, **block, **causal, "dflash_config": nested}
    if drafter.packaging == "z-lab-nested":
        return {**_z_lab(backbone), **depth, **causal, "dflash_config": {**taps, **block}}
    return {**_z_lab(backbone), **depth, **block, **taps, **causal}


def tiny_drafter_tensors(config: dict[str, Any], drafter: TinyDrafter, info: TargetInfo) -> dict[str, Tensor]:
    """Return random weights that fit a config.json."""
    parsed = read_block_config(config)
    tensors = {name: _random(name, shape, drafter.seed) for name, shape in kept_shapes(parsed).items() if name != "d2t"}
    if parsed.draft_vocab_size is not None:
        generator = torch.Generator().manual_seed(drafter.seed)
        ids = torch.randperm(info.vocab_size, generator=generator)[: parsed.draft_vocab_size].sort().values
        tensors["d2t"] = ids - torch.arange(len(ids))
        tensors["t2d"] = torch.zeros(info.vocab_size, dtype=torch.bool).index_fill_(0, ids, True)
    elif drafter.packaging == "deepspec":
        # DeepSpec stores frozen copies of the target's tables; here they are noise, to show that nobody reads them.
        for name in ("embed_tokens.weight", "lm_head.weight"):
            tensors[name] = _random(name, (info.vocab_size, info.hidden_size), drafter.seed)
    return tensors


def _backbone(info: TargetInfo, drafter: TinyDrafter) -> dict[str, Any]:
    kind = "full_attention" if drafter.sliding_window is None else "sliding_attention"
    return {
        "model_type": "qwen3",
        "hidden_size": info.hidden_size,
        "intermediate_size": 2 * info.hidden_size,
        "num_hidden_layers": drafter.num_layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": drafter.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 512,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "attention_bias": False,
        "tie_word_embeddings": False,
        "vocab_size": info.vocab_size,
        "layer_types": [kind] * drafter.num_layers,
        "use_sliding_window": drafter.sliding_window is not None,
        "sliding_window": drafter.sliding_window,
    }


def _z_lab(backbone: dict[str, Any]) -> dict[str, Any]:
    return {"architectures": ["DFlashDraftModel"], "auto_map": {"AutoModel": "dflash.DFlashDraftModel"}, **backbone}


def _heads(drafter: TinyDrafter) -> dict[str, Any]:
    return {
        "markov_rank": drafter.markov_rank,
        "markov_head_type": drafter.markov_head_type,
        "enable_confidence_head": drafter.confidence_head != "none",
        "confidence_head_with_markov": drafter.confidence_head == "hidden+markov",
    }


def _speculators(
    info: TargetInfo, drafter: TinyDrafter, backbone: dict[str, Any], heads: dict[str, Any]
) -> dict[str, Any]:
    anchor_predicts = drafter.method == "dspark"
    width = drafter.block_size if anchor_predicts else drafter.block_size - 1
    return {
        "architectures": ["DSparkSpeculator" if drafter.method == "dspark" else "DFlashSpeculator"],
        "speculators_model_type": drafter.method,
        "speculators_config": {
            "algorithm": drafter.method,
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": width}],
        },
        "transformer_layer_config": backbone,
        "draft_vocab_size": drafter.draft_vocab_size or info.vocab_size,
        "block_size": drafter.block_size,
        # Counted from the embedding's output: one more than a decoder layer's id.
        "aux_hidden_state_layer_ids": [layer + 1 for layer in drafter.target_layer_ids],
        "mask_token_id": drafter.mask_token_id,
        "sliding_window_non_causal": drafter.is_causal is False,
        "sample_from_anchor": anchor_predicts,
        **heads,
    }


def _random(name: str, shape: tuple[int, ...], seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(zlib.crc32(f"{seed} {name}".encode()))
    values: Tensor = torch.randn(shape, generator=generator)
    if "norm" in name:
        return 1 + 0.1 * values
    if len(shape) == 1:
        return 0.1 * values
    # Heads that add to logits or decide are louder, so that a test sees what they do.
    gain = 3.0 if name == "lm_head.weight" or "markov_w" in name or "confidence" in name else 1.0
    return values * (gain / math.sqrt(shape[-1]))
