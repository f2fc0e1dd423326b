"""Block drafters with random weights in the shape that fits a target.

Their proposals are noise and the target rejects them. That is their use: what a draft costs, and whether
rejections leave a trace, can be measured on any target before a drafter is trained for it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import save_file
from torch import Tensor

from blockdraft.drafters.block_config import read_block_config
from blockdraft.drafters.draft_checkpoint import kept_shapes
from blockdraft.errors import PairError
from blockdraft.models.base import TargetInfo

_HEAD_DIM = 64


@dataclass(frozen=True, kw_only=True)
class RandomDrafter:
    """What to write; widths come from the target, and as many of its layers are read as the drafter has."""

    method: Literal["dflash", "dspark"] = "dflash"
    num_layers: int = 2
    block_size: int = 8
    markov_rank: int = 256
    mask_token_id: int = 0
    sharpness: float = 2.0
    """Weights of the last norm. Trained drafters are sure of a few tokens; sampling from flat noise costs more."""
    seed: int = 0


def write_random_drafter(folder: Path, info: TargetInfo, drafter: RandomDrafter) -> Path:
    """Write a checkpoint folder for a target (DFlash in Z Lab's layout, DSpark in DeepSpec's); return the folder.

    Raises:
        PairError: the target's width is not a multiple of the head size.
    """
    config = _config(info, drafter)
    folder.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(drafter.seed)
    tensors = {
        name: _random(name, shape, generator, drafter.sharpness).to(info.dtype)
        for name, shape in kept_shapes(read_block_config(config)).items()
    }
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
    return folder


def _config(info: TargetInfo, drafter: RandomDrafter) -> dict[str, Any]:
    width = info.hidden_size
    if width % _HEAD_DIM:
        raise PairError(f"the target's width {width} is not a multiple of the drafter's head size {_HEAD_DIM}")
    num_heads = width // _HEAD_DIM
    config: dict[str, Any] = {
        "model_type": "qwen3",
        "hidden_size": width,
        "intermediate_size": 8 * width // 3 // _HEAD_DIM * _HEAD_DIM,
        "num_hidden_layers": drafter.num_layers,
        "num_attention_heads": num_heads,
        "num_key_value_heads": num_heads // 3 if num_heads % 3 == 0 else num_heads,
        "head_dim": _HEAD_DIM,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": info.context_length,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "layer_types": ["full_attention"] * drafter.num_layers,
        "vocab_size": info.vocab_size,
        "num_target_layers": info.num_layers,
        "block_size": drafter.block_size,
        "mask_token_id": drafter.mask_token_id,
    }
    if drafter.method == "dflash":
        return {"architectures": ["DFlashDraftModel"], **config}
    heads = {
        "markov_rank": drafter.markov_rank,
        "markov_head_type": "vanilla",
        "enable_confidence_head": True,
        "confidence_head_with_markov": True,
    }
    return {"architectures": ["Qwen3DSparkModel"], **config, **heads}


def _random(name: str, shape: tuple[int, ...], generator: torch.Generator, sharpness: float) -> Tensor:
    if name == "norm.weight":
        return torch.full(shape, sharpness)
    if "norm" in name:
        return torch.ones(shape)
    return 0.02 * torch.randn(shape, generator=generator)
