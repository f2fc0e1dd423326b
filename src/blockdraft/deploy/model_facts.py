"""What a plan must know of a target and of a drafter, read from a config.json, from GGUF metadata or the registry.

Everything may be unknown, which is None: whoever needs it says so instead of guessing. Layer ids are 0-based and mean
the output of that decoder layer.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from blockdraft.deploy.bits import (
    KEEPS_EMBEDDINGS,
    normalized,
    quantization_in_config,
    quantization_in_name,
    weight_bits,
)
from blockdraft.deploy.target_sizes import (
    layer_kinds,
    num_draft_parameters,
    num_expert_parameters,
    num_parameters,
    state_bytes,
)

Json = Mapping[str, Any]
Thinking = Literal["on", "off"]

_NO_FILES: frozenset[str] = frozenset()
_SINK_KEYS = ("attention_sink_bias", "add_swa_attention_sink_bias", "attention_sinks")


@dataclass(frozen=True, kw_only=True)
class TargetFacts:
    """Sizes of a target, and what is known of its files."""

    name: str
    origin: str
    """Where the facts come from: `config.json`, `GGUF header`, or the registry and why it applies."""
    base: str | None = None
    """The registered model that this one is, or was made from."""
    model_type: str | None = None
    architecture: str | None = None
    num_layers: int | None = None
    num_full_layers: int | None = None
    num_linear_layers: int = 0
    num_sliding_layers: int = 0
    sliding_window: int | None = None
    hidden_size: int | None = None
    vocab_size: int | None = None
    num_kv_heads: int | None = None
    head_dim: int | None = None
    context_length: int | None = None
    rope_type: str | None = None
    num_experts: int | None = None
    num_active_experts: int | None = None
    state_bytes: int | None = None
    """Recurrent state of one sequence at one position, all linear layers, in float32 as engines keep it."""
    num_mtp_layers: int | None = None
    num_parameters: int | None = None
    num_embedding_parameters: int = 0
    """Of those, in the embedding and the output head."""
    num_expert_parameters: int | None = None
    """Of those, in the routed experts."""
    file_bytes: int | None = None
    quantization: str | None = None
    quantized_activations: bool = False
    """True for compressed-tensors schemes like W8A8, which need arithmetic in that type."""
    unquantized_parts: tuple[str, ...] = ()
    """What a quantised checkpoint says it left alone."""
    is_multimodal: bool | None = None
    tensor_names: frozenset[str] | None = None

    @property
    def is_hybrid(self) -> bool:
        return self.num_linear_layers > 0

    @property
    def is_mixture(self) -> bool | None:
        return None if self.num_experts is None else self.num_experts > 1

    @property
    def weight_bytes(self) -> int | None:
        """Bytes of the files if they are known, else computed from sizes and quantisation."""
        if self.file_bytes is not None:
            return self.file_bytes
        return bytes_of_weights(self.num_parameters, self.num_embedding_parameters, self.quantization)


@dataclass(frozen=True, kw_only=True)
class DraftFacts:
    """Sizes and conventions of a drafter, and what is known of its files."""

    name: str
    origin: str
    method: str | None = None
    architecture: str | None = None
    num_layers: int | None = None
    hidden_size: int | None = None
    num_kv_heads: int | None = None
    head_dim: int | None = None
    block_size: int | None = None
    drafts_from_anchor: bool | None = None
    """True if a block of B drafts B tokens, False if B - 1."""
    declared_sample_from_anchor: bool | None = None
    target_layer_ids: tuple[int, ...] | None = None
    num_target_layers: int | None = None
    target_hidden_size: int | None = None
    mask_token_id: int | None = None
    num_sliding_layers: int | None = None
    sliding_window: int | None = None
    vocab_size: int | None = None
    draft_vocab_size: int | None = None
    context_length: int | None = None
    trained_context: int | None = None
    rope_type: str | None = None
    declares_rope_style: bool = False
    interleaved_rope: bool | None = None
    has_sinks: bool = False
    is_dflash2: bool = False
    projector_type: str | None = None
    markov_rank: int | None = None
    num_parameters: int | None = None
    file_bytes: int | None = None
    quantization: str | None = None
    thinking: Thinking | None = None
    """Which mode of the target it was trained on."""
    verifier: str | None = None
    tensor_names: frozenset[str] | None = None
    fc_width: int | None = None
    """Columns of `fc.weight`, from the header of the file."""
    file_names: frozenset[str] | None = None

    @property
    def max_draft_tokens(self) -> int | None:
        """Most tokens that one pass of the drafter gives."""
        if self.block_size is None:
            return None
        return self.block_size if self.drafts_from_anchor else self.block_size - 1

    @property
    def weight_bytes(self) -> int | None:
        if self.file_bytes is not None:
            return self.file_bytes
        return bytes_of_weights(self.num_parameters, 0, self.quantization)


def bytes_of_weights(num_parameters: int | None, num_embedding: int, quantization: str | None) -> int | None:
    """Return what weights take: parameters times bits, the embedding in 16 bits where a scheme leaves it alone."""
    if num_parameters is None:
        return None
    kept = num_embedding if normalized(quantization) in KEEPS_EMBEDDINGS else 0
    return int((num_parameters - kept) * weight_bits(quantization) / 8 + kept * 2)


def text_config(config: Json) -> Json:
    """Return the part of a config.json that describes the language model."""
    for key in ("text_config", "llm_config", "language_config"):
        if isinstance(config.get(key), Mapping):
            return dict(config[key])
    return config


def _rope_type(config: Json) -> str | None:
    rope = dict(config.get("rope_scaling") or {}) | dict(config.get("rope_parameters") or {})
    found = rope.get("rope_type") or rope.get("type")
    return str(found) if found else None


def _integer(config: Json, *keys: str) -> int | None:
    return next((int(config[key]) for key in keys if config.get(key) is not None), None)


def target_from_hf(config: Json, name: str, *, origin: str = "config.json") -> TargetFacts:
    """Read the facts of a target out of its config.json."""
    text = text_config(config)
    kinds = layer_kinds(text)
    heads, hidden = _integer(text, "num_attention_heads"), _integer(text, "hidden_size")
    total, embedding = num_parameters(text)
    quantization = config.get("quantization_config") or text.get("quantization_config") or {}
    return TargetFacts(
        name=name,
        origin=origin,
        model_type=config.get("model_type") or text.get("model_type"),
        architecture=next(iter(config.get("architectures") or ()), None),
        num_layers=_integer(text, "num_hidden_layers"),
        num_full_layers=kinds.count("full_attention") if kinds else None,
        num_linear_layers=kinds.count("linear_attention"),
        num_sliding_layers=kinds.count("sliding_attention"),
        sliding_window=_integer(text, "sliding_window") if "sliding_attention" in kinds else None,
        hidden_size=hidden,
        vocab_size=_integer(text, "vocab_size"),
        num_kv_heads=_integer(text, "num_key_value_heads") or heads,
        head_dim=_integer(text, "head_dim") or (hidden // heads if hidden and heads else None),
        context_length=_integer(text, "max_position_embeddings"),
        rope_type=_rope_type(text),
        num_experts=_integer(text, "num_experts", "num_local_experts", "n_routed_experts") or 0,
        num_active_experts=_integer(text, "num_experts_per_tok"),
        state_bytes=state_bytes(text, kinds),
        num_mtp_layers=_integer(text, "mtp_num_hidden_layers", "num_nextn_predict_layers") or 0,
        num_parameters=total,
        num_embedding_parameters=embedding,
        num_expert_parameters=num_expert_parameters(text),
        quantization=quantization_in_config(config) or quantization_in_name(name),
        quantized_activations=_quantizes_activations(quantization),
        unquantized_parts=_unquantized(quantization),
        is_multimodal="vision_config" in config,
    )


def _unquantized(quantization: Json) -> tuple[str, ...]:
    keys = ("modules_to_not_convert", "ignore", "ignored_layers", "exclude_modules")
    return tuple(str(name) for key in keys for name in quantization.get(key) or ())


def _quantizes_activations(quantization: Json) -> bool:
    groups = quantization.get("config_groups") or {}
    return any(group.get("input_activations") for group in groups.values())


def draft_from_hf(
    config: Json,
    name: str,
    *,
    origin: str = "config.json",
    shapes: Mapping[str, Collection[int]] | None = None,
    file_names: Collection[str] | None = None,
) -> DraftFacts:
    """Read the facts of a drafter out of its config.json; `shapes` are those of its tensors, if files are there."""
    nested: Json = config.get("dflash_config") or {}
    flat = {**config, **nested}
    body: Json = {**flat, **(config.get("transformer_layer_config") or {})}
    ids = flat.get("target_layer_ids") or flat.get("dspark_target_layer_ids") or flat.get("layer_ids")
    if ids is None and flat.get("aux_hidden_state_layer_ids"):
        ids = [number - 1 for number in flat["aux_hidden_state_layer_ids"]]  # these count the layer that is read next
    kinds = body.get("layer_types") or ()
    window = _integer(body, "sliding_window", "swa_window_size")
    num_layers = _integer(body, "num_hidden_layers")
    method = _method_of(config, flat)
    heads, hidden = _integer(body, "num_attention_heads"), _integer(body, "hidden_size")
    return DraftFacts(
        name=name,
        origin=origin,
        method=method,
        architecture=next(iter(config.get("architectures") or ()), None),
        num_layers=num_layers,
        hidden_size=hidden,
        num_kv_heads=_integer(body, "num_key_value_heads") or heads,
        head_dim=_integer(body, "head_dim") or (hidden // heads if hidden and heads else None),
        block_size=_integer(nested, "block_size") or _integer(config, "block_size", "dspark_block_size"),
        drafts_from_anchor=_drafts_from_anchor(config, flat, method),
        declared_sample_from_anchor=flat.get("sample_from_anchor"),
        target_layer_ids=tuple(map(int, ids)) if ids else None,
        num_target_layers=_integer(flat, "num_target_layers"),
        target_hidden_size=_integer(flat, "target_hidden_size") or hidden,
        mask_token_id=_integer(flat, "mask_token_id", "dspark_noise_token_id", "pard_token", "ptd_token_id"),
        num_sliding_layers=(num_layers or 0) if flat.get("use_swa") else list(kinds).count("sliding_attention"),
        sliding_window=window,
        vocab_size=_integer(body, "vocab_size"),
        draft_vocab_size=_integer(flat, "draft_vocab_size"),
        context_length=_integer(body, "max_position_embeddings"),
        rope_type=_rope_type(body),
        declares_rope_style="is_neox_style" in body,
        interleaved_rope=not body["is_neox_style"] if "is_neox_style" in body else None,
        has_sinks=any(flat.get(key) for key in _SINK_KEYS),
        is_dflash2="DFlash2" in str(config.get("architectures"))
        or "selector_rank" in flat
        or "conv_kernel_size" in flat,
        projector_type=flat.get("projector_type"),
        markov_rank=_integer(flat, "markov_rank", "dspark_markov_rank"),
        num_parameters=num_draft_parameters(body, len(ids or ()), _integer(flat, "markov_rank")),
        quantization=quantization_in_config(config),
        verifier=((config.get("speculators_config") or {}).get("verifier") or {}).get("name_or_path"),
        tensor_names=frozenset(shapes) if shapes is not None else None,
        fc_width=_fc_width(shapes),
        file_names=frozenset(file_names) if file_names is not None else None,
    )


def _fc_width(shapes: Mapping[str, Collection[int]] | None) -> int | None:
    shape = next((shape for key in ("fc.weight", "encoder.fc.weight") if (shape := (shapes or {}).get(key))), None)
    return tuple(shape)[-1] if shape else None


def _method_of(config: Json, flat: Json) -> str | None:
    """Return the method that a drafter's config.json stands for, or None for a plain language model."""
    declared = str(config.get("speculators_model_type") or "")
    if declared:
        return {"dflash2": "dflash", "peagle": "eagle3"}.get(declared, declared)
    names = " ".join(map(str, config.get("architectures") or ())).lower()
    # DeepSpec writes DFlash drafters under the same name, with the Markov head off.
    if "dspark" in names or flat.get("projector_type") == "dspark" or "dspark_block_size" in config:
        rank = _integer(flat, "markov_rank", "dspark_markov_rank")
        return "dflash" if rank == 0 else "dspark"
    if "dflash" in names or "dflash_config" in config or "museglimmerassistant" in names:
        return "dflash"
    return "eagle3" if "eagle3" in names else None


def _drafts_from_anchor(config: Json, flat: Json, method: str | None) -> bool | None:
    proposals = (config.get("speculators_config") or {}).get("proposal_methods") or ()
    block = _integer(flat, "block_size")
    spoken = _integer(proposals[0], "speculative_tokens") if proposals else None
    if spoken is not None and block is not None:
        return spoken >= block
    if flat.get("sample_from_anchor") is not None:
        return bool(flat["sample_from_anchor"])
    if method == "dspark" or "DSpark" in str(config.get("architectures")):
        return True
    return False if method == "dflash" else None


def with_registry(facts: DraftFacts, registered: DraftFacts | None) -> DraftFacts:
    """Return `facts` with what the registry knows besides: training, and whatever the files do not say."""
    if registered is None:
        return facts
    unknown = {
        name: value
        for name, value in vars(registered).items()
        if getattr(facts, name) is None and value is not None and name not in ("tensor_names", "file_names")
    }
    return replace(facts, **unknown)
