"""Rules about quantised targets and drafters."""

from __future__ import annotations

import re

from blockdraft.deploy.bits import normalized
from blockdraft.deploy.rules.rule import Rule, sglang, vllm
from blockdraft.deploy.rules.situation import Situation

_TOPIC = "quantisation"
_MTP_NAME = re.compile(r"(?:^|\.)(?:mtp|nextn)(?:\.|_|$)")


def _scheme(situation: Situation) -> str | None:
    """Return how the target is quantised: as asked for, else as its files say."""
    return normalized(situation.deployment.quantization) or normalized(situation.target.quantization)


def _lost_heads(situation: Situation) -> str | None:
    if not situation.uses("mtp") or _scheme(situation) is None:
        return None
    names = situation.about_target("tensor_names")
    layers = situation.target.num_layers or 0
    later = any(f"layers.{layers}." in name for name in names)
    return None if later or any(_MTP_NAME.search(name) for name in names) else f"none of {len(names)} tensors"


def _heads_under_a_scheme(situation: Situation) -> str | None:
    if not situation.uses("mtp") or _scheme(situation) not in ("nvfp4", "fp8"):
        return None
    if situation.target.origin != "config.json":
        situation.about_target("tensor_names")  # only the files tell
        return None
    left = " ".join(situation.target.unquantized_parts)
    return None if "mtp" in left or "nextn" in left else f"{_scheme(situation)}, nothing of it named as left alone"


def _quantised_head(situation: Situation) -> str | None:
    parallel = situation.deployment.tensor_parallel or 1
    if not situation.uses("dflash") or not situation.draft.is_dflash2 or parallel <= 1 or _scheme(situation) is None:
        return None
    if situation.target.origin != "config.json":
        situation.about_target("tensor_names")
    return None if any("lm_head" in part for part in situation.target.unquantized_parts) else f"{parallel} devices"


def _is_deepseek_v4(situation: Situation) -> bool:
    return bool(situation.uses("dspark")) and situation.about_target("model_type") == "deepseek_v4"


RULES = (
    Rule(
        id="P75", topic=_TOPIC, releases=(vllm(), sglang()), severity="error", flag="speculative-config.method",
        effect="the quantised repository left the MTP layers out: ValueError, or nothing accepted on old builds",
        fix="a repository that kept them, or a model path of their own",
        source="vllm-project/vllm#35548, #37667", when=_lost_heads,
    ),
    Rule(
        id="P76", topic=_TOPIC, releases=(vllm(),), severity="warning", flag="quantization",
        effect="MTP layers in 16 bits are built as quantised ones: shapes do not fit",
        fix="a build with the fix, or a checkpoint that names mtp among what is left alone",
        source="vllm-project/vllm#35031, #44087, #49552, #49187", is_reported=True, when=_heads_under_a_scheme,
    ),
    Rule(
        id="P77", topic=_TOPIC, releases=(vllm(before="0.32.0"),), severity="error", flag="speculative-config.model",
        effect="a quantised DFlash drafter fails to load, or drafts rubbish silently", fix="one in bf16, or 0.32.0",
        source="vllm-project/vllm#51581, #53116, #53122",
        when=lambda s: bool(s.uses("dflash"))
        and (s.draft.quantization is not None or (s.block is not None and bool(s.block.quantization))),
    ),
    Rule(
        id="P78", topic=_TOPIC, releases=(vllm("0.27.0", "0.28.0"),), severity="error", flag="the engine's version",
        effect="DSpark of DeepSeek V4 lost its FP8 configuration: KeyError w13_weight_scale",
        fix="0.26, or a later build", source="vllm-project/vllm#51758, #51835", when=_is_deepseek_v4,
    ),
    Rule(
        id="P79", topic=_TOPIC, releases=(sglang(),), severity="error", flag="tp-size",
        effect="DFlash 2 over a quantised output head runs on one device only: RuntimeError",
        fix="one device, or a head in bf16", source="sgl-project/sglang#35534, #35496; read in SGLang 0.5.23",
        when=_quantised_head,
    ),
    Rule(
        id="P80", topic=_TOPIC, releases=(vllm(),), severity="error", flag="quantization",
        effect="FP8 weights with FP8 activations do not load below compute capability 8.9",
        fix="W4A16 or INT8; weight-only FP8 works", source="vllm-project/vllm#40382 (comment)", is_reported=True,
        when=lambda s: s.is_below(8, 9) and _scheme(s) == "fp8" and s.target.quantized_activations,
    ),
)  # fmt: skip
