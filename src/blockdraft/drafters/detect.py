"""Which drafting method a checkpoint is for, from its config.json and the names of its tensors.

The order is DSpark, DFlash, EAGLE-3, MTP, then an ordinary language model used as a draft model. A kind is
named even if its variant is not supported; whoever loads it says so.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from blockdraft.drafters.block_config import block_kind, is_block_drafter
from blockdraft.drafters.draft_checkpoint import list_tensors, read_config_json
from blockdraft.drafters.draft_gguf import ARCHITECTURE
from blockdraft.drafters.eagle3_config import is_eagle3
from blockdraft.errors import UnsupportedModelError
from blockdraft.models.weights.gguf_header import read_gguf_header


def detect_kind(path: Path) -> str:
    """Return "draft-dspark", "draft-dflash", "draft-eagle3", "draft-mtp" or "draft-simple" for a checkpoint.

    Raises:
        NotFoundError: `path` is neither a checkpoint folder nor a GGUF file.
        CheckpointError: its files are damaged.
        UnsupportedModelError: it is a checkpoint, but not one that can draft.
    """
    if path.suffix == ".gguf" and path.is_file():
        return _detect_gguf(path)
    config, names = read_config_json(path), list_tensors(path).keys()
    if is_block_drafter(config):
        return block_kind(config)
    if any(name.startswith("markov_head.") for name in names):
        return "draft-dspark"
    if {"fc.weight", "hidden_norm.weight"} <= set(names):
        return "draft-dflash"
    if is_eagle3(config, names):
        return "draft-eagle3"
    if _is_mtp(config, names):
        return "draft-mtp"
    if any("ForCausalLM" in name or "ForConditionalGeneration" in name for name in config.get("architectures") or []):
        return "draft-simple"
    raise UnsupportedModelError(
        f"{path} is no drafter we know: architectures {config.get('architectures') or 'none'}; "
        "name a DFlash, DSpark, EAGLE-3 or MTP checkpoint or a small language model"
    )


def _is_mtp(config: Mapping[str, Any], names: Collection[str]) -> bool:
    architecture = " ".join(config.get("architectures") or []).lower()
    if config.get("speculators_model_type") == "mtp" or "mtp" in architecture or "nextn" in architecture:
        return True
    # A whole target that carries an MTP head is a language model first; a sidecar has the head alone.
    has_head = any(name.startswith(("mtp.", "model.mtp.")) or ".eh_proj." in name for name in names)
    return has_head and not any(name.startswith("model.layers.0.") for name in names)


def _detect_gguf(path: Path) -> str:
    header = read_gguf_header(path)
    architecture, names = header.architecture, header.tensors
    if architecture == "dspark":  # a fork's layout; whoever loads it says so
        return "draft-dspark"
    if architecture == ARCHITECTURE:
        return "draft-dspark" if "markov_w1.weight" in names else "draft-dflash"
    if architecture == "eagle3":
        return "draft-eagle3"
    if any("nextn.eh_proj" in name for name in names) and "blk.0.attn_q.weight" not in names:
        return "draft-mtp"
    return "draft-simple"
