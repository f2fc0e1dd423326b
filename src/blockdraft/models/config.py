"""What a decoder-only model looks like, as plain data read from a config.json or from GGUF metadata.

Imports no torch: planning and inspecting need the numbers, not the arithmetic. What only one family knows
(biases, norms of q and k, experts) is added by the file of that family.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blockdraft.errors import CheckpointError, UnsupportedModelError

_ROPE_TYPES = ("default", "linear", "llama3", "yarn")


@dataclass(frozen=True, kw_only=True)
class RopeConfig:
    """Frequencies and scaling of one rotary embedding."""

    theta: float
    rotary_dim: int
    rope_type: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context: int = 0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True
    freq_divisors: tuple[float, ...] | None = None
    """Explicit divisors of each frequency, as GGUF's `rope_freqs.weight` stores them."""

    @classmethod
    def from_hf(cls, config: Mapping[str, Any], head_dim: int) -> RopeConfig:
        """Read the flat (`rope_theta`, `rope_scaling`) or nested (`rope_parameters`) keys of a config.json.

        Raises:
            UnsupportedModelError: the rope type is none of default, linear, llama3, yarn.
        """
        params: dict[str, Any] = dict(config.get("rope_scaling") or {}) | dict(config.get("rope_parameters") or {})
        rope_type = _supported_rope(str(params.get("rope_type") or params.get("type") or "default"))
        partial = params.get("partial_rotary_factor", config.get("partial_rotary_factor")) or 1.0
        optional = {
            key: params[key]
            for key in ("low_freq_factor", "high_freq_factor", "beta_fast", "beta_slow", "truncate")
            if params.get(key) is not None
        }
        return cls(
            theta=float(params.get("rope_theta") or config.get("rope_theta") or 10000.0),
            rotary_dim=int(head_dim * float(partial)),
            rope_type=rope_type,
            factor=float(params.get("factor") or 1.0),
            original_context=int(
                params.get("original_max_position_embeddings") or config.get("max_position_embeddings") or 0
            ),
            attention_factor=params.get("attention_factor"),
            mscale=params.get("mscale"),
            mscale_all_dim=params.get("mscale_all_dim"),
            **optional,
        )

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any], head_dim: int) -> RopeConfig:
        """Read the `<architecture>.rope.*` keys of a GGUF file.

        Raises:
            UnsupportedModelError: the scaling type is none of none, linear, yarn, or has a factor of its own.
        """
        prefix = f"{metadata['general.architecture']}.rope."
        scaling = str(metadata.get(prefix + "scaling.type", "none"))
        for key in ("attn_factor", "yarn_attn_factor", "yarn_ext_factor", "yarn_log_multiplier"):
            if metadata.get(f"{prefix}scaling.{key}", 1.0) != 1.0:
                raise UnsupportedModelError(f"the rope scaling key {prefix}scaling.{key} is not supported")
        optional: dict[str, Any] = {
            key: float(metadata[f"{prefix}scaling.yarn_{key}"])
            for key in ("beta_fast", "beta_slow")
            if f"{prefix}scaling.yarn_{key}" in metadata
        }
        context = metadata.get(f"{metadata['general.architecture']}.context_length", 0)
        return cls(
            theta=float(metadata.get(prefix + "freq_base", 10000.0)),
            rotary_dim=int(metadata.get(prefix + "dimension_count", head_dim)),
            rope_type="default" if scaling == "none" else _supported_rope(scaling),
            factor=float(metadata.get(prefix + "scaling.factor", 1.0)),
            original_context=int(metadata.get(prefix + "scaling.original_context_length", context)),
            **optional,
        )


def _supported_rope(rope_type: str) -> str:
    if rope_type not in _ROPE_TYPES:
        raise UnsupportedModelError(f"rope type {rope_type!r} is not supported; supported are {', '.join(_ROPE_TYPES)}")
    return rope_type


@dataclass(frozen=True, kw_only=True)
class MoeConfig:
    """The experts of a mixture: how many there are, how many run for a token, how wide each is."""

    num_experts: int
    num_active: int
    intermediate_size: int
    normalize_weights: bool
    """True if the weights of the active experts are rescaled to sum to 1."""
    layers: frozenset[int]
    """Decoder layers with experts; the others are dense."""


@dataclass(frozen=True, kw_only=True)
class DecoderConfig:
    """Sizes and options of a decoder whose layers are attention followed by a gated SiLU MLP."""

    family: str
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    context_length: int
    rms_norm_eps: float
    rope: RopeConfig
    tie_embeddings: bool
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    windows: tuple[int | None, ...]
    """For each layer, how many tokens a row sees (itself included); None for all."""
    moe: MoeConfig | None = None


@dataclass(frozen=True, kw_only=True)
class Family:
    """All that is peculiar to one architecture family, as data and two small readers."""

    name: str
    hf_architectures: tuple[str, ...]
    gguf_architectures: tuple[str, ...]
    gguf_names: Mapping[str, str]
    """GGUF tensor name to Hugging Face tensor name; `{i}` stands for the layer."""
    gguf_interleaves_rope: bool = False
    """True if GGUF files store the rows of q and k permuted for interleaved rope."""
    config_from_hf: Callable[[Mapping[str, Any]], DecoderConfig]
    config_from_gguf: Callable[[Mapping[str, Any], Mapping[str, tuple[int, ...]]], DecoderConfig]


def read_hf_config(folder: Path) -> dict[str, Any]:
    """Return the config.json of a model folder.

    Raises:
        CheckpointError: there is none, or it is not a JSON object.
    """
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{folder} has no config.json, so it is not a model folder") from None
    except ValueError as error:
        raise CheckpointError(f"{path} is not valid JSON ({error}); download the model again") from error
    if not isinstance(config, dict):
        raise CheckpointError(f"{path} holds no JSON object; download the model again")
    return config


def required(values: Mapping[str, Any], key: str) -> Any:
    """Return a value that a model description cannot do without.

    Raises:
        CheckpointError: it is missing.
    """
    if values.get(key) is None:
        raise CheckpointError(f"the model's configuration lacks {key!r}; the file is incomplete or of another kind")
    return values[key]


def decoder_from_hf(config: Mapping[str, Any], family: str) -> DecoderConfig:
    """Read the keys of a config.json that all families share.

    Raises:
        CheckpointError: a size is missing.
        UnsupportedModelError: an activation or a layer type that these decoders do not have.
    """
    if (activation := config.get("hidden_act", "silu")) != "silu":
        raise UnsupportedModelError(f"{family} with hidden_act {activation!r} is not supported; only 'silu' is")
    num_heads = int(required(config, "num_attention_heads"))
    hidden_size = int(required(config, "hidden_size"))
    head_dim = int(config.get("head_dim") or hidden_size // num_heads)
    num_layers = int(required(config, "num_hidden_layers"))
    return DecoderConfig(
        family=family,
        num_layers=num_layers,
        hidden_size=hidden_size,
        intermediate_size=int(required(config, "intermediate_size")),
        num_heads=num_heads,
        num_kv_heads=int(config.get("num_key_value_heads") or num_heads),
        head_dim=head_dim,
        vocab_size=int(required(config, "vocab_size")),
        context_length=int(required(config, "max_position_embeddings")),
        rms_norm_eps=float(config.get("rms_norm_eps", 1e-6)),
        rope=RopeConfig.from_hf(config, head_dim),
        tie_embeddings=bool(config.get("tie_word_embeddings", False)),
        windows=_windows_from_hf(config, num_layers),
    )


def _windows_from_hf(config: Mapping[str, Any], num_layers: int) -> tuple[int | None, ...]:
    """Return the window of each layer; without `use_sliding_window` a stored `sliding_window` means nothing."""
    kinds = config.get("layer_types")
    if unknown := set(kinds or ()) - {"full_attention", "sliding_attention"}:
        raise UnsupportedModelError(f"layer types {', '.join(sorted(unknown))} are not supported")
    window = config.get("sliding_window") if config.get("use_sliding_window") else None
    if window is None:
        return (None,) * num_layers
    if kinds is None:
        first = int(config.get("max_window_layers", num_layers))
        return tuple(int(window) if layer >= first else None for layer in range(num_layers))
    return tuple(int(window) if kind == "sliding_attention" else None for kind in kinds[:num_layers])


def decoder_from_gguf(metadata: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], family: str) -> DecoderConfig:
    """Read the GGUF keys that all families share; `shapes` are those of the stored tensors.

    Raises:
        CheckpointError: a size is missing.
        UnsupportedModelError: the file declares sliding-window attention.
    """
    prefix = f"{metadata['general.architecture']}."
    if metadata.get(prefix + "attention.sliding_window"):
        raise UnsupportedModelError(f"GGUF files of the {family} family with a sliding window are not supported")
    if "token_embd.weight" not in shapes:
        raise CheckpointError("the GGUF file has no token_embd.weight; it is no whole language model")
    num_heads = int(required(metadata, prefix + "attention.head_count"))
    hidden_size = int(required(metadata, prefix + "embedding_length"))
    head_dim = int(metadata.get(prefix + "attention.key_length") or hidden_size // num_heads)
    num_layers = int(required(metadata, prefix + "block_count"))
    return DecoderConfig(
        family=family,
        num_layers=num_layers,
        hidden_size=hidden_size,
        intermediate_size=int(required(metadata, prefix + "feed_forward_length")),
        num_heads=num_heads,
        num_kv_heads=int(metadata.get(prefix + "attention.head_count_kv") or num_heads),
        head_dim=head_dim,
        vocab_size=shapes["token_embd.weight"][0],
        context_length=int(required(metadata, prefix + "context_length")),
        rms_norm_eps=float(required(metadata, prefix + "attention.layer_norm_rms_epsilon")),
        rope=RopeConfig.from_gguf(metadata, head_dim),
        tie_embeddings="output.weight" not in shapes,
        windows=(None,) * num_layers,
    )


GGUF_NAMES: Mapping[str, str] = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
    "blk.{i}.attn_norm.weight": "model.layers.{i}.input_layernorm.weight",
    "blk.{i}.ffn_norm.weight": "model.layers.{i}.post_attention_layernorm.weight",
    **{
        f"blk.{{i}}.{short}.{kind}": f"model.layers.{{i}}.{long}.{kind}"
        for short, long in (
            ("attn_q", "self_attn.q_proj"),
            ("attn_k", "self_attn.k_proj"),
            ("attn_v", "self_attn.v_proj"),
            ("attn_output", "self_attn.o_proj"),
            ("ffn_gate", "mlp.gate_proj"),
            ("ffn_up", "mlp.up_proj"),
            ("ffn_down", "mlp.down_proj"),
        )
        for kind in ("weight", "bias")
    },
}
"""Names of the tensors that all families share in GGUF files."""
