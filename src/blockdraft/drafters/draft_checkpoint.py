"""The tensors of a block drafter, loaded strictly: nothing missing, nothing surplus, every shape as announced.

Copies of the target's embedding and output head, which some trainers store, are checked and then left on
disk: the drafter shares the target's own. So does one whose description says that it borrows the rows of its
reduced vocabulary.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from blockdraft.drafters.block_config import BlockDraftConfig, check_pair, read_block_config
from blockdraft.drafters.draft_gguf import DraftGguf, open_draft_gguf
from blockdraft.errors import CheckpointError, NotFoundError, PairError, UnsupportedModelError
from blockdraft.models.base import TargetInfo

Shape = tuple[int, ...]

_RENAMED_PREFIXES = (("logit_head.markov_head.", "markov_head."), ("logit_head.confidence_head.", "confidence_head."))
"""Early SpecForge exports nested the heads."""

_UNSUPPORTED_PARTS = {
    "candidate_selector.": "DFlash 2 (candidate selector)",
    "_conv.": "DFlash 2 (grouped convolutions)",
    ".experts.": "a mixture-of-experts backbone",
    "kv_a_proj": "multi-head latent attention (MLA)",
    "sink": "attention sinks",
    "log_snr_embed.": "log-SNR conditioning (Bonsai)",
    "layer_scalar": "a Gemma 4 backbone",
    "mtp.": "a drafter inside a target checkpoint",
}
_NUM_LISTED = 8


@dataclass(frozen=True, kw_only=True)
class DraftCheckpoint:
    """A block drafter in memory."""

    config: BlockDraftConfig
    tensors: dict[str, Tensor]
    """By the names that all packagings share; index tables keep their integer type."""
    num_bytes: int
    files: tuple[Path, ...] = ()
    """Those that the tensors came from, if any did."""


@dataclass(frozen=True, kw_only=True)
class StoredTensor:
    """Where a tensor lies, without reading it."""

    file: Path
    name: str
    shape: Shape

    def read(self) -> Tensor:
        """Return the tensor."""
        with safe_open(self.file, framework="pt") as reader:
            tensor: Tensor = reader.get_tensor(self.name)
        return tensor


@dataclass(frozen=True, kw_only=True)
class DraftFolder:
    """A drafter's folder, described but not read."""

    config: BlockDraftConfig
    stored: dict[str, StoredTensor]

    @property
    def shapes(self) -> dict[str, Shape]:
        return {name: tensor.shape for name, tensor in self.stored.items()}

    @property
    def files(self) -> tuple[Path, ...]:
        return tuple(sorted({tensor.file for tensor in self.stored.values()}))

    def read(self, name: str) -> Tensor:
        """Return one tensor."""
        return self.stored[name].read()


def read_config_json(path: Path) -> dict[str, Any]:
    """Parse config.json of a checkpoint folder.

    Raises:
        NotFoundError: there is none.
        CheckpointError: it is not a JSON object.
    """
    file = path / "config.json"
    if not file.is_file():
        raise NotFoundError(f"{path} holds no config.json; name the folder of a drafter in Hugging Face format")
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CheckpointError(f"{file} is not valid JSON ({error}); fetch it again") from error
    if not isinstance(config, dict):
        raise CheckpointError(f"{file} is not a JSON object; fetch it again")
    return config


def list_tensors(path: Path) -> dict[str, StoredTensor]:
    """Return the tensors of all safetensors files in a folder, from the headers alone.

    Raises:
        CheckpointError: a file is damaged.
    """
    stored: dict[str, StoredTensor] = {}
    for file in sorted(path.glob("*.safetensors")):
        try:
            with safe_open(file, framework="pt") as reader:
                shapes = {name: tuple(reader.get_slice(name).get_shape()) for name in reader.keys()}  # noqa: SIM118
        except SafetensorError as error:
            raise CheckpointError(f"{file} is damaged or not a safetensors file ({error}); fetch it again") from error
        for name, shape in shapes.items():
            stored[_shared_name(name)] = StoredTensor(file=file, name=name, shape=shape)
    return stored


def open_draft_checkpoint(path: Path) -> DraftFolder | DraftGguf:
    """Read what a folder or a GGUF file says about the drafter in it, and leave its weights on the disk.

    Raises:
        NotFoundError: the folder or its files do not exist.
        UnsupportedModelError: the drafter is recognised, but not something we can run.
        CheckpointError: its description is damaged.
    """
    if path.suffix == ".gguf":
        return open_draft_gguf(path)
    config = read_block_config(read_config_json(path))
    stored = list_tensors(path)
    if not stored:
        raise NotFoundError(f"{path} holds no .safetensors file; fetch the drafter's weights")
    return DraftFolder(config=config, stored=stored)


def load_draft_checkpoint(path: Path, info: TargetInfo) -> DraftCheckpoint:
    """Load the drafter in `path`, a folder or a GGUF file, in the dtype and on the device of its target.

    Raises:
        NotFoundError: the folder or its files do not exist.
        UnsupportedModelError: the drafter is recognised, but not something we can run.
        CheckpointError: its description or the tensors are not what they should be.
        PairError: the drafter was made for another target.
    """
    draft = open_draft_checkpoint(path)
    config = draft.config
    if reasons := check_pair(config, info):
        raise PairError(f"the drafter {path} does not fit the target ({info.family}): " + "; ".join(reasons))
    check_tensors(config, draft.shapes)
    tensors: dict[str, Tensor] = {}
    for name in kept_shapes(config):
        tensor = draft.read(name)
        tensors[name] = tensor.to(info.device, info.dtype if tensor.is_floating_point() else tensor.dtype)
    if config.draft_vocab_size is not None:
        inverse = draft.read("t2d") if "t2d" in draft.shapes else None
        check_vocabulary_map(path, config.vocab_size, tensors["d2t"], inverse)
    num_bytes = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    return DraftCheckpoint(config=config, tensors=tensors, num_bytes=num_bytes, files=draft.files)


def kept_shapes(config: BlockDraftConfig) -> dict[str, Shape]:
    """Return the tensors that a drafter must have."""
    D, F = config.hidden_size, config.intermediate_size
    H, U = config.head_dim, config.draft_vocab_size or config.vocab_size
    q_width, kv_width = config.num_heads * H, config.num_kv_heads * H
    shapes: dict[str, Shape] = {
        "fc.weight": (D, len(config.target_layer_ids) * D),
        "hidden_norm.weight": (D,),
        "norm.weight": (D,),
    }
    layer: dict[str, Shape] = {
        "input_layernorm.weight": (D,),
        "post_attention_layernorm.weight": (D,),
        "self_attn.q_proj.weight": (q_width, D),
        "self_attn.k_proj.weight": (kv_width, D),
        "self_attn.v_proj.weight": (kv_width, D),
        "self_attn.o_proj.weight": (D, q_width),
        "self_attn.q_norm.weight": (H,),
        "self_attn.k_norm.weight": (H,),
        "mlp.gate_proj.weight": (F, D),
        "mlp.up_proj.weight": (F, D),
        "mlp.down_proj.weight": (D, F),
    }
    for index in range(len(config.layers)):
        shapes |= {f"layers.{index}.{name}": shape for name, shape in layer.items()}
    if config.draft_vocab_size is not None:
        shapes["d2t"] = (U,)
        if not config.borrows_head:
            shapes["lm_head.weight"] = (U, D)
    if rank := config.markov_rank:
        # The first table is indexed by the target's ids, the second gives logits over the draft's.
        shapes |= {"markov_head.markov_w1.weight": (config.vocab_size, rank), "markov_head.markov_w2.weight": (U, rank)}
        if config.markov_head_type == "gated":
            shapes |= {"markov_head.gate_proj.weight": (rank, D + rank), "markov_head.gate_proj.bias": (rank,)}
        elif config.markov_head_type == "rnn":
            width = 2 * rank + D
            shapes |= {"markov_head.joint_proj.weight": (3 * rank, width), "markov_head.joint_proj.bias": (3 * rank,)}
    if config.confidence_head != "none":
        width = D + (config.markov_rank if config.confidence_head == "hidden+markov" else 0)
        shapes |= {"confidence_head.proj.weight": (1, width), "confidence_head.proj.bias": (1,)}
    return shapes


def _optional_shapes(config: BlockDraftConfig) -> dict[str, tuple[Shape, ...]]:
    """Return the tensors that may be there and are not needed: copies of the target's, and the inverse map."""
    V, D = config.vocab_size, config.hidden_size
    U = config.draft_vocab_size or V
    optional: dict[str, tuple[Shape, ...]] = {
        "embed_tokens.weight": ((V, D),),
        "verifier_norm.weight": ((D,),),
        "verifier_lm_head.weight": ((V, D), (U, D)),
    }
    return optional | ({"lm_head.weight": ((V, D),)} if config.draft_vocab_size is None else {"t2d": ((V,),)})


def reduced_ids(offsets: Tensor) -> Tensor:
    """Return the target ids of a reduced vocabulary from `d2t`. Shapes: [U] each."""
    return offsets.long() + torch.arange(len(offsets), device=offsets.device)


def reduced_mask(offsets: Tensor, vocab_size: int) -> Tensor:
    """Return `t2d`, which tokens of the target are in a reduced vocabulary. Shapes: offsets [U]; returns bool [V]."""
    return torch.zeros(vocab_size, dtype=torch.bool).index_fill_(0, reduced_ids(offsets), True)


def check_tensors(config: BlockDraftConfig, shapes: dict[str, Shape]) -> None:
    """Compare the shapes of a checkpoint with those its config.json announces.

    Raises:
        UnsupportedModelError: a tensor belongs to a variant that is recognised but not implemented.
        CheckpointError: tensors are missing, surplus or misshapen.
    """
    kept, optional = kept_shapes(config), _optional_shapes(config)
    surplus = sorted(set(shapes) - set(kept) - set(optional))
    for name in surplus:
        for part, what in _UNSUPPORTED_PARTS.items():
            if part in name:
                raise UnsupportedModelError(
                    f"this drafter uses {what} (tensor {name}), which is recognised and not yet supported"
                )
    fc = shapes.get("fc.weight")
    if fc is not None and len(fc) == 2 and fc[1] != kept["fc.weight"][1]:
        count, D = len(config.target_layer_ids), config.hidden_size
        raise CheckpointError(
            f"fc.weight reads {fc[1]} features, but config.json names {count} target layers of width {D}, "
            f"which makes {count * D}; correct `target_layer_ids`"
        )
    compare_shapes(kept, optional, shapes)


def compare_shapes(
    kept: Mapping[str, Shape], optional: Mapping[str, tuple[Shape, ...]], shapes: Mapping[str, Shape]
) -> None:
    """Compare the shapes of a checkpoint with those it must have and those it may have.

    Raises:
        CheckpointError: tensors are missing, surplus or misshapen.
    """
    surplus = sorted(set(shapes) - set(kept) - set(optional))
    problems = [f"missing: {_listed(sorted(set(kept) - set(shapes)))}"] if set(kept) - set(shapes) else []
    if surplus:
        problems.append(f"surplus: {_listed(surplus)}")
    expected = {name: (shape,) for name, shape in kept.items()} | dict(optional)
    misshapen = [
        f"{name} is {list(shape)}, not {' or '.join(str(list(want)) for want in expected[name])}"
        for name, shape in sorted(shapes.items())
        if name in expected and shape not in expected[name]
    ]
    if misshapen:
        problems.append(f"misshapen: {_listed(misshapen)}")
    if problems:
        raise CheckpointError(
            "the tensors of the drafter do not match its config.json; " + "; ".join(problems) + ". "
            "Fetch the checkpoint again, or correct config.json"
        )


def check_vocabulary_map(path: Path, vocab_size: int, offsets: Tensor, inverse: Tensor | None) -> None:
    """`d2t` holds offsets: draft id i stands for target id i + d2t[i]. Check that, with `t2d` if it is there.

    Raises:
        CheckpointError: the map leaves the vocabulary, names a token twice, or contradicts `t2d`.
    """
    ids = reduced_ids(offsets.cpu())
    in_range = bool((ids >= 0).all()) and bool((ids < vocab_size).all())
    if not in_range or len(set(ids.tolist())) != len(ids):
        raise CheckpointError(
            f"{path}: `d2t` does not map the {len(ids)} draft tokens to as many tokens of the target's "
            f"{vocab_size}; it must hold offsets (target id minus draft id)"
        )
    if inverse is None:
        return
    if not torch.equal(ids.sort().values, inverse.cpu().bool().nonzero()[:, 0]):
        raise CheckpointError(f"{path}: `d2t` and `t2d` name different tokens; fetch the checkpoint again")


def _shared_name(name: str) -> str:
    for prefix, shared in _RENAMED_PREFIXES:
        if name.startswith(prefix):
            return shared + name[len(prefix) :]
    return name


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _NUM_LISTED} more" if len(names) > _NUM_LISTED else ""
    return ", ".join(names[:_NUM_LISTED]) + more
