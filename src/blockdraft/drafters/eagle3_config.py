"""What an EAGLE-3 checkpoint says about itself, read into one form.

Three packagings describe the same network: the official one (SafeAILab, also SpecForge: a Llama config with
`draft_vocab_size`), DeepSpec (a copy of the target's Qwen3 config, 0-based `target_layer_ids`) and speculators
(`transformer_layer_config`). They count tapped layers in two ways, which is the most common mistake with these
heads: `eagle_aux_hidden_state_layer_ids` names the layer whose *input* is read, so id i is the output of decoder
layer i - 1; `target_layer_ids` and SpecForge's `eagle_config` name the layer whose *output* is read.

This module reads config.json only; tensors are in `eagle3_checkpoint`.
Ref: arXiv:2503.01840.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from blockdraft.errors import CheckpointError, UnsupportedModelError
from blockdraft.models.base import TargetInfo
from blockdraft.models.layers.rope import RopeConfig

Json = Mapping[str, Any]
Layout = Literal["official", "deepspec", "speculators"]
FeatureNorm = Literal["none", "joint", "each"]

_QK_NORM = {"llama": False, "qwen3": True}
_ACTIVATIONS = ("silu", "gelu", "gelu_pytorch_tanh")
_UNSUPPORTED_BACKBONES = {
    "deepseek": "a DeepSeek backbone (MLA, experts)",
    "kimi": "a Kimi backbone (MLA, experts)",
    "gemma": "a Gemma backbone",
    "moe": "a mixture-of-experts backbone",
    "mistral": "a Mistral backbone",
}
_UNSUPPORTED_KEYS = {
    "attention_bias": "biases in the attention projections",
    "mlp_bias": "biases in the MLP",
    "quantization_config": "quantised drafter weights",
    "compression_config": "quantised drafter weights",
    "kv_lora_rank": "multi-head latent attention (MLA)",
    "q_lora_rank": "multi-head latent attention (MLA)",
    "parallel_drafting": "parallel drafting (P-EAGLE)",
    "mask_hidden": "parallel drafting (P-EAGLE)",
}
_EXPECTED_EAGLE_CONFIG = {
    "use_aux_hidden_state": True,
    "use_input_layernorm_in_first_layer": True,
    "use_last_layernorm": True,
    "use_mtp_layernorm": False,
}
"""What NVIDIA's exports say about an ordinary EAGLE-3 head."""

_NUM_DEFAULT_TAPS = 3

DEFAULT_DRAFT_TOKENS = 3
"""Draft tokens per round if nobody says how many; llama.cpp's default."""


@dataclass(frozen=True, kw_only=True)
class Eagle3Config:
    """An EAGLE-3 head, whatever packaging it came in."""

    kind: Literal["draft-eagle3"] = "draft-eagle3"
    layout: Layout
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    activation: str
    rope: RopeConfig
    windows: tuple[int | None, ...]
    """For each layer, how many rows a row sees (itself included); None for all."""
    has_qk_norm: bool
    vocab_size: int
    draft_vocab_size: int | None
    """Size of a reduced output vocabulary; None if the drafter uses the target's."""
    target_layer_ids: tuple[int, ...] | None
    """0-based decoder layers whose outputs are read; None if config.json leaves it to `default_taps`."""
    num_target_layers: int | None = None
    norm_before_residual: bool = False
    """True: the residual stream starts from the normalised hidden state."""
    feature_norm: FeatureNorm = "none"
    """How the target's features are normalised before `fc`: not at all, all together, or each layer by itself."""
    feeds_back_normed: bool = False
    """True: the next draft step reads the state after the final norm (EAGLE-3.1), not the one before it."""
    num_trained_tokens: int | None = None
    """How many draft tokens the training unrolled, if config.json says."""

    @property
    def num_taps(self) -> int:
        """How many layers of the target `fc` reads."""
        return _NUM_DEFAULT_TAPS if self.target_layer_ids is None else len(self.target_layer_ids)

    @property
    def max_draft_tokens(self) -> int:
        """How many tokens are drafted unless somebody asks for another number."""
        return self.num_trained_tokens or DEFAULT_DRAFT_TOKENS

    def to_dict(self) -> dict[str, object]:
        """Return the settings as plain data."""
        return asdict(self)


def default_taps(num_target_layers: int) -> tuple[int, ...]:
    """Return the published choice of a low, a middle and a high layer, as 0-based decoder layers.

    The reference counts inputs, [2, n // 2, n - 3]; the input of layer i is the output of layer i - 1.
    """
    return tuple(layer - 1 for layer in (2, num_target_layers // 2, num_target_layers - 3))


def is_eagle3(config: Json, names: Collection[str]) -> bool:
    """True if a config.json and the names of the tensors describe an EAGLE-3 head, supported or not."""
    architecture = " ".join(config.get("architectures") or []).lower()
    return (
        config.get("speculators_model_type") in ("eagle3", "peagle")
        or "eagle3" in architecture
        or "eagle_aux_hidden_state_layer_ids" in config
        or any(name.startswith("midlayer.") for name in names)
    )


def read_eagle3_config(config: Json) -> Eagle3Config:
    """Read a parsed config.json.

    Raises:
        UnsupportedModelError: the head needs something that is recognised but not implemented.
        CheckpointError: a key is missing or contradicts another one.
    """
    layout = _layout_of(config)
    backbone = _need(config, "transformer_layer_config") if layout == "speculators" else config
    _refuse_unsupported(config, backbone, layout)
    vocab_size = int(_need(backbone, "vocab_size"))
    draft_vocab_size = int(config.get("draft_vocab_size") or vocab_size)
    num_heads, hidden_size = int(_need(backbone, "num_attention_heads")), int(_need(backbone, "hidden_size"))
    head_dim = int(backbone.get("head_dim") or hidden_size // num_heads)
    activation = str(backbone.get("hidden_act", "silu"))
    if activation not in _ACTIVATIONS:
        raise UnsupportedModelError(
            f"`hidden_act` {activation!r} of the drafter is not supported; supported: {', '.join(_ACTIVATIONS)}"
        )
    return Eagle3Config(
        layout=layout,
        hidden_size=hidden_size,
        intermediate_size=int(_need(backbone, "intermediate_size")),
        num_heads=num_heads,
        num_kv_heads=int(backbone.get("num_key_value_heads") or num_heads),
        head_dim=head_dim,
        rms_norm_eps=float(backbone.get("rms_norm_eps", 1e-6)),
        activation=activation,
        rope=RopeConfig.from_hf(backbone, head_dim),
        windows=_read_windows(backbone),
        has_qk_norm=_QK_NORM[str(backbone.get("model_type", "llama"))],
        vocab_size=vocab_size,
        draft_vocab_size=draft_vocab_size if draft_vocab_size != vocab_size else None,
        target_layer_ids=_read_taps(config),
        num_target_layers=int(config["num_target_layers"]) if config.get("num_target_layers") else None,
        norm_before_residual=_norm_before_residual(config, layout),
        feature_norm=_feature_norm(config),
        feeds_back_normed=bool(config.get("norm_output")),
        num_trained_tokens=_num_trained_tokens(config),
    )


def check_eagle3_pair(config: Eagle3Config, info: TargetInfo) -> list[str]:
    """Return why a head and a target do not fit; empty if they do."""
    reasons = []
    for name, ours, theirs in (
        ("hidden size", config.hidden_size, info.hidden_size),
        ("vocabulary", config.vocab_size, info.vocab_size),
        ("number of target layers", config.num_target_layers or info.num_layers, info.num_layers),
    ):
        if ours != theirs:
            reasons.append(f"{name}: the drafter was made for {ours}, the target has {theirs}")
    taps = default_taps(info.num_layers) if config.target_layer_ids is None else config.target_layer_ids
    if outside := [layer for layer in taps if not 0 <= layer < info.num_layers]:
        reasons.append(
            f"target layers {outside} are read by the drafter, the target has layers 0 to {info.num_layers - 1}"
        )
    return reasons


def _layout_of(config: Json) -> Layout:
    if "speculators_model_type" in config or "speculators_config" in config:
        return "speculators"
    return "deepspec" if "target_layer_ids" in config else "official"


def _need(config: Json, key: str) -> Any:
    value = config.get(key)
    if value is None:
        raise CheckpointError(f"config.json of the drafter lacks `{key}`; add it or use the original checkpoint")
    return value


def _refuse(what: str, why: str) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"this drafter uses {what} (`{why}` in its config.json), which is recognised and not yet supported; "
        "use another drafter of the same target, or --spec-type ngram-mod, which needs none"
    )


def _refuse_unsupported(config: Json, backbone: Json, layout: Layout) -> None:
    method = config.get("speculators_model_type", "eagle3")
    if method != "eagle3":
        raise _refuse("parallel drafting (P-EAGLE)" if method == "peagle" else method, "speculators_model_type")
    for source in (config, backbone):
        for key, what in _UNSUPPORTED_KEYS.items():
            if source.get(key):
                raise _refuse(what, key)
    model_type = str(backbone.get("model_type", "llama"))
    if model_type not in _QK_NORM:
        names = [name for part, name in _UNSUPPORTED_BACKBONES.items() if part in model_type]
        raise _refuse(names[0] if names else f"the backbone {model_type!r}", "model_type")
    if config.get("target_hidden_size") not in (None, backbone.get("hidden_size")):
        raise _refuse("a hidden size other than the target's", "target_hidden_size")
    nested = config.get("eagle_config") or {}
    for key, expected in _EXPECTED_EAGLE_CONFIG.items():
        if nested.get(key, expected) != expected:
            raise _refuse("a variant of the EAGLE-3 layer", f"eagle_config.{key}")
    if layout != "speculators":
        if config.get("norm_output"):
            # SpecForge means "normalise before the head" by it, vLLM "feed the normalised state back" (EAGLE-3.1).
            raise _refuse("a key that trainers and engines read differently", "norm_output")
        if int(_need(backbone, "num_hidden_layers")) != 1:
            raise _refuse("more than one layer outside the speculators layout", "num_hidden_layers")


def _read_windows(backbone: Json) -> tuple[int | None, ...]:
    num_layers = int(_need(backbone, "num_hidden_layers"))
    types = backbone.get("layer_types") or ["full_attention"] * num_layers
    if len(types) != num_layers or set(types) - {"full_attention", "sliding_attention"}:
        raise CheckpointError(
            f"`layer_types` must name full_attention or sliding_attention for each of the {num_layers} draft "
            f"layers, not {list(types)}"
        )
    window = backbone.get("sliding_window")
    if "sliding_attention" in types and not (window and backbone.get("use_sliding_window", True)):
        raise CheckpointError(
            "the drafter has sliding_attention layers; set `sliding_window` to the width it was trained with and "
            "`use_sliding_window` to true"
        )
    return tuple(int(window) if window and kind == "sliding_attention" else None for kind in types)


def _read_taps(config: Json) -> tuple[int, ...] | None:
    """Return 0-based decoder layers from whichever keys are there."""
    found: dict[str, tuple[int, ...]] = {}
    if inputs := config.get("eagle_aux_hidden_state_layer_ids"):
        found["eagle_aux_hidden_state_layer_ids"] = tuple(int(layer) - 1 for layer in inputs)
    if outputs := (config.get("eagle_config") or {}).get("eagle_aux_hidden_state_layer_ids"):
        found["eagle_config.eagle_aux_hidden_state_layer_ids"] = tuple(int(layer) for layer in outputs)
    if outputs := config.get("target_layer_ids"):
        found["target_layer_ids"] = tuple(int(layer) for layer in outputs)
    if len(set(found.values())) > 1:
        raise CheckpointError(
            "config.json contradicts itself about the tapped layers: "
            + ", but ".join(f"`{key}` means the outputs of layers {list(ids)}" for key, ids in found.items())
            + "; remove the wrong one"
        )
    for key, ids in found.items():
        if min(ids) < 0:
            raise UnsupportedModelError(
                f"`{key}` asks for the output of the target's embedding; only outputs of decoder layers can be read"
            )
        return ids
    return None


def _norm_before_residual(config: Json, layout: Layout) -> bool:
    value = config.get("norm_before_residual")
    if value is None and layout == "speculators":
        # The trainer's default is false, vLLM's is true: a wrong guess keeps the answers and loses the speed.
        raise CheckpointError(
            "config.json does not say whether the residual stream is normalised; set `norm_before_residual` to what "
            "the head was trained with"
        )
    return bool(value)


def _feature_norm(config: Json) -> FeatureNorm:
    if config.get("norm_before_fc") and config.get("fc_norm"):
        raise CheckpointError("`norm_before_fc` and `fc_norm` are both true; a head has one of them at most")
    if config.get("norm_before_fc"):
        return "joint"
    return "each" if config.get("fc_norm") else "none"


def _num_trained_tokens(config: Json) -> int | None:
    methods = (config.get("speculators_config") or {}).get("proposal_methods") or [{}]
    value = config.get("ttt_length") or methods[0].get("speculative_tokens")
    return int(value) if value else None
