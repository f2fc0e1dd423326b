"""Rules about versions and names: methods, keys and flags that a release does not know."""

from __future__ import annotations

import re

from blockdraft.deploy.deployment import Deployment
from blockdraft.deploy.rules.edits import change_draft, change_network, drop, drop_option, num_drafts
from blockdraft.deploy.rules.rule import Rule, vllm
from blockdraft.deploy.rules.situation import Situation

_TOPIC = "version and naming"
_METHOD = "speculative-config.method"

REGISTERED_DRAFTS = frozenset({
    *("DFlashDraftModel", "DFlash2DraftModel", "DFlash2BeamDraftModel", "LiLiCorrDraftModel"),
    *("MuseGlimmerAssistantModel", "DFlashLagunaForCausalLM", "Qwen3XPressModel", "DFlashQwen3ForCausalLM"),
    *("Qwen3DSparkModel", "Qwen3OmniDSparkModel", "Gemma4DSparkModel", "K3DSparkModel", "MuseSparkDSparkModel"),
    *("DSparkDraftModel", "DSparkV41DraftModel"),
})  # fmt: skip
_DSPARK_BY_NAME = frozenset(
    {"Qwen3DSparkModel", "Qwen3OmniDSparkModel", "MuseSparkDSparkModel", "Gemma4DSparkModel", "DSparkDraftModel"}
)
_SHORT_FLAGS = {"spec-method": "method", "spec-model": "model", "spec-tokens": "num_speculative_tokens"}
_KEPT_METHODS = ("eagle", "eagle3", "dflash", "dspark")


def _is_too_old_for_dflash2(situation: Situation) -> str | None:
    if not situation.block or not situation.draft.is_dflash2:
        return None
    if situation.is_between("vllm", None, "0.28.0"):
        return f"{situation.draft.name} is a DFlash 2 drafter"
    return "the V1 model runner is in use" if situation.runner == "v1" else None


def _draft_path(situation: Situation) -> str:
    """Return the draft model as the command names it, in small letters."""
    written = situation.written.get("spec-model") or situation.speculative_json.get("model")
    return str(written or (situation.network.model if situation.network else None) or "").lower()


def _method_written(situation: Situation) -> str | None:
    found = situation.written.get("spec-method") or situation.speculative_json.get("method")
    return str(found) if found else None


def _is_taken_for_a_draft_model(situation: Situation) -> str | None:
    if not situation.words or not (path := _draft_path(situation)) or _method_written(situation):
        return None
    if any(name in path for name in ("dflash", "dspark", "eagle")) or situation.draft.method not in (
        "dflash",
        "dspark",
    ):
        return None
    if situation.draft.architecture in _DSPARK_BY_NAME | {"MuseGlimmerAssistantModel"}:
        return None
    return f"{path} is a {situation.draft.method} drafter, and neither its name nor a method says so"


def _becomes_eagle(situation: Situation) -> str | None:
    path = _draft_path(situation)
    method = _method_written(situation)
    if "eagle-" not in path or method in _KEPT_METHODS:
        return None
    if not situation.words and situation.uses("eagle3", "dflash", "dspark"):
        return None
    return f"{path} holds 'eagle-'"


def _old_rejection(situation: Situation) -> str | None:
    value = situation.speculative("rejection_sample_method")
    return f"rejection_sample_method is {value}" if value in ("strict", "probabilistic") else None


def _new_rejection(situation: Situation) -> Deployment:
    is_probabilistic = situation.speculative("rejection_sample_method") == "probabilistic"
    mended = drop_option("rejection_sample_method", "verification")(situation)
    network = next((draft for draft in mended.drafts if draft.model), None)
    if not is_probabilistic or network is None:
        return mended
    changed = {**network.options, "draft_sampling": "probabilistic"}
    return change_draft(Situation(deployment=mended, version=situation.version), network, options=changed)


def _draft_tensor_parallel(situation: Situation) -> str | None:
    network = situation.network
    share, whole = network.tensor_parallel if network else None, situation.deployment.tensor_parallel or 1
    return f"it is {share} and the target's is {whole}" if share not in (None, 1, whole) else None


def _said_twice(situation: Situation) -> str | None:
    twice = [
        f"--{flag} and {key}"
        for flag, key in _SHORT_FLAGS.items()
        if flag in situation.written and key in situation.speculative_json
    ]
    return ", ".join(twice)


def _is_unregistered(situation: Situation) -> str | None:
    if not situation.uses("dflash") or situation.draft.verifier or situation.draft.origin == "registry":
        return None
    name = situation.about_draft("architecture")
    return f"its architecture is {name}" if name not in REGISTERED_DRAFTS else None


def _serves_a_local_verifier(situation: Situation) -> str | None:
    facts = situation.draft_facts
    if situation.speculates or facts is None or facts.name != situation.deployment.target or not facts.verifier:
        return None
    return f"its verifier is {facts.verifier}" if re.match(r"[./~]", facts.verifier) else None


RULES = (
    Rule(
        id="P1", topic=_TOPIC, releases=(vllm(before="0.20.0"),), severity="error", flag=_METHOD,
        effect="dflash is no method of this release: the configuration is refused",
        fix="upgrade to 0.20.1 or later", source="vllm-project/vllm#36847; dated by wheels",
        when=lambda s: bool(s.uses("dflash")),
    ),
    Rule(
        id="P2", topic=_TOPIC, releases=(vllm(before="0.25.0"),), severity="error", flag=_METHOD,
        effect="dspark is no method of this release: the configuration is refused",
        fix="upgrade to 0.28.0 or later", source="dated by wheels", when=lambda s: bool(s.uses("dspark")),
    ),
    Rule(
        id="P3", topic=_TOPIC, releases=(vllm(),), severity="error", flag=_METHOD,
        effect="a DFlash 2 drafter does not load, or drafts like a DFlash drafter without a word",
        fix="0.28.0 or later, on the V2 model runner (no VLLM_USE_V2_MODEL_RUNNER=0)",
        source="read in vLLM 0.33.0; vllm-project/vllm#52816; noonghunna/club-3090#1064", when=_is_too_old_for_dflash2,
    ),
    Rule(
        id="P4", topic=_TOPIC, releases=(vllm(),), severity="error", flag=_METHOD,
        effect="the drafter is taken for a small language model: an error about vocabulary or architecture",
        fix="name the method", source="read in vLLM 0.33.0", when=_is_taken_for_a_draft_model,
    ),
    Rule(
        id="P5", topic=_TOPIC, releases=(vllm(),), severity="error", flag=_METHOD,
        effect="the path decides the method, which becomes eagle and not eagle3",
        fix='write "method": "eagle3"', source="read in vLLM 0.33.0", when=_becomes_eagle,
    ),
    Rule(
        id="P6", topic=_TOPIC, releases=(vllm(),), severity="error", flag="speculative-config.num_speculative_tokens",
        effect="the number is not taken from the block size of a Z Lab drafter: ValueError",
        fix="set it to the block size less one", source="read in vLLM 0.33.0",
        when=lambda s: (draft := s.uses("dflash")) is not None
        and draft.num_draft_tokens is None
        and not s.draft.verifier,
        repair=num_drafts(lambda s: s.about_draft("max_draft_tokens")),
    ),
    Rule(
        id="P7", topic=_TOPIC, releases=(vllm(since="0.21.0"),), severity="error",
        flag="speculative-config.rejection_sample_method",
        effect="the value was renamed: the configuration is refused",
        fix='leave it out (standard is the default); for "probabilistic" set "draft_sample_method": "probabilistic"',
        source="vllm-project/vllm#51609, #51611, #40651", when=_old_rejection, repair=_new_rejection,
    ),
    Rule(
        id="P8", topic=_TOPIC, releases=(vllm(),), severity="error",
        flag="speculative-config.synthetic_acceptance_rate",
        effect="there is no such key: the configuration is refused",
        fix="synthetic_acceptance_rates (a list) or synthetic_acceptance_length",
        source="vllm-project/vllm#51609", when=lambda s: s.speculative("synthetic_acceptance_rate") is not None,
        repair=drop_option("synthetic_acceptance_rate"),
    ),
    Rule(
        id="P9", topic=_TOPIC, releases=(vllm(),), severity="error", flag="speculative-config.tensor_parallel_size",
        effect="the key is a trap that raises ValueError", fix="draft_tensor_parallel_size",
        source="read in vLLM 0.33.0", when=lambda s: s.speculative("tensor_parallel_size") is not None,
        repair=drop_option("tensor_parallel_size"),
    ),
    Rule(
        id="P10", topic=_TOPIC, releases=(vllm(),), severity="error",
        flag="speculative-config.draft_tensor_parallel_size",
        effect="ValueError: it must be 1 or that of the target", fix="leave it out, or 1",
        source="read in vLLM 0.33.0", when=_draft_tensor_parallel, repair=change_network(tensor_parallel=None),
    ),
    Rule(
        id="P11", topic=_TOPIC, releases=(vllm(since="0.18.0"),), severity="error", flag="swap-space",
        effect="the argument is gone: the server does not start",
        fix="leave it out; --kv-offloading-size (GiB, of all devices together) is the nearest there is",
        source="dated by wheels: present in 0.17.1, absent in 0.18", when=lambda s: s.flag("swap-space") is not None,
        repair=drop("swap-space"),
    ),
    Rule(
        id="P12", topic=_TOPIC, releases=(vllm(since="0.22.0"),), severity="error",
        flag="spec-method, spec-model, spec-tokens",
        effect="a short flag and the same key of the JSON exclude each other: ValueError", fix="keep one of the two",
        source="read in vLLM 0.33.0", when=_said_twice,
        repair=lambda s: s.deployment,  # writing it again says each thing once
    ),
    Rule(
        id="P12a", topic=_TOPIC, releases=(vllm(before="0.22.0"),), severity="error",
        flag="spec-method, spec-model, spec-tokens",
        effect="the short flags came with 0.22: unknown arguments", fix="--speculative-config with the same keys",
        source="dated by wheels", when=lambda s: ", ".join(f"--{flag}" for flag in _SHORT_FLAGS if flag in s.written),
        repair=lambda s: s.deployment,
    ),
    Rule(
        id="P13", topic=_TOPIC, releases=(vllm(since="0.33.0"),), severity="error", flag=_METHOD,
        effect="the method is gone: the configuration is refused", fix="eagle3, dflash or mtp, with a drafter for it",
        source="dated by wheels", when=lambda s: s.speculative("method") in ("medusa", "mlp_speculator"),
    ),
    Rule(
        id="P14", topic=_TOPIC, releases=(vllm(),), severity="error", flag="speculative-config.model",
        effect="the architecture is not registered, and a prefix is put in front of it: not supported",
        fix='write "DFlashDraftModel" into architectures of its config.json',
        source="NVIDIA-NeMo/Automodel#2913; read in vLLM 0.33.0", when=_is_unregistered,
    ),
    Rule(
        id="P15", topic=_TOPIC, releases=(vllm(),), severity="error", flag="speculative-config.model",
        effect="vLLM cannot run Domino drafters", fix="serve it with SGLang",
        source="NVIDIA-NeMo/Automodel#2913; read in SGLang 0.5.23",
        when=lambda s: bool(s.block) and s.draft.projector_type == "domino",
    ),
    Rule(
        id="P16", topic=_TOPIC, releases=(vllm(),), severity="error", flag="model",
        effect="a speculators drafter served in place of its target must name a remote target: ValueError",
        fix="serve the target, and name the drafter in --speculative-config",
        source="read in vLLM 0.33.0", when=_serves_a_local_verifier,
    ),
    Rule(
        id="P17", topic=_TOPIC, releases=(vllm(),), severity="error", flag=_METHOD,
        effect="DeepSeek V4.1 has no MTP heads: ValueError", fix="method dspark, without a model",
        source="read in vLLM 0.33.0",
        when=lambda s: bool(s.uses("mtp")) and s.about_target("model_type") == "deepseek_v41",
    ),
)  # fmt: skip
