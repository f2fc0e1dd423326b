"""What a DFlash or DSpark checkpoint says about itself, read into one form.

Four packagings of folders describe the same network: Z Lab (keys flat or under `dflash_config`), DeepSpec (flat,
a copy of the target's config with overrides), speculators (`transformer_layer_config`, layer ids plus one) and
SpecForge (`dflash_config.projector_type`). This module reads config.json only; GGUF files are read in
`draft_gguf`, tensors in `draft_checkpoint`. What we recognise and cannot run is refused by its name.

Ref: arXiv:2602.06036 (DFlash); arXiv:2607.05147 (DSpark).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from blockdraft.errors import CheckpointError, UnsupportedModelError
from blockdraft.models.base import TargetInfo
from blockdraft.models.layers.rope import RopeConfig

Json = Mapping[str, Any]
Kind = Literal["draft-dflash", "draft-dspark"]
Layout = Literal["z-lab", "deepspec", "speculators", "specforge", "gguf"]
ConfidenceInput = Literal["none", "hidden", "hidden+markov"]

_MODEL_TYPES = ("qwen3", "llama")  # both name the same layer here: a Qwen3 layer with q and k norms
_ACTIVATIONS = ("silu", "gelu", "gelu_pytorch_tanh")
_MARKOV_TYPES = ("vanilla", "gated", "rnn")

_UNSUPPORTED_BACKBONES = {
    "gemma4": "a Gemma 4 backbone",
    "deepseek": "a DeepSeek backbone (MLA, experts)",
    "moe": "a mixture-of-experts backbone",
    "mimo": "a MiMo backbone",
    "qwen3_5": "a Qwen3.5 backbone (gated attention, offset norms)",
}
_UNSUPPORTED_KEYS = {
    "conv_kernel_size": "DFlash 2 (grouped convolutions)",
    "selector_rank": "DFlash 2 (candidate selector)",
    "selector_top_k": "DFlash 2 (candidate selector)",
    "attention_sink_bias": "attention sinks",
    "attention_value_scale": "scaled attention values (MiMo)",
    "use_swa": "MiMo's sliding-window keys",
    "swa_window_size": "MiMo's sliding-window keys",
    "backbone_rotary_base": "MiMo's rotary keys",
    "dflash_query_causal": "Nemotron's causal block",
    "log_snr_conditioning": "log-SNR conditioning (Bonsai)",
    "enable_qwen35_gated_q_proj": "gated attention (Qwen3.5)",
    "kv_lora_rank": "multi-head latent attention (MLA)",
    "q_lora_rank": "multi-head latent attention (MLA)",
    "dspark_block_size": "a DSpark drafter inside a DeepSeek-V4 target",
    "attention_bias": "biases in the attention projections",
    "mlp_bias": "biases in the MLP",
    "quantization_config": "quantised drafter weights",
    "compression_config": "quantised drafter weights",
}
_UNSUPPORTED_PROJECTORS = {"domino": "Domino", "dflash2": "DFlash 2"}


@dataclass(frozen=True, kw_only=True)
class LayerAttention:
    """What the rows of a block see in one draft layer."""

    causal: bool
    """True if a row does not see the rows after it in its own block."""
    window: int | None = None
    """A row at position p sees keys at positions above p - window; None for all."""


@dataclass(frozen=True, kw_only=True)
class AnchorLayout:
    """Which row of the block holds the first prediction, and how we know."""

    anchor_predicts: bool
    """True: row k predicts draft token k, the anchor's row included. False: row 0 is discarded."""
    source: str
    """The key or the rule that settled it."""


@dataclass(frozen=True, kw_only=True)
class BlockDraftConfig:
    """A block drafter, whatever packaging it came in."""

    kind: Kind
    layout: Layout
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    activation: str
    rope: RopeConfig
    layers: tuple[LayerAttention, ...]
    vocab_size: int
    draft_vocab_size: int | None
    """Size of a reduced output vocabulary; None if the drafter uses the target's."""
    block_size: int
    anchor: AnchorLayout
    mask_token_id: int
    target_layer_ids: tuple[int, ...]
    num_target_layers: int | None
    logit_softcap: float | None
    output_multiplier: float
    input_embedding_scale: float
    markov_rank: int
    markov_head_type: str
    confidence_head: ConfidenceInput
    borrows_head: bool = False
    """The head of a reduced vocabulary is the target's own rows, and is not stored."""
    confidence_temperatures: tuple[float, ...] = ()
    """What the confidence head's logit is divided by, for each slot; empty if it was never calibrated."""

    @property
    def max_draft_tokens(self) -> int:
        """How many tokens the trained block predicts."""
        return self.block_size if self.anchor.anchor_predicts else self.block_size - 1

    def to_dict(self) -> dict[str, object]:
        """Return the settings as plain data."""
        return asdict(self)


def read_block_config(config: Json) -> BlockDraftConfig:
    """Read a parsed config.json.

    Raises:
        UnsupportedModelError: the drafter needs something that is recognised but not implemented.
        CheckpointError: a key is missing or contradicts another one.
    """
    layout = _layout_of(config)
    nested = config.get("dflash_config") or {}
    backbone = config if layout != "speculators" else _need(config, "transformer_layer_config")
    _refuse_unsupported(config, backbone, nested)
    # The nested key wins where a checkpoint has both, as in the reference package.
    own = {**config, **nested}
    kind = block_kind(config)
    markov_rank, confidence_head = _heads(config)
    if confidence_head == "hidden+markov" and not markov_rank:
        raise CheckpointError(
            "`confidence_head_with_markov` is true but `markov_rank` is 0; one of the two is wrong in config.json"
        )
    block_size = int(_need(own, "block_size") if kind == "draft-dspark" else own.get("block_size", 16))
    vocab_size = int(_need(backbone, "vocab_size"))
    draft_vocab_size = own.get("draft_vocab_size")
    num_heads, hidden_size = int(_need(backbone, "num_attention_heads")), int(_need(backbone, "hidden_size"))
    head_dim = int(backbone.get("head_dim") or hidden_size // num_heads)
    anchor = resolve_anchor(config, layout, block_size)
    return BlockDraftConfig(
        kind=kind,
        layout=layout,
        hidden_size=hidden_size,
        intermediate_size=int(_need(backbone, "intermediate_size")),
        num_heads=num_heads,
        num_kv_heads=int(backbone.get("num_key_value_heads") or num_heads),
        head_dim=head_dim,
        rms_norm_eps=float(backbone.get("rms_norm_eps", 1e-6)),
        activation=_choice(str(backbone.get("hidden_act", "silu")), _ACTIVATIONS, "hidden_act"),
        rope=_read_rope(backbone, head_dim),
        layers=_read_layers(config, backbone, nested, block_size),
        vocab_size=vocab_size,
        # Trainers write the key even if the vocabulary is whole.
        draft_vocab_size=int(draft_vocab_size) if draft_vocab_size and int(draft_vocab_size) != vocab_size else None,
        block_size=block_size,
        anchor=anchor,
        mask_token_id=int(_need(own, "mask_token_id")),
        target_layer_ids=_target_layer_ids(own, backbone, layout),
        num_target_layers=int(own["num_target_layers"]) if own.get("num_target_layers") else None,
        logit_softcap=float(own["final_logit_softcapping"]) if own.get("final_logit_softcapping") else None,
        output_multiplier=float(own.get("output_multiplier") or 1.0),
        input_embedding_scale=float(own.get("input_embedding_scale") or 1.0),
        markov_rank=markov_rank,
        markov_head_type=_choice(str(own.get("markov_head_type", "vanilla")).lower(), _MARKOV_TYPES, "markov_head_type")
        if markov_rank
        else "none",
        confidence_head=confidence_head,
        confidence_temperatures=read_temperatures(
            own.get("confidence_temperatures"),
            num_slots=block_size if anchor.anchor_predicts else block_size - 1,
            has_head=confidence_head != "none",
        ),
    )


def read_temperatures(values: Sequence[float] | None, *, num_slots: int, has_head: bool) -> tuple[float, ...]:
    """Check the temperatures of the confidence head, one for each slot of the block.

    Raises:
        CheckpointError: there are more or fewer, one is not positive, or there is no head to scale.
    """
    if not values:
        return ()
    if not has_head:
        raise CheckpointError("the drafter has `confidence_temperatures` but no confidence head; remove the key")
    if len(values) != num_slots or not all(math.isfinite(value) and value > 0 for value in values):
        raise CheckpointError(
            f"`confidence_temperatures` must be {num_slots} positive numbers, one for each slot, not {list(values)}"
        )
    return tuple(float(value) for value in values)


def resolve_anchor(config: Json, layout: Layout, block_size: int) -> AnchorLayout:
    """Decide whether the anchor's row predicts: by the proposal width, by the flag, by the family's rule.

    A wrong choice keeps the answers right but about halves how many drafts are accepted, so nothing is guessed.

    Raises:
        CheckpointError: two keys disagree, or no key and no rule settles it.
    """
    found: list[AnchorLayout] = []
    methods = (config.get("speculators_config") or {}).get("proposal_methods") or []
    width = methods[0].get("speculative_tokens") if methods else None
    if width in (block_size, block_size - 1):
        source = f"speculative_tokens {width} of block_size {block_size}"
        found.append(AnchorLayout(anchor_predicts=width == block_size, source=source))
    flag = config.get("sample_from_anchor", (config.get("dflash_config") or {}).get("sample_from_anchor"))
    if isinstance(flag, bool):
        found.append(AnchorLayout(anchor_predicts=flag, source=f"sample_from_anchor {str(flag).lower()}"))
    if len({layout.anchor_predicts for layout in found}) > 1:
        raise CheckpointError(
            f"config.json contradicts itself about the anchor's row: {found[0].source}, but {found[1].source}; "
            "correct `sample_from_anchor` or `speculators_config.proposal_methods[0].speculative_tokens`"
        )
    if found:
        return found[0]
    is_named = "dflash" in _architecture(config) or "dflash_config" in config or layout == "speculators"
    if (layout == "speculators" and _is_dspark(config)) or not (is_named or _is_dspark(config)):
        # The class of speculators defaults to true, but its heads older than the key reserve the anchor's row.
        raise CheckpointError(
            "config.json does not say whether the anchor's row predicts; "
            "set `sample_from_anchor` (true: block_size draft tokens, false: block_size - 1)"
        )
    predicts = layout == "deepspec" or _is_dspark(config)
    rule = "predicts from" if predicts else "reserves"
    family = {"z-lab": "Z Lab", "deepspec": "DeepSpec", "specforge": "SpecForge"}.get(layout, layout)
    method = "DSpark" if _is_dspark(config) else "DFlash"
    return AnchorLayout(anchor_predicts=predicts, source=f"family default: {family} {method} {rule} the anchor's row")


def check_pair(config: BlockDraftConfig, info: TargetInfo) -> list[str]:
    """Return why a drafter and a target do not fit; empty if they do."""
    reasons = []
    for name, ours, theirs in (
        ("hidden size", config.hidden_size, info.hidden_size),
        ("vocabulary", config.vocab_size, info.vocab_size),
        ("number of target layers", config.num_target_layers or info.num_layers, info.num_layers),
    ):
        if ours != theirs:
            reasons.append(f"{name}: the drafter was made for {ours}, the target has {theirs}")
    outside = [layer for layer in config.target_layer_ids if layer >= info.num_layers]
    if outside:
        reasons.append(
            f"target layers {outside} are read by the drafter, the target has layers 0 to {info.num_layers - 1}"
        )
    if config.mask_token_id >= info.vocab_size:
        reasons.append(f"mask token {config.mask_token_id} is outside the target's vocabulary of {info.vocab_size}")
    return reasons


def is_block_drafter(config: Json) -> bool:
    """True if a config.json describes a member of the DFlash family, supported or not."""
    architecture = _architecture(config)
    return (
        config.get("speculators_model_type") in ("dflash", "dflash2", "dspark")
        or "dflash" in architecture
        or _is_dspark(config)
        or bool(config.get("dflash_config"))
        or ("mask_token_id" in config and "target_layer_ids" in config)
    )


def block_kind(config: Json) -> Kind:
    """Name the method of a block drafter's config.json, supported or not."""
    if "dspark_block_size" in config:
        return "draft-dspark"
    # DeepSpec ships DFlash drafters under its DSpark architecture, with both heads off.
    return "draft-dflash" if _heads(config) == (0, "none") else "draft-dspark"


def _architecture(config: Json) -> str:
    return " ".join(config.get("architectures") or []).lower()


def _is_dspark(config: Json) -> bool:
    nested = config.get("dflash_config") or {}
    return (
        config.get("speculators_model_type") == "dspark"
        or "dspark" in _architecture(config)
        or "dspark" in (config.get("projector_type"), nested.get("projector_type"))
        or "dspark_block_size" in config
    )


def _layout_of(config: Json) -> Layout:
    if "speculators_model_type" in config or "speculators_config" in config:
        return "speculators"
    if "dsparkmodel" in _architecture(config) and "dflash_config" not in config:
        return "deepspec"
    return "specforge" if _is_dspark(config) else "z-lab"


def _need(config: Json, key: str) -> Any:
    value = config.get(key)
    if value is None:
        raise CheckpointError(f"config.json of the drafter lacks `{key}`; add it or use the original checkpoint")
    return value


def _choice(value: str, known: tuple[str, ...], key: str) -> str:
    if value not in known:
        raise UnsupportedModelError(f"`{key}` {value!r} of the drafter is not supported; supported: {', '.join(known)}")
    return value


def _refuse(what: str, why: str) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"this drafter uses {what} (`{why}` in its config.json), which is recognised and not yet supported; "
        "use another drafter of the same target, or --spec-type ngram-mod, which needs none"
    )


def _refuse_unsupported(config: Json, backbone: Json, nested: Json) -> None:
    method = config.get("speculators_model_type", "dflash")
    if method not in ("dflash", "dspark"):
        name = "DFlash 2" if method == "dflash2" else f"the method {method!r}"
        raise _refuse(name, "speculators_model_type")
    if "dflash2" in _architecture(config):
        raise _refuse("DFlash 2", "architectures")
    projector = nested.get("projector_type")
    if projector in _UNSUPPORTED_PROJECTORS:
        raise _refuse(_UNSUPPORTED_PROJECTORS[projector], "dflash_config.projector_type")
    for source in (config, backbone, nested):
        for key, what in _UNSUPPORTED_KEYS.items():
            if source.get(key):
                raise _refuse(what, key)
    if nested.get("attention_mode") == "mla":
        raise _refuse("multi-head latent attention (MLA)", "dflash_config.attention_mode")
    if backbone.get("rope_is_neox_style") is False:
        raise _refuse("interleaved rotary embeddings", "rope_is_neox_style")
    if config.get("target_hidden_size") not in (None, backbone.get("hidden_size")):
        raise _refuse("a hidden size other than the target's", "target_hidden_size")
    model_type = str(backbone.get("model_type", "qwen3"))
    if model_type not in _MODEL_TYPES:
        names = [name for part, name in _UNSUPPORTED_BACKBONES.items() if part in model_type]
        raise _refuse(names[0] if names else f"the backbone {model_type!r}", "model_type")


def _read_rope(backbone: Json, head_dim: int) -> RopeConfig:
    """Draft layers rotate whole heads by plain positions: the target's M-RoPE and partial keys are copied noise."""
    plain = {key: value for key, value in backbone.items() if key != "partial_rotary_factor"}
    for key in ("rope_scaling", "rope_parameters"):
        params = plain.get(key) or {}
        params = params.get("sliding_attention", params)  # per layer type in some targets; one rotation here
        plain[key] = {name: value for name, value in params.items() if name != "partial_rotary_factor"}
        for name in ("rope_type", "type"):
            if plain[key].get(name) == "mrope":
                plain[key][name] = "default"
    return RopeConfig.from_hf(plain, head_dim)


def _read_layers(config: Json, backbone: Json, nested: Json, block_size: int) -> tuple[LayerAttention, ...]:
    num_layers = int(_need(backbone, "num_hidden_layers"))
    types = backbone.get("layer_types") or ["full_attention"] * num_layers
    unknown = sorted(set(types) - {"full_attention", "sliding_attention"})
    if len(types) != num_layers or unknown:
        raise CheckpointError(
            f"`layer_types` must name full_attention or sliding_attention for each of the {num_layers} draft "
            f"layers, not {list(types)}"
        )
    window = None
    if "sliding_attention" in types:
        window = backbone.get("sliding_window")
        if not window or not backbone.get("use_sliding_window"):
            raise CheckpointError(
                "the drafter has sliding_attention layers; set `use_sliding_window` to true and `sliding_window` "
                "to the width it was trained with"
            )
        if window < block_size:
            raise CheckpointError(f"`sliding_window` {window} is narrower than the block of {block_size}; correct one")
    override = next((flag for flag in (config.get("is_causal"), nested.get("causal")) if flag is not None), None)
    if override is None and config.get("sliding_window_non_causal"):
        override = False
    return tuple(
        LayerAttention(
            causal=kind == "sliding_attention" if override is None else bool(override),
            window=int(window) if window is not None and kind == "sliding_attention" else None,
        )
        for kind in types
    )


def _target_layer_ids(own: Json, backbone: Json, layout: Layout) -> tuple[int, ...]:
    if layout == "speculators":
        ids = [layer - 1 for layer in _need(own, "aux_hidden_state_layer_ids")]
    elif own.get("target_layer_ids") is not None:
        ids = list(own["target_layer_ids"])
    else:
        ids = spread_layers(int(_need(own, "num_target_layers")), int(_need(backbone, "num_hidden_layers")))
    if not ids or min(ids) < 0:
        raise UnsupportedModelError(
            f"the drafter reads the target layers {ids}; only outputs of decoder layers (0 and up) can be read"
        )
    return tuple(int(layer) for layer in ids)


def spread_layers(num_target_layers: int, count: int) -> list[int]:
    """Place `count` ids evenly from layer 1 to the third-last: the published rule for configs that name none."""
    if count == 1:
        return [num_target_layers // 2]
    return [round(1 + i * (num_target_layers - 4) / (count - 1)) for i in range(count)]


def _heads(config: Json) -> tuple[int, ConfidenceInput]:
    """Return the Markov rank (0: no head) and what the confidence head reads, with each packaging's defaults."""
    own = {**config, **(config.get("dflash_config") or {})}
    if not _is_dspark(config):
        return 0, "none"
    if _layout_of(config) == "speculators":
        rank, enabled, with_markov = 256, True, True
    else:
        rank, enabled, with_markov = 0, float(own.get("confidence_head_alpha") or 0) > 0, False
    rank = int(own.get("markov_rank", rank) or 0)
    if not own.get("enable_confidence_head", enabled):
        return rank, "none"
    return rank, "hidden+markov" if own.get("confidence_head_with_markov", with_markov) else "hidden"
