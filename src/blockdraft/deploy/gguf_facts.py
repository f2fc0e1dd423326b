"""The same facts from the metadata and the tensor shapes of a GGUF file, handed over as plain mappings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from blockdraft.deploy.bits import quantization_in_name
from blockdraft.deploy.model_facts import DraftFacts, TargetFacts

Metadata = Mapping[str, Any]
Shapes = Mapping[str, tuple[int, ...]]

_STATE_BYTES = 4


class _Keys:
    """The keys of one architecture, without its prefix."""

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata
        self._prefix = f"{metadata.get('general.architecture', '')}."

    def get(self, key: str) -> Any:
        return self._metadata.get(self._prefix + key)

    def integer(self, key: str) -> int | None:
        value = self.get(key)
        if isinstance(value, list):  # one for each layer, 0 where a layer has none
            value = max(value, default=None)
        return int(value) if value is not None else None


def target_from_gguf(metadata: Metadata, shapes: Shapes, name: str, *, file_bytes: int | None = None) -> TargetFacts:
    """Read the facts of a target out of a GGUF header."""
    keys = _Keys(metadata)
    num_mtp = keys.integer("nextn_predict_layers") or 0
    blocks = keys.integer("block_count")
    num_layers = blocks - num_mtp if blocks is not None else None  # the heads come after the trunk and are counted
    num_linear = _num_linear(keys, num_layers)
    window = keys.integer("attention.sliding_window")
    hidden, heads = keys.integer("embedding_length"), keys.integer("attention.head_count")
    return TargetFacts(
        name=name,
        origin="GGUF header",
        model_type=str(metadata.get("general.architecture")),
        num_layers=num_layers,
        num_full_layers=num_layers - num_linear if num_layers is not None and not window else None,
        num_linear_layers=num_linear,
        sliding_window=window,
        hidden_size=hidden,
        vocab_size=_vocab_size(metadata, shapes),
        num_kv_heads=keys.integer("attention.head_count_kv") or heads,
        head_dim=keys.integer("attention.key_length") or (hidden // heads if hidden and heads else None),
        context_length=keys.integer("context_length"),
        rope_type=keys.get("rope.scaling.type"),
        num_experts=keys.integer("expert_count") or 0,
        num_active_experts=keys.integer("expert_used_count"),
        state_bytes=_state_bytes(keys, num_linear),
        num_mtp_layers=num_mtp,
        num_parameters=sum(map(_product, shapes.values())) or None,
        num_expert_parameters=sum(_product(shape) for key, shape in shapes.items() if "_exps." in key),
        file_bytes=file_bytes,
        quantization=quantization_in_name(name),
        is_multimodal=False,  # images come through a file of their own
        tensor_names=frozenset(shapes) if shapes else None,
    )


def _product(shape: tuple[int, ...]) -> int:
    total = 1
    for size in shape:
        total *= size
    return total


def _num_linear(keys: _Keys, num_layers: int | None) -> int:
    if num_layers is None or keys.integer("ssm.state_size") is None:
        return 0
    interval = keys.integer("full_attention_interval") or 4
    return num_layers - num_layers // interval


def _state_bytes(keys: _Keys, num_linear: int) -> int | None:
    if not num_linear:
        return 0
    sizes = [keys.integer(f"ssm.{key}") for key in ("state_size", "inner_size", "group_count", "conv_kernel")]
    if any(size is None for size in sizes):
        return None
    state, inner, groups, kernel = (size or 0 for size in sizes)
    return num_linear * _STATE_BYTES * (state * inner + (inner + 2 * groups * state) * (kernel - 1))


def _vocab_size(metadata: Metadata, shapes: Shapes) -> int | None:
    if table := shapes.get("token_embd.weight"):
        return table[0]
    tokens = metadata.get("tokenizer.ggml.tokens")
    return len(tokens) if tokens else None


def draft_from_gguf(metadata: Metadata, shapes: Shapes, name: str, *, file_bytes: int | None = None) -> DraftFacts:
    """Read the facts of a drafter out of a GGUF header; `target_layers` there count the layer that is read next."""
    keys = _Keys(metadata)
    architecture = str(metadata.get("general.architecture"))
    has_markov = "markov_w1.weight" in shapes
    method = {"eagle3": "eagle3"}.get(architecture)
    if architecture == "dflash":
        method = "dspark" if has_markov else "dflash"
    ids = keys.get("target_layers")
    pattern = keys.get("attention.sliding_window_pattern")
    hidden = keys.integer("embedding_length")
    anchor = keys.get("sample_from_anchor")
    return DraftFacts(
        name=name,
        origin="GGUF header",
        method=method,
        architecture=architecture,
        num_layers=keys.integer("block_count"),
        hidden_size=hidden,
        num_kv_heads=keys.integer("attention.head_count_kv"),
        head_dim=keys.integer("attention.key_length"),
        block_size=keys.integer("block_size"),
        drafts_from_anchor=has_markov if anchor is None else bool(anchor),
        declared_sample_from_anchor=anchor,
        target_layer_ids=tuple(int(number) - 1 for number in ids) if ids else None,
        target_hidden_size=hidden,
        mask_token_id=metadata.get("tokenizer.ggml.mask_token_id"),
        num_sliding_layers=sum(map(bool, pattern)) if isinstance(pattern, list) else None,
        sliding_window=keys.integer("attention.sliding_window"),
        vocab_size=_vocab_size(metadata, shapes),
        context_length=keys.integer("context_length"),
        is_dflash2=keys.integer("selector_rank") is not None,
        markov_rank=shapes["markov_w1.weight"][-1] if has_markov else None,
        num_parameters=sum(map(_product, shapes.values())) or None,
        file_bytes=file_bytes,
        quantization=quantization_in_name(name),
        tensor_names=frozenset(shapes) if shapes else None,
        fc_width=shapes["fc.weight"][-1] if "fc.weight" in shapes else None,
    )
