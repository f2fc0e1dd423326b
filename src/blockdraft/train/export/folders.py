"""The three layouts that are folders: config.json and model.safetensors.

    z-lab        DFlash with its settings under `dflash_config`; PyPI `dflash`, vLLM, SGLang
    deepspec     flat keys, heads switched on and off; DSpark, and DFlash that predicts from the anchor's row
    speculators  the backbone under `transformer_layer_config`, layer ids plus one; vLLM

A key of our own, `confidence_temperatures`, holds the calibration of the confidence head; others skip it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from blockdraft.drafters.block_config import BlockDraftConfig
from blockdraft.drafters.draft_checkpoint import reduced_mask
from blockdraft.models.config import RopeConfig
from blockdraft.models.families import FAMILIES
from blockdraft.train.export.layout import Draft, StoredType, window_of, window_reasons

_DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
_SCALES = ("logit_softcap", "output_multiplier", "input_embedding_scale")


class FolderWriter:
    """What the three have in common."""

    types: tuple[StoredType, ...] = ("bf16", "f32")

    def why_not(self, config: BlockDraftConfig) -> list[str]:
        reasons = window_reasons(config)
        if config.rope.freq_divisors is not None:
            reasons.append("its rotary frequencies have divisors of their own, and config.json has no key for them")
        return reasons

    def write(self, folder: Path, draft: Draft, stored_type: StoredType) -> Path:
        tensors = {
            name: self.stored(name, tensor, stored_type).contiguous() for name, tensor in self._tensors(draft).items()
        }
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        config = json.dumps(self._config(draft, stored_type), indent=2, ensure_ascii=False)
        (folder / "config.json").write_text(config + "\n", encoding="utf-8")
        return folder

    def stored(self, name: str, tensor: Tensor, stored_type: StoredType) -> Tensor:
        return tensor.to(_DTYPES[stored_type]) if tensor.is_floating_point() else tensor

    def _config(self, draft: Draft, stored_type: StoredType) -> dict[str, Any]:
        raise NotImplementedError

    def _tensors(self, draft: Draft) -> Mapping[str, Tensor]:
        return draft.tensors


class ZLabWriter(FolderWriter):
    """The layout of the reference package; DFlash only, with the whole vocabulary."""

    def why_not(self, config: BlockDraftConfig) -> list[str]:
        reasons = [*super().why_not(config), *_causality_reasons(config)]
        if config.kind != "draft-dflash":
            reasons.append("it has no Markov or confidence head; --to deepspec has")
        if config.anchor.anchor_predicts:
            reasons.append("its first row is always discarded, and this drafter predicts from it; --to deepspec does")
        return reasons

    def _config(self, draft: Draft, stored_type: StoredType) -> dict[str, Any]:
        config = draft.config
        scales = {
            "final_logit_softcapping": config.logit_softcap,
            "output_multiplier": config.output_multiplier,
            "input_embedding_scale": config.input_embedding_scale,
        }
        return {
            "architectures": ["DFlashDraftModel"],
            **_backbone(draft, stored_type),
            **_causality(config),
            "num_target_layers": draft.target.target.info.num_layers,
            # Readers older than the nested key look for it here.
            "block_size": config.block_size,
            "dflash_config": {
                "block_size": config.block_size,
                "mask_token_id": config.mask_token_id,
                "target_layer_ids": list(config.target_layer_ids),
                **{key: value for key, value in scales.items() if value not in (None, 1.0)},
            },
        }


class DeepSpecWriter(FolderWriter):
    """The layout of the DSpark authors; every row predicts."""

    def why_not(self, config: BlockDraftConfig) -> list[str]:
        reasons = [*super().why_not(config), *_causality_reasons(config), *_scale_reasons(config)]
        if not config.anchor.anchor_predicts:
            other = "--to z-lab" if config.kind == "draft-dflash" else "--to speculators"
            reasons.append(f"its first row always predicts, and this drafter discards it; {other} does")
        return reasons

    def _config(self, draft: Draft, stored_type: StoredType) -> dict[str, Any]:
        config = draft.config
        return {
            "architectures": ["Qwen3DSparkModel"],
            **_backbone(draft, stored_type),
            **_causality(config),
            "num_target_layers": draft.target.target.info.num_layers,
            "block_size": config.block_size,
            "mask_token_id": config.mask_token_id,
            "target_layer_ids": list(config.target_layer_ids),
            **({"draft_vocab_size": config.draft_vocab_size} if config.draft_vocab_size else {}),
            **_heads(config),
        }

    def _tensors(self, draft: Draft) -> Mapping[str, Tensor]:
        target = draft.target.target
        # The authors' own class holds frozen copies of the target's tables; everybody else skips them.
        copies = {"embed_tokens.weight": target.embedding_weight, "lm_head.weight": target.head_weight}
        return {**{name: tensor.cpu().clone() for name, tensor in copies.items()}, **draft.tensors}


class SpeculatorsWriter(FolderWriter):
    """The layout of the speculators project, which vLLM reads."""

    def why_not(self, config: BlockDraftConfig) -> list[str]:
        reasons = [*super().why_not(config), *_scale_reasons(config)]
        causal = {layer.causal for layer in config.layers}
        if causal != {False} and not (causal == {True} and all(layer.window for layer in config.layers)):
            # One flag, `sliding_window_non_causal`, which speculators reads for sliding layers and vLLM for all.
            reasons.append("rows see only those before them in some layers, which it can say only if all layers slide")
        return reasons

    def _config(self, draft: Draft, stored_type: StoredType) -> dict[str, Any]:
        config, info = draft.config, draft.target.target.info
        return {
            "architectures": ["DSparkSpeculator" if draft.method == "dspark" else "DFlashSpeculator"],
            "speculators_model_type": draft.method,
            "speculators_config": {
                "algorithm": draft.method,
                "default_proposal_method": "greedy",
                "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": config.max_draft_tokens}],
                "verifier": {
                    "name_or_path": draft.target.reference,
                    "architectures": list(FAMILIES[info.family].hf_architectures) if info.family in FAMILIES else [],
                },
            },
            "transformer_layer_config": _backbone(draft, stored_type),
            "dtype": _DTYPE_NAMES[stored_type],
            "draft_vocab_size": config.draft_vocab_size or config.vocab_size,
            "target_hidden_size": config.hidden_size,
            "block_size": config.block_size,
            # Counted from the embedding's output: one more than a decoder layer's id.
            "aux_hidden_state_layer_ids": [layer + 1 for layer in config.target_layer_ids],
            "mask_token_id": config.mask_token_id,
            "sliding_window_non_causal": not config.layers[0].causal,
            "sample_from_anchor": config.anchor.anchor_predicts,
            **(_heads(config) if draft.method == "dspark" else {}),
        }

    def _tensors(self, draft: Draft) -> Mapping[str, Tensor]:
        if "d2t" not in draft.tensors:
            return draft.tensors
        return {**draft.tensors, "t2d": reduced_mask(draft.tensors["d2t"], draft.config.vocab_size)}


_DTYPE_NAMES = {"f32": "float32", "bf16": "bfloat16"}


def _backbone(draft: Draft, stored_type: StoredType) -> dict[str, Any]:
    config = draft.config
    window = window_of(config)
    return {
        "model_type": "qwen3",
        "dtype": _DTYPE_NAMES[stored_type],
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": len(config.layers),
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "hidden_act": config.activation,
        "rms_norm_eps": config.rms_norm_eps,
        "max_position_embeddings": draft.target.target.info.context_length,
        "rope_theta": config.rope.theta,
        "rope_parameters": _rope(config.rope),
        "layer_types": ["sliding_attention" if layer.window else "full_attention" for layer in config.layers],
        "use_sliding_window": window is not None,
        "sliding_window": window,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "tie_word_embeddings": False,
    }


def _rope(rope: RopeConfig) -> dict[str, Any]:
    found: dict[str, Any] = {"rope_type": rope.rope_type, "rope_theta": rope.theta}
    if rope.rope_type == "default":
        return found
    found["factor"] = rope.factor
    if rope.rope_type == "llama3":
        found |= {"low_freq_factor": rope.low_freq_factor, "high_freq_factor": rope.high_freq_factor}
    if rope.rope_type == "yarn":
        found |= {"beta_fast": rope.beta_fast, "beta_slow": rope.beta_slow, "truncate": rope.truncate}
        optional = {name: getattr(rope, name) for name in ("attention_factor", "mscale", "mscale_all_dim")}
        found |= {name: value for name, value in optional.items() if value is not None}
    if rope.original_context:
        found["original_max_position_embeddings"] = rope.original_context
    return found


def _heads(config: BlockDraftConfig) -> dict[str, Any]:
    """Return the keys of the heads; a DFlash drafter has both off."""
    return {
        "markov_rank": config.markov_rank,
        "markov_head_type": config.markov_head_type if config.markov_rank else "vanilla",
        "enable_confidence_head": config.confidence_head != "none",
        "confidence_head_with_markov": config.confidence_head == "hidden+markov",
        **({"confidence_temperatures": list(config.confidence_temperatures)} if config.confidence_temperatures else {}),
    }


def _causality(config: BlockDraftConfig) -> dict[str, bool]:
    """Return the override of the default, which is that layers with a sliding window are causal."""
    is_default = all(layer.causal == (layer.window is not None) for layer in config.layers)
    return {} if is_default else {"is_causal": config.layers[0].causal}


def _causality_reasons(config: BlockDraftConfig) -> list[str]:
    if _causality(config) and len({layer.causal for layer in config.layers}) > 1:
        return ["some of its layers are causal and others not, in a way that one key for all cannot say"]
    return []


def _scale_reasons(config: BlockDraftConfig) -> list[str]:
    return [
        f"it has no key for `{name}`, which is {getattr(config, name)} here"
        for name in _SCALES
        if getattr(config, name) not in (None, 1.0)
    ]
