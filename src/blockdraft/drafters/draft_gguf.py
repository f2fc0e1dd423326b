"""A block drafter in a GGUF file, as llama.cpp reads and its converter writes it.

One architecture name, `dflash`, stands for DFlash and DSpark: the second is told by its Markov tables. What
differs from the safetensors packagings is undone here: layers of the target are counted from the embedding
(one more than a decoder layer's id), and `d2t` holds target ids instead of offsets. Matrices of any type that
the `gguf` package can dequantise are computed in the target's dtype.

The keys under `blockdraft.` are our own; other programs skip them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from blockdraft.drafters.block_config import AnchorLayout, BlockDraftConfig, Kind, LayerAttention, read_temperatures
from blockdraft.errors import CheckpointError, NotFoundError, UnsupportedModelError
from blockdraft.models.config import RopeConfig
from blockdraft.models.weights.fill import StoredTensor
from blockdraft.models.weights.gguf_file import read_rope_divisors, stored_gguf_tensors
from blockdraft.models.weights.gguf_header import GgufHeader, read_gguf_header

ARCHITECTURE = "dflash"
MASK_TOKEN_KEY = "tokenizer.ggml.mask_token_id"
NUM_TARGET_LAYERS_KEY = "blockdraft.num_target_layers"
TEMPERATURES_KEY = "blockdraft.confidence_temperatures"
BORROWS_HEAD_KEY = "blockdraft.borrows_head"

GGUF_NAMES: Mapping[str, str] = {
    "fc.weight": "fc.weight",
    "enc.output_norm.weight": "hidden_norm.weight",
    "output_norm.weight": "norm.weight",
    "token_embd.weight": "embed_tokens.weight",
    "output.weight": "lm_head.weight",
    "d2t": "d2t",
    "markov_w1.weight": "markov_head.markov_w1.weight",
    "markov_w2.weight": "markov_head.markov_w2.weight",
    "conf_proj.weight": "confidence_head.proj.weight",
    "conf_proj.bias": "confidence_head.proj.bias",
    "blk.{i}.attn_norm.weight": "layers.{i}.input_layernorm.weight",
    "blk.{i}.attn_q.weight": "layers.{i}.self_attn.q_proj.weight",
    "blk.{i}.attn_k.weight": "layers.{i}.self_attn.k_proj.weight",
    "blk.{i}.attn_v.weight": "layers.{i}.self_attn.v_proj.weight",
    "blk.{i}.attn_output.weight": "layers.{i}.self_attn.o_proj.weight",
    "blk.{i}.attn_q_norm.weight": "layers.{i}.self_attn.q_norm.weight",
    "blk.{i}.attn_k_norm.weight": "layers.{i}.self_attn.k_norm.weight",
    "blk.{i}.ffn_norm.weight": "layers.{i}.post_attention_layernorm.weight",
    "blk.{i}.ffn_gate.weight": "layers.{i}.mlp.gate_proj.weight",
    "blk.{i}.ffn_up.weight": "layers.{i}.mlp.up_proj.weight",
    "blk.{i}.ffn_down.weight": "layers.{i}.mlp.down_proj.weight",
}
"""GGUF tensor name to the name that the safetensors packagings share; `{i}` stands for the layer."""

_UNSUPPORTED_KEYS = {
    "conv_kernel_size": "DFlash 2 (grouped convolutions)",
    "selector_rank": "DFlash 2 (candidate selector)",
    "hyper_connection.count": "a DeepSeek-V4 backbone",
    "expert_count": "a mixture-of-experts backbone",
    "attention.scale": "attention with a scale of its own",
    "attention.value_scale": "scaled attention values (MiMo)",
}
_DEFAULT_BLOCK_SIZE = 16
"""What llama.cpp takes for a DFlash file that does not say."""


@dataclass(frozen=True, kw_only=True)
class DraftGguf:
    """A drafter's file, described but not read."""

    config: BlockDraftConfig
    files: tuple[Path, ...]
    stored: dict[str, StoredTensor]
    """By the names that all packagings share."""

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: tensor.shape for name, tensor in self.stored.items()}

    def read(self, name: str) -> Tensor:
        """Return one tensor, dequantised; `d2t` as offsets."""
        tensor = self.stored[name].read_rows(0, self.stored[name].shape[0])
        # A file holds target ids there.
        return tensor.long() - torch.arange(len(tensor)) if name == "d2t" else tensor


def open_draft_gguf(path: Path) -> DraftGguf:
    """Read what a file says about itself.

    Raises:
        NotFoundError: there is no such file.
        UnsupportedModelError: the drafter is recognised, but not something we can run.
        CheckpointError: the file is damaged or its metadata incomplete.
    """
    if not path.is_file():
        raise NotFoundError(f"there is no file {path}")
    header = read_gguf_header(path)
    stored = {tensor.name: tensor for tensor in stored_gguf_tensors(header, GGUF_NAMES)}
    return DraftGguf(config=read_gguf_block_config(header), files=(path,), stored=stored)


def read_gguf_block_config(header: GgufHeader) -> BlockDraftConfig:
    """Read the metadata and the shapes of a drafter's GGUF file.

    Raises:
        UnsupportedModelError: the drafter is recognised, but not something we can run.
        CheckpointError: a key is missing.
    """
    reader = _Metadata(header)
    reader.refuse_unsupported()
    shapes = header.shapes
    is_dspark = "markov_w1.weight" in shapes
    hidden_size, num_heads = int(reader.need("embedding_length")), int(reader.need("attention.head_count"))
    head_dim = int(reader.get("attention.key_length") or hidden_size // num_heads)
    block_size = int(reader.need("block_size") if is_dspark else reader.get("block_size", _DEFAULT_BLOCK_SIZE))
    anchor = reader.anchor(is_dspark)
    confidence_head = "hidden+markov" if is_dspark and "conf_proj.weight" in shapes else "none"
    kind: Kind = "draft-dspark" if is_dspark else "draft-dflash"
    return BlockDraftConfig(
        kind=kind,
        layout="gguf",
        hidden_size=hidden_size,
        intermediate_size=int(reader.need("feed_forward_length")),
        num_heads=num_heads,
        num_kv_heads=int(reader.get("attention.head_count_kv") or num_heads),
        head_dim=head_dim,
        rms_norm_eps=float(reader.need("attention.layer_norm_rms_epsilon")),
        activation="silu",
        rope=reader.rope(head_dim),
        layers=reader.layers(),
        vocab_size=reader.vocab_size(),
        draft_vocab_size=shapes["d2t"][0] if "d2t" in shapes else None,
        block_size=block_size,
        anchor=anchor,
        mask_token_id=int(reader.need_whole(MASK_TOKEN_KEY)),
        target_layer_ids=reader.target_layer_ids(),
        num_target_layers=header.metadata.get(NUM_TARGET_LAYERS_KEY),
        logit_softcap=float(reader.get("final_logit_softcapping", 0.0)) or None,
        output_multiplier=float(reader.get("logit_scale", 0.0)) or 1.0,
        input_embedding_scale=float(reader.get("embedding_scale", 0.0)) or 1.0,
        markov_rank=shapes["markov_w1.weight"][1] if is_dspark else 0,
        markov_head_type="vanilla" if is_dspark else "none",
        confidence_head=confidence_head,  # type: ignore[arg-type]
        borrows_head=bool(header.metadata.get(BORROWS_HEAD_KEY, False)),
        confidence_temperatures=read_temperatures(
            header.metadata.get(TEMPERATURES_KEY),
            num_slots=block_size if anchor.anchor_predicts else block_size - 1,
            has_head=confidence_head != "none",
        ),
    )


class _Metadata:
    """The keys of a drafter's file."""

    def __init__(self, header: GgufHeader) -> None:
        self._header = header
        self._prefix = f"{ARCHITECTURE}."

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value of a key under the architecture's name."""
        return self._header.metadata.get(self._prefix + key, default)

    def need(self, key: str) -> Any:
        """Return a value that there is no default for."""
        return self.need_whole(self._prefix + key)

    def need_whole(self, key: str) -> Any:
        """Return a value by its whole key."""
        if (value := self._header.metadata.get(key)) is None:
            raise CheckpointError(f"{self._header.path} lacks the key {key}; convert the drafter again")
        return value

    def refuse_unsupported(self) -> None:
        path, architecture = self._header.path, self._header.architecture
        if architecture != ARCHITECTURE:
            raise UnsupportedModelError(
                f"{path} is a drafter of architecture {architecture!r}, which is recognised and not supported; "
                f"convert it to {ARCHITECTURE!r}, the one of mainline llama.cpp, or use the safetensors folder"
            )
        for key, what in _UNSUPPORTED_KEYS.items():
            if self.get(key):
                raise UnsupportedModelError(
                    f"{path} uses {what} (key {self._prefix}{key}), which is recognised and not yet supported; "
                    "use another drafter of the same target, or --spec-type ngram-mod, which needs none"
                )
        if (activation := self.get("hidden_activation", "silu")) != "silu":
            raise UnsupportedModelError(f"{path} uses the activation {activation!r}; only 'silu' is supported in GGUF")

    def rope(self, head_dim: int) -> RopeConfig:
        rope = RopeConfig.from_gguf(self._header.metadata, head_dim)
        if rope.rotary_dim != head_dim:
            raise UnsupportedModelError(
                f"{self._header.path} rotates {rope.rotary_dim} of {head_dim} channels of a head; "
                "drafters that rotate less than whole heads are not supported"
            )
        return replace(rope, freq_divisors=read_rope_divisors(self._header))

    def layers(self) -> tuple[LayerAttention, ...]:
        count, causal = int(self.need("block_count")), bool(self.get("attention.causal", False))
        window = int(self.get("attention.sliding_window") or 0)
        pattern = self.need("attention.sliding_window_pattern") if window else [False] * count
        if not isinstance(pattern, list) or len(pattern) != count:
            raise CheckpointError(
                f"{self._prefix}attention.sliding_window_pattern of {self._header.path} must say for each of the "
                f"{count} layers whether its window slides, not {pattern}"
            )
        return tuple(LayerAttention(causal=causal, window=window if slides else None) for slides in pattern)

    def anchor(self, is_dspark: bool) -> AnchorLayout:
        if not is_dspark:
            return AnchorLayout(anchor_predicts=False, source="llama.cpp's DFlash reserves the anchor's row")
        key = "sample_from_anchor"
        predicts = bool(self.get(key, True))
        return AnchorLayout(anchor_predicts=predicts, source=f"{self._prefix}{key} {str(predicts).lower()}")

    def target_layer_ids(self) -> tuple[int, ...]:
        ids = tuple(int(layer) - 1 for layer in self.need("target_layers"))
        if not ids or min(ids) < 0:
            raise UnsupportedModelError(
                f"{self._header.path} reads the inputs of the target's layers {[layer + 1 for layer in ids]}; only "
                "outputs of decoder layers (1 and up) can be read"
            )
        return ids

    def vocab_size(self) -> int:
        """Return the size of the target's vocabulary, from the tables that have it, or the list of tokens."""
        shapes = self._header.shapes
        tables = ("markov_w1.weight", "token_embd.weight", *(() if "d2t" in shapes else ("output.weight",)))
        for name in tables:
            if name in shapes:
                return shapes[name][0]
        num_tokens: int = self.get("vocab_size") or len(self.need_whole("tokenizer.ggml.tokens"))
        return num_tokens
