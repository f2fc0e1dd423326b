"""The layout of llama.cpp: one GGUF file of architecture `dflash`, with the tokenizer of the target.

Matrices are stored as asked; norms, biases and the confidence head stay in float32, and so do rows that the
block of a quantisation does not divide. What the keys and names mean is written where they are read,
in `drafters/draft_gguf.py`.

Ref: llama.cpp, src/models/dflash.cpp.
"""

from __future__ import annotations

import re
from pathlib import Path

import gguf
import torch
from gguf.quants import quantize
from torch import Tensor

from blockdraft.drafters.block_config import BlockDraftConfig
from blockdraft.drafters.draft_checkpoint import reduced_ids
from blockdraft.drafters.draft_gguf import (
    ARCHITECTURE,
    BORROWS_HEAD_KEY,
    GGUF_NAMES,
    NUM_TARGET_LAYERS_KEY,
    TEMPERATURES_KEY,
)
from blockdraft.errors import ConfigError, PairError
from blockdraft.models.config import RopeConfig
from blockdraft.models.weights.gguf_file import ROPE_DIVISORS
from blockdraft.train.export.layout import Draft, StoredType, window_of, window_reasons

_TYPES = {
    "f32": gguf.GGMLQuantizationType.F32,
    "bf16": gguf.GGMLQuantizationType.BF16,
    "q8_0": gguf.GGMLQuantizationType.Q8_0,
}
_FILE_TYPES = {
    "f32": gguf.LlamaFileType.ALL_F32,
    "bf16": gguf.LlamaFileType.MOSTLY_BF16,
    "q8_0": gguf.LlamaFileType.MOSTLY_Q8_0,
}
_SHARED_TO_GGUF = {shared: name for name, shared in GGUF_NAMES.items()}
_LAYER = re.compile(r"^layers\.(\d+)\.")
_ROPE_TYPES = ("default", "linear", "yarn")


class GgufFileWriter:
    """Writes `<method>-draft-<type>.gguf`; llama.cpp knows a drafter beside its target by the first word."""

    types: tuple[StoredType, ...] = ("bf16", "f32", "q8_0")

    def __init__(self, tokenizer_path: Path | None = None) -> None:
        """Take the tokenizer from a GGUF file; None for the target's own."""
        self._tokenizer_path = tokenizer_path

    def why_not(self, config: BlockDraftConfig) -> list[str]:
        reasons = window_reasons(config)
        if len({layer.causal for layer in config.layers}) > 1:
            reasons.append("some of its layers are causal and others not, and there is one key for all")
        if config.kind == "draft-dflash" and config.anchor.anchor_predicts:
            reasons.append(
                "llama.cpp discards the first row of a drafter without a Markov head; this one predicts there"
            )
        if config.kind == "draft-dspark" and not config.markov_rank:
            reasons.append("it tells DSpark by the Markov tables, and this drafter has none")
        if config.markov_head_type not in ("none", "vanilla"):
            reasons.append(f"it has the plain Markov head only, not the {config.markov_head_type!r} one")
        if config.activation != "silu":
            reasons.append(f"its activation is {config.activation!r}; only 'silu' can be written")
        if config.rope.rope_type not in _ROPE_TYPES:
            reasons.append(f"its rotary scaling is {config.rope.rope_type!r}; {', '.join(_ROPE_TYPES)} can be written")
        if config.rope.attention_factor or config.rope.mscale or not config.rope.truncate:
            reasons.append("its yarn scaling has factors of its own, and there are no keys for them")
        return reasons

    def write(self, folder: Path, draft: Draft, stored_type: StoredType) -> Path:
        source = self._tokenizer_path or draft.target.path
        if source.suffix != ".gguf":
            raise ConfigError(
                f"a GGUF drafter carries its target's tokenizer as GGUF files do, and {source} is none; "
                "name a GGUF file of the same target with --tokenizer"
            )
        path = folder / f"{draft.method}-draft-{_TYPES[stored_type].name}.gguf"
        writer = gguf.GGUFWriter(path, ARCHITECTURE)
        writer.add_name(f"{draft.method} drafter for {draft.target.tokenizer.name}")
        writer.add_file_type(_FILE_TYPES[stored_type])
        writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
        _add_settings(writer, draft)
        _copy_tokenizer(writer, source, draft.config)
        for name, tensor in draft.tensors.items():
            kind = _type_of(name, tensor, stored_type)
            values = _gguf_values(name, tensor, draft.config).contiguous().numpy()
            data = values if kind == gguf.GGMLQuantizationType.I64 else quantize(values, kind)
            writer.add_tensor(_gguf_name(name), data, raw_dtype=kind)
        if divisors := draft.config.rope.freq_divisors:
            writer.add_tensor(ROPE_DIVISORS, torch.tensor(divisors).numpy())
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    def stored(self, name: str, tensor: Tensor, stored_type: StoredType) -> Tensor:
        is_rounded = _type_of(name, tensor, stored_type) == gguf.GGMLQuantizationType.BF16
        return tensor.to(torch.bfloat16) if is_rounded else tensor


def _type_of(name: str, tensor: Tensor, stored_type: StoredType) -> gguf.GGMLQuantizationType:
    if not tensor.is_floating_point():
        return gguf.GGMLQuantizationType.I64
    wanted = _TYPES[stored_type]
    block = gguf.GGML_QUANT_SIZES[wanted][0]
    stays_exact = tensor.ndim == 1 or name.startswith("confidence_head.") or tensor.shape[-1] % block
    return gguf.GGMLQuantizationType.F32 if stays_exact else wanted


def _gguf_name(name: str) -> str:
    match = _LAYER.match(name)
    general = _SHARED_TO_GGUF[_LAYER.sub("layers.{i}.", name)]
    return general.replace("{i}", match[1]) if match else general


def _gguf_values(name: str, tensor: Tensor, config: BlockDraftConfig) -> Tensor:
    if name == "d2t":  # offsets here, target ids there
        return reduced_ids(tensor)
    if name == "confidence_head.proj.weight" and config.confidence_head == "hidden":
        # There the head always reads the Markov embedding too; with weights of zero it says the same.
        return torch.cat((tensor, tensor.new_zeros(1, config.markov_rank)), dim=1)
    return tensor


def _add_settings(writer: gguf.GGUFWriter, draft: Draft) -> None:
    config, info = draft.config, draft.target.target.info
    writer.add_vocab_size(config.vocab_size)
    writer.add_context_length(info.context_length)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(len(config.layers))
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_heads)
    writer.add_head_count_kv(config.num_kv_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_causal_attention(config.layers[0].causal)
    _add_rope(writer, config.rope)
    if (window := window_of(config)) is not None:
        writer.add_sliding_window(window)
        writer.add_sliding_window_pattern([layer.window is not None for layer in config.layers])
    prefix = f"{ARCHITECTURE}."
    writer.add_uint32(prefix + "block_size", config.block_size)
    writer.add_array(prefix + "target_layers", [layer + 1 for layer in config.target_layer_ids])
    if config.kind == "draft-dspark":
        writer.add_bool(prefix + "sample_from_anchor", config.anchor.anchor_predicts)
        writer.add_bool(prefix + "has_confidence_head", config.confidence_head != "none")
    if config.logit_softcap:
        writer.add_final_logit_softcapping(config.logit_softcap)
    if config.output_multiplier != 1.0:
        writer.add_logit_scale(config.output_multiplier)
    if config.input_embedding_scale != 1.0:
        writer.add_embedding_scale(config.input_embedding_scale)
    writer.add_uint32(NUM_TARGET_LAYERS_KEY, info.num_layers)
    if config.borrows_head:
        writer.add_bool(BORROWS_HEAD_KEY, True)
    if config.confidence_temperatures:
        writer.add_array(TEMPERATURES_KEY, list(config.confidence_temperatures))


def _add_rope(writer: gguf.GGUFWriter, rope: RopeConfig) -> None:
    writer.add_rope_dimension_count(rope.rotary_dim)
    writer.add_rope_freq_base(rope.theta)
    if rope.rope_type == "default":
        return
    writer.add_rope_scaling_type(gguf.RopeScalingType(rope.rope_type))
    writer.add_rope_scaling_factor(rope.factor)
    if rope.original_context:
        writer.add_rope_scaling_orig_ctx_len(rope.original_context)
    if rope.rope_type == "yarn":
        writer.add_rope_scaling_yarn_beta_fast(rope.beta_fast)
        writer.add_rope_scaling_yarn_beta_slow(rope.beta_slow)


def _copy_tokenizer(writer: gguf.GGUFWriter, source: Path, config: BlockDraftConfig) -> None:
    """Copy the tokenizer's keys, types included.

    Raises:
        PairError: it has another number of tokens than the drafter.
    """
    fields = gguf.GGUFReader(source).fields
    tokens = fields["tokenizer.ggml.tokens"]
    if len(tokens.data) != config.vocab_size:
        raise PairError(
            f"the tokenizer of {source} has {len(tokens.data)} tokens, the drafter was made for {config.vocab_size}; "
            "name a GGUF file of the same target with --tokenizer"
        )
    mask_key = gguf.Keys.Tokenizer.MASK_ID
    for name, field in fields.items():
        if name.startswith("tokenizer.") and name != mask_key:
            writer.add_key_value(name, field.contents(), field.types[0], *field.types[1:])
    writer.add_mask_token_id(config.mask_token_id)
