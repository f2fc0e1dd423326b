"""Rules about attention backends and what a device can compute."""

from __future__ import annotations

from dataclasses import replace

from blockdraft.deploy.deployment import Deployment
from blockdraft.deploy.rules.edits import change, change_network, without_variable
from blockdraft.deploy.rules.rule import Rule, sglang, vllm
from blockdraft.deploy.rules.situation import Situation

_TOPIC = "attention backend and hardware"
_BACKEND = "attention-backend; speculative-config.attention_backend"

SGLANG_DFLASH_TARGETS = (
    *("llama", "qwen3", "qwen3_moe", "qwen3_next", "qwen3_5", "qwen3_vl", "gpt_oss", "gemma4", "deepseek_v2"),
    *(
        "deepseek_v3",
        "glm_moe_dsa",
        "glm4_moe_lite",
        "glm5_next",
        "kimi_k25",
        "kimi_k3",
        "minimax_m3_vl",
        "mimo_v2",
        "nemotron_h",
    ),
    *("laguna", "lfm2", "muse_glimmer", "muse_spark", "minicpmv", "inkling", "nanbeige", "beam"),
)
"""Model types whose SGLang class lets a DFlash drafter read its layers; longer names begin with one of these."""


def _is_fp8(dtype: str | None) -> bool:
    return (dtype or "").lower().startswith("fp8")


def _is_non_causal(situation: Situation) -> bool:
    """True if some layer of the drafter sees its whole block; sliding ones do not unless told to."""
    sliding = situation.about_draft("num_sliding_layers")
    return bool(sliding != situation.about_draft("num_layers"))


def _forced_causal_backend(situation: Situation) -> str | None:
    backend = situation.draft_backend
    if not situation.block or backend not in ("FLASHINFER", "TRITON_ATTN", "TRITON"):
        return None
    return f"{backend} and a drafter that sees its whole block" if _is_non_causal(situation) else None


def _gemma4(situation: Situation) -> bool:
    return bool(situation.uses("dflash")) and str(situation.about_target("model_type")).startswith("gemma4")


def _wide_heads(situation: Situation) -> bool:
    return bool(situation.block) and situation.capability == (8, 6) and situation.about_target("head_dim") == 256


def _takes_fp8(situation: Situation, backends: tuple[str, ...]) -> str | None:
    """Return whose keys and values are FP8 on one of these backends: the target's, the drafter's, both."""
    network, kv = situation.network, situation.deployment.kv_dtype
    whose = []
    if _is_fp8(kv) and situation.attention_backend in backends:
        whose.append("target")
    if network and network.method != "mtp" and _is_fp8(network.kv_dtype or kv) and situation.draft_backend in backends:
        whose.append("drafter")
    return " and ".join(whose)


def _fp8_with_triton(situation: Situation) -> str | None:
    whose = _takes_fp8(situation, ("TRITON_ATTN", "TRITON"))
    return f"{whose} on {situation.devices.accelerator}" if whose and situation.is_below(8, 9) else None


def _fp8_with_old_flash(situation: Situation) -> str | None:
    whose = _takes_fp8(situation, ("FLASH_ATTN",))
    return f"{whose} on {situation.devices.accelerator}" if whose and situation.has_old_flash_attention else None


def _to_flashinfer(situation: Situation) -> Deployment:
    mended = replace(situation.deployment, attention_backend="FLASHINFER")
    drafts = tuple(replace(draft, attention_backend=None) for draft in mended.drafts)
    return replace(mended, drafts=drafts)


def _fp8_undecided(situation: Situation) -> str | None:
    if not _is_fp8(situation.deployment.kv_dtype) or situation.attention_backend or not situation.is_below(8, 9):
        return None
    return situation.devices.accelerator


def _quantised_keys(situation: Situation) -> str | None:
    if not situation.uses("dflash"):
        return None
    kv = situation.deployment.kv_dtype
    return kv if kv and kv.lower() not in ("auto", "bf16", "bfloat16", "f16", "float16") else None


def _sinks(situation: Situation) -> str | None:
    if not situation.block or situation.draft_backend not in ("FLASH_ATTN", "FLASHINFER"):
        return None
    return situation.draft_backend if situation.draft.has_sinks and situation.is_below(9, 0) else None


def _rocm(situation: Situation) -> str | None:
    if not situation.block or situation.devices.vendor != "amd":
        return None
    backend = situation.draft_backend
    return f"{backend or 'the default'} on {situation.devices.accelerator}" if backend in (
        None, "ROCM_AITER_UNIFIED_ATTN",
    ) else None  # fmt: skip


def _mixed_on_v1(situation: Situation) -> str | None:
    if not situation.block:
        return None
    sliding, layers = situation.about_draft("num_sliding_layers"), situation.about_draft("num_layers")
    return f"{sliding} of {layers} layers are sliding" if 0 < sliding < layers and situation.runner == "v1" else None


def _no_window(situation: Situation) -> bool:
    if not situation.block or situation.draft.origin == "registry":
        return False
    return bool(situation.draft.num_sliding_layers) and situation.draft.sliding_window is None


def _sglang_cannot_tap(situation: Situation) -> str | None:
    if not situation.uses("dflash"):
        return None
    model_type = str(situation.about_target("model_type"))
    return None if model_type.startswith(SGLANG_DFLASH_TARGETS) else f"model type {model_type}"


def _refuses_features(situation: Situation) -> str | None:
    if not situation.drafts_with_features:
        return None
    model_type = str(situation.about_target("model_type"))
    if "aliceai" in model_type.replace("_", "") and situation.uses("dflash", "dspark", "eagle3"):
        return model_type
    allowed = ("mtp", "ngram")
    is_qwen4 = model_type.startswith("qwen4_exp")
    return model_type if is_qwen4 and any(d.method not in allowed for d in situation.deployment.drafts) else None


def _uno(situation: Situation) -> str | None:
    if str(situation.flag("speculative-algorithm")).upper() != "UNO":
        return None
    problems = []
    if (situation.attention_backend or "FA3") != "FA3":
        problems.append(f"attention backend {situation.attention_backend}")
    if (situation.deployment.tensor_parallel or 1) > 1:
        problems.append(f"tensor parallel {situation.deployment.tensor_parallel}")
    if situation.devices.vendor != "nvidia":
        problems.append(situation.devices.accelerator)
    return ", ".join(problems)


def _compact_on_sm120(situation: Situation) -> bool:
    return situation.environment("SGLANG_RAGGED_VERIFY_MODE") == "compact" and situation.capability == (12, 0)


RULES = (
    Rule(
        id="P34", topic=_TOPIC, releases=(vllm("0.20.0", "0.24.0"),), severity="error", flag=_BACKEND,
        effect="this backend has no non-causal attention yet: the engine does not start",
        fix="FLASH_ATTN or FLEX_ATTENTION for the drafter, or 0.24.0",
        source="vllm-project/vllm#41559, #42069; dated by wheels", when=_forced_causal_backend,
        repair=change_network(attention_backend="FLASH_ATTN"),
    ),
    Rule(
        id="P35", topic=_TOPIC, releases=(vllm(before="0.24.0"),), severity="error", flag=_BACKEND,
        effect="Gemma 4 forces TRITON_ATTN, which has no non-causal attention yet: the engine fails",
        fix="0.24.0, or an attention_backend of the drafter's own", source="vllm-project/vllm#42069, #40382",
        when=lambda s: _gemma4(s) and not (s.network and s.network.attention_backend),
    ),
    Rule(
        id="P36", topic=_TOPIC, releases=(vllm("0.19.0", "0.20.1"),), severity="error", flag="the engine's version",
        effect="no backend takes heads of 256 with a drafter on sm_86", fix="a newer build",
        source="vllm-project/vllm#40382, #40394", when=_wide_heads, is_reported=True,
    ),
    Rule(
        id="P37", topic=_TOPIC, releases=(vllm("0.20.0", "0.24.0"),), severity="error", flag="kv-cache-dtype",
        effect="every backend refuses quantised keys and values with DFlash", fix="16 bits, or 0.24.0 with FLASHINFER",
        source="vllm-project/vllm#41559, #43081", when=_quantised_keys, repair=change(kv_dtype=None),
    ),
    Rule(
        id="P38", topic=_TOPIC, releases=(vllm(),), severity="error", flag="kv-cache-dtype",
        effect='"fp8e4nv not supported": Triton has no such type below compute capability 8.9',
        fix="FLASHINFER for target and drafter, or 16 bits", source="vllm-project/vllm#26431; read in vLLM 0.33.0",
        when=_fp8_with_triton, repair=_to_flashinfer,
    ),
    Rule(
        id="P39", topic=_TOPIC, releases=(vllm(),), severity="error", flag="kv-cache-dtype; attention-backend",
        effect="FlashAttention 2, which this device gets, takes no FP8 keys and values: rejected",
        fix="FLASHINFER for target and drafter, or 16 bits",
        source="read in vLLM 0.33.0; vllm-project/vllm#43081; syv-ai/qwen38-27b-rtx3090#153",
        when=_fp8_with_old_flash, repair=_to_flashinfer,
    ),
    Rule(
        id="P39a", topic=_TOPIC, releases=(vllm(since="0.24.0"),), severity="note", flag="attention-backend",
        effect="FLASHINFER is the only backend that takes FP8 keys and values below compute capability 8.9",
        fix="install FlashInfer and name it, so that nothing else is chosen", source="read in vLLM 0.33.0",
        when=_fp8_undecided, repair=_to_flashinfer,
    ),
    Rule(
        id="P40", topic=_TOPIC, releases=(vllm(since="0.26.0"),), severity="warning", flag=_BACKEND,
        effect="FLASH_ATTN ended in a device assertion for the drafter on sm_121 (GB10) in 0.26",
        fix="TRITON_ATTN or FLASHINFER for the drafter", source="vllm-project/vllm#50707", is_reported=True,
        when=lambda s: bool(s.block) and s.capability == (12, 1) and s.draft_backend in (None, "FLASH_ATTN"),
        repair=change_network(attention_backend="TRITON_ATTN"),
    ),
    Rule(
        id="P41", topic=_TOPIC, releases=(vllm("0.21.0", "0.25.0"),), severity="warning",
        flag="speculative-config.attention_backend",
        effect="the V2 model runner ignores it for the drafter: another backend, failure or slower graphs",
        fix="a build with #46770", source="vllm-project/vllm#46770; local-inference-lab/vllm#19", is_reported=True,
        when=lambda s: s.block is not None and bool(s.block.attention_backend) and s.runner == "v2",
    ),
    Rule(
        id="P42", topic=_TOPIC, releases=(vllm(),), severity="error", flag=_BACKEND,
        effect='"sinks not supported" below compute capability 9.0', fix="TRITON_ATTN for the drafter",
        source="read in vLLM 0.33.0; vllm-project/vllm#40153; flashinfer-ai/flashinfer#4070", when=_sinks,
        repair=change_network(attention_backend="TRITON_ATTN"),
    ),
    Rule(
        id="P43", topic=_TOPIC, releases=(vllm(),), severity="warning", flag=_BACKEND,
        effect="the default of ROCm and AITER's unified backend have no non-causal attention: the drafter fails",
        fix="ROCM_ATTN or ROCM_AITER_FA, in a build with #39703",
        source="z-lab/dflash#72; vllm-project/vllm#39703; read in vLLM 0.33.0", when=_rocm,
        repair=change_network(attention_backend="ROCM_ATTN"),
    ),
    Rule(
        id="P44", topic=_TOPIC, releases=(vllm(),), severity="error", flag="VLLM_USE_V2_MODEL_RUNNER",
        effect="the V1 model runner does not run drafters that mix sliding and full layers: NotImplementedError",
        fix="the V2 model runner", source="read in vLLM 0.33.0", when=_mixed_on_v1,
        repair=without_variable("VLLM_USE_V2_MODEL_RUNNER"),
    ),
    Rule(
        id="P45", topic=_TOPIC, releases=(vllm(), sglang()), severity="error", flag="sliding_window",
        effect="the drafter's config.json has sliding layers and no window: ValueError", fix="add sliding_window to it",
        source="read in vLLM 0.33.0 and SGLang 0.5.23", when=_no_window,
    ),
    Rule(
        id="P46", topic=_TOPIC, releases=(sglang(),), severity="warning", flag="model-path",
        effect="its class is not among those that let a DFlash drafter read their layers: RuntimeError at start",
        fix="another target, MTP or n-gram drafts",
        source="read in SGLang 0.5.23; vllm-project/vllm#45546, #33329", when=_sglang_cannot_tap,
    ),
    Rule(
        id="P47", topic=_TOPIC, releases=(vllm(),), severity="error", flag="speculative-config.method",
        effect="this target refuses drafters that read its layers: NotImplementedError",
        fix="its own MTP layers, or n-gram drafts", source="read in vLLM 0.33.0", when=_refuses_features,
    ),
    Rule(
        id="P48", topic=_TOPIC, releases=(sglang(),), severity="error", flag="speculative-algorithm",
        effect="DSPARK on sm_120: a kernel is missing at start; where it was added, numbers were wrong",
        fix="DFLASH or MTP on this device", source="sgl-project/sglang#33985", is_reported=True,
        when=lambda s: bool(s.uses("dspark")) and s.capability == (12, 0),
    ),
    Rule(
        id="P49", topic=_TOPIC, releases=(sglang(since="0.5.17"),), severity="error",
        flag="SGLANG_RAGGED_VERIFY_MODE",
        effect="compact mode on sm_120 made illegal accesses while capturing graphs",
        fix="static, or a small --cuda-graph-max-bs", source="sgl-project/sglang#33412", is_reported=True,
        when=_compact_on_sm120, repair=without_variable("SGLANG_RAGGED_VERIFY_MODE"),
    ),
    Rule(
        id="P50", topic=_TOPIC, releases=(sglang(),), severity="error", flag="speculative-algorithm",
        effect="DFLASH and DSPARK do not run on processors: ValueError", fix="NGRAM, or another engine",
        source="read in SGLang 0.5.23", when=lambda s: bool(s.block) and s.devices.vendor == "cpu",
    ),
    Rule(
        id="P51", topic=_TOPIC, releases=(sglang(),), severity="error", flag="speculative-algorithm",
        effect="UNO runs with FA3, without tensor parallelism and on CUDA only", fix="another algorithm",
        source="read in SGLang 0.5.23", when=_uno,
    ),
)  # fmt: skip
