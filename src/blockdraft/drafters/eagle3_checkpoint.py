"""The tensors of an EAGLE-3 head, loaded strictly: nothing missing, nothing surplus, every shape as announced.

The official layout calls its one layer `midlayer`; here, as in speculators, it is `layers.0`. Unlike with block
drafters a stored embedding or head may have been trained, so it is loaded; copies of the target's are recognised
later, by whoever has the target.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from torch import Tensor

from blockdraft.drafters.draft_checkpoint import (
    Shape,
    StoredTensor,
    check_vocabulary_map,
    compare_shapes,
    list_tensors,
    read_config_json,
)
from blockdraft.drafters.eagle3_config import Eagle3Config, check_eagle3_pair, default_taps, read_eagle3_config
from blockdraft.errors import CheckpointError, NotFoundError, PairError, UnsupportedModelError
from blockdraft.models.base import TargetInfo

_UNSUPPORTED_PARTS = {
    "mask_hidden": "parallel drafting (P-EAGLE)",
    ".experts.": "a mixture-of-experts backbone",
    "kv_a_proj": "multi-head latent attention (MLA)",
    "_proj.bias": "biases in the projections",
}


@dataclass(frozen=True, kw_only=True)
class Eagle3Checkpoint:
    """An EAGLE-3 head in memory; `config.target_layer_ids` is settled."""

    config: Eagle3Config
    tensors: dict[str, Tensor]
    """By the names of the speculators layout; `d2t` keeps its integer type."""
    num_bytes: int


@dataclass(frozen=True, kw_only=True)
class Eagle3Folder:
    """A head's folder, described but not read."""

    config: Eagle3Config
    stored: dict[str, StoredTensor]

    @property
    def shapes(self) -> dict[str, Shape]:
        return {name: tensor.shape for name, tensor in self.stored.items()}


def open_eagle3_checkpoint(path: Path) -> Eagle3Folder:
    """Read what a folder says about the head in it, and leave its weights on the disk.

    Raises:
        NotFoundError: the folder or its files do not exist.
        UnsupportedModelError: the head is recognised, but not something we can run.
        CheckpointError: its description is damaged.
    """
    if path.suffix == ".gguf":
        raise UnsupportedModelError(
            f"{path.name}: EAGLE-3 heads in GGUF cannot be loaded yet; use the safetensors folder it was made from"
        )
    config = read_eagle3_config(read_config_json(path))
    stored = {
        "layers.0." + name.removeprefix("midlayer.") if name.startswith("midlayer.") else name: tensor
        for name, tensor in list_tensors(path).items()
    }
    if not stored:
        raise _nothing_stored(path)
    return Eagle3Folder(config=config, stored=stored)


def load_eagle3_checkpoint(path: Path, info: TargetInfo) -> Eagle3Checkpoint:
    """Load the head in `path` in the dtype and on the device of its target.

    Raises:
        NotFoundError: the folder or its files do not exist.
        UnsupportedModelError: the head is recognised, but not something we can run.
        CheckpointError: config.json or the tensors are not what they should be.
        PairError: the head was made for another target.
    """
    folder = open_eagle3_checkpoint(path)
    config, stored = folder.config, folder.stored
    if reasons := check_eagle3_pair(config, info):
        raise PairError(f"the drafter {path} does not fit the target ({info.family}): " + "; ".join(reasons))
    check_eagle3_tensors(config, folder.shapes)
    tensors: dict[str, Tensor] = {}
    for name in [*eagle3_shapes(config), *(name for name in _own_tables(config) if name in stored)]:
        tensor = stored[name].read()
        tensors[name] = tensor.to(info.device, info.dtype if tensor.is_floating_point() else tensor.dtype)
    if config.draft_vocab_size is not None:
        inverse = stored["t2d"].read() if "t2d" in stored else None
        check_vocabulary_map(path, config.vocab_size, tensors["d2t"], inverse)
    if config.target_layer_ids is None:
        config = replace(config, target_layer_ids=default_taps(info.num_layers))
    num_bytes = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    return Eagle3Checkpoint(config=config, tensors=tensors, num_bytes=num_bytes)


def eagle3_shapes(config: Eagle3Config) -> dict[str, Shape]:
    """Return the tensors that a head must have."""
    D, M = config.hidden_size, config.num_taps
    shapes: dict[str, Shape] = {"fc.weight": (D, M * D), "norm.weight": (D,)}
    if config.feature_norm == "joint":
        shapes["input_norm.weight"] = (M * D,)
    elif config.feature_norm == "each":
        shapes |= {f"fc_norm.{index}.weight": (D,) for index in range(M)}
    for index in range(len(config.windows)):
        shapes |= {f"layers.{index}.{name}": shape for name, shape in _layer_shapes(config, index).items()}
    if config.draft_vocab_size is not None:
        shapes |= {"lm_head.weight": (config.draft_vocab_size, D), "d2t": (config.draft_vocab_size,)}
    return shapes


def _layer_shapes(config: Eagle3Config, index: int) -> dict[str, Shape]:
    D, F, H = config.hidden_size, config.intermediate_size, config.head_dim
    q_width, kv_width = config.num_heads * H, config.num_kv_heads * H
    # The first layer reads the embedding beside the hidden state.
    width = 2 * D if index == 0 else D
    shapes: dict[str, Shape] = {
        "input_layernorm.weight": (D,),
        "post_attention_layernorm.weight": (D,),
        "self_attn.q_proj.weight": (q_width, width),
        "self_attn.k_proj.weight": (kv_width, width),
        "self_attn.v_proj.weight": (kv_width, width),
        "self_attn.o_proj.weight": (D, q_width),
        "mlp.gate_proj.weight": (F, D),
        "mlp.up_proj.weight": (F, D),
        "mlp.down_proj.weight": (D, F),
    }
    if index == 0:
        shapes["hidden_norm.weight"] = (D,)
    if config.has_qk_norm:
        shapes |= {"self_attn.q_norm.weight": (H,), "self_attn.k_norm.weight": (H,)}
    return shapes


def _own_tables(config: Eagle3Config) -> dict[str, Shape]:
    """Return the tables that a head may bring along or borrow from the target."""
    names = ("embed_tokens.weight",) if config.draft_vocab_size else ("embed_tokens.weight", "lm_head.weight")
    return dict.fromkeys(names, (config.vocab_size, config.hidden_size))


def check_eagle3_tensors(config: Eagle3Config, shapes: dict[str, Shape]) -> None:
    """Compare the shapes of a checkpoint with those its config.json announces.

    Raises:
        UnsupportedModelError: a tensor belongs to a variant that is recognised but not implemented.
        CheckpointError: tensors are missing, surplus or misshapen.
    """
    kept = eagle3_shapes(config)
    V, U, D = config.vocab_size, config.draft_vocab_size or config.vocab_size, config.hidden_size
    optional: dict[str, tuple[Shape, ...]] = {name: (shape,) for name, shape in _own_tables(config).items()}
    optional |= {"t2d": ((V,),), "d2t": ((U,),), "verifier_norm.weight": ((D,),)}
    optional |= {"verifier_lm_head.weight": ((V, D), (U, D))}
    for name in sorted(set(shapes) - set(kept) - set(optional)):
        for part, what in _UNSUPPORTED_PARTS.items():
            if part in name:
                raise UnsupportedModelError(
                    f"this drafter uses {what} (tensor {name}), which is recognised and not yet supported"
                )
    fc = shapes.get("fc.weight")
    if fc is not None and len(fc) == 2 and fc[1] != kept["fc.weight"][1]:
        raise CheckpointError(
            f"fc.weight reads {fc[1]} features, but {config.num_taps} target layers of width {D} make "
            f"{config.num_taps * D}; name the tapped layers in config.json (`eagle_aux_hidden_state_layer_ids`)"
        )
    compare_shapes(kept, optional, shapes)


def _nothing_stored(path: Path) -> NotFoundError | UnsupportedModelError:
    if any(path.glob("*.bin")):
        return UnsupportedModelError(
            f"{path} holds its weights as a pickle (.bin), which can run code when it is opened; convert it with "
            "torch.load(..., weights_only=True) and safetensors.torch.save_file to model.safetensors"
        )
    return NotFoundError(f"{path} holds no .safetensors file; fetch the drafter's weights")
