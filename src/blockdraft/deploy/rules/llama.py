"""Rules about llama.cpp: flags that were renamed, what is inferred, slots, hybrid targets, experts on the processor.

L1 to L12 come from threads, the others from its code of October 2026.
"""

from __future__ import annotations

import re
from dataclasses import replace

from blockdraft.deploy.deployment import Deployment
from blockdraft.deploy.memory import MODEL_METHODS, experts_on_cpu
from blockdraft.deploy.rules.edits import change_draft, change_network, num_drafts
from blockdraft.deploy.rules.rule import Rule, llamacpp
from blockdraft.deploy.rules.situation import Situation

_TOPIC = "llama.cpp"
_ANY = (llamacpp(),)
_N_MAX = "spec-draft-n-max"
_CODE = "read in llama.cpp of October 2026"

REMOVED_FLAGS = (
    *("draft", "draft-n", "draft-max", "draft-min", "draft-n-min"),
    *("spec-ngram-size-n", "spec-ngram-size-m", "spec-ngram-min-hits"),
)
TYPES = (
    *("none", "draft-simple", "draft-eagle3", "draft-mtp", "draft-dflash", "draft-dspark"),
    *("ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod", "ngram-cache"),
)
_FEATURE_TARGETS = (
    *("llama", "qwen3", "qwen3moe", "qwen3next", "qwen35", "qwen35moe", "qwen4exp", "gemma4", "gpt-oss", "lfm2"),
    *("nemotron", "hunyuan-vl", "mimo2", "minimax", "muse-glimmer", "nanbeige", "bailingmoe3", "deepseek4"),
)
"""Architectures whose graph hands out the inputs of its layers; others end in an abort."""
_NETWORK_FLAGS = ("md", "model-draft", "spec-draft-model")
_HUB_FLAGS = ("hfd", "hfrd", "hf-repo-draft", "spec-draft-hf")
_TYPE_FLAGS = ("spec-type",)
_CACHE_FLAGS = ("ctkd", "cache-type-k-draft", "spec-draft-type-k")


def _removed(situation: Situation) -> str | None:
    names = situation.written or situation.deployment.own
    return ", ".join(f"--{name}" for name in REMOVED_FLAGS if name in names)


def _types(situation: Situation) -> list[str]:
    written = situation.flag(*_TYPE_FLAGS)
    return [name.strip() for name in written.split(",")] if isinstance(written, str) else []


def _unknown_types(situation: Situation) -> str | None:
    return ", ".join(name for name in _types(situation) if name not in TYPES)


def _old_build(situation: Situation) -> str | None:
    """A command that only old builds take asks for what only new builds have."""
    if not situation.block:
        return None
    architecture = situation.draft.architecture
    if architecture and re.fullmatch(r"dflash-draft|dspark", architecture):
        return f"its architecture is {architecture!r}, a fork's name; here it is 'dflash'"
    return None


def _converted_draft(situation: Situation) -> bool:
    if not situation.uses("dflash", "dspark") or situation.draft.origin != "GGUF header":
        return False
    return situation.draft.vocab_size is None


def _images(situation: Situation) -> bool:
    return bool(situation.uses("dflash")) and bool(situation.flag("mmproj", "mm", "mmproj-url"))


def _many_slots(situation: Situation) -> str | None:
    draft = situation.uses("dflash")
    slots = situation.deployment.num_sequences
    if draft is None or slots is None or slots < 8 or situation.num_drafts(draft) <= 1:
        return None
    return f"{slots} slots"


def _slots_on_strix_halo(situation: Situation) -> str | None:
    if situation.network is None or (situation.deployment.num_sequences or 1) < 2:
        return None
    return f"{situation.deployment.num_sequences} slots" if situation.devices.gfx == "gfx1151" else None


def _hybrid_without_network(situation: Situation) -> str | None:
    if not situation.speculates or situation.network is not None or not situation.target.is_hybrid:
        return None
    return ", ".join(draft.method for draft in situation.deployment.drafts)


def _longer_than_snapshots(situation: Situation) -> str | None:
    network, search = situation.network, situation.uses("ngram-mod", "ngram")
    if network is None or search is None or not situation.target.is_hybrid:
        return None
    kept = situation.num_drafts(network)
    longest = search.num_draft_tokens or (64 if search.method == "ngram-mod" else 48)
    return f"{search.method} drafts up to {longest}, {kept} states are kept" if longest > kept else None


def _mtp_on_hybrid(situation: Situation) -> bool:
    return bool(situation.uses("mtp")) and situation.target.is_hybrid


def _drafter_on_cpu(situation: Situation) -> str | None:
    if not situation.block or situation.devices.vendor == "cpu":
        return None
    return "spec-draft-ngl is 0" if str(situation.block.options.get("gpu_layers")) == "0" else None


def _full_draft_cache(situation: Situation) -> str | None:
    total = (situation.deployment.context_length or 0) * (situation.deployment.num_sequences or 1)
    if not situation.block or total < 65536:
        return None
    layers, heads, size = (situation.about_draft(name) for name in ("num_layers", "num_kv_heads", "head_dim"))
    if situation.block.kv_dtype not in (None, "f16", "bf16"):
        return None
    return f"{total} tokens x {layers * heads * size * 4} B = {total * layers * heads * size * 4 / (1 << 30):.1f} GiB"


def _quantised_draft_cache(situation: Situation) -> str | None:
    dtype = situation.network.kv_dtype if situation.network else None
    return dtype if dtype and dtype.startswith(("q", "iq")) else None


def _loaded_and_unused(situation: Situation) -> str | None:
    named = any(flag in situation.written for flag in _NETWORK_FLAGS)
    if not named or _types(situation):
        return None
    found = situation.draft.method
    return "an EAGLE-3 head" if found == "eagle3" else "a small draft model" if found is None else None


def _inferred_from_hub(situation: Situation) -> bool:
    return any(flag in situation.written for flag in _HUB_FLAGS) and not _types(situation)


def _unsaid_length(situation: Situation) -> str | None:
    draft = situation.block
    if draft is None or draft.num_draft_tokens is not None:
        return None
    most = situation.about_draft("max_draft_tokens")
    return f"3 of {most}" if most > 3 else None


def _cut_to_the_block(situation: Situation) -> str | None:
    draft = situation.block
    if draft is None or draft.num_draft_tokens is None:
        return None
    most = situation.about_draft("max_draft_tokens")
    return f"{draft.num_draft_tokens} becomes {most}" if draft.num_draft_tokens > most else None


def _no_confidence_head(situation: Situation) -> bool:
    draft = situation.uses("dspark")
    if draft is None or not float(draft.options.get("p_min") or 0):
        return False
    return "conf_proj.weight" not in situation.about_draft("tensor_names")


def _two_networks(situation: Situation) -> str | None:
    methods = [d.method for d in situation.deployment.drafts if d.method in MODEL_METHODS]
    return ", ".join(methods) if len(methods) > 1 else None


def _none_in_list(situation: Situation) -> bool:
    return len(types := _types(situation)) > 1 and "none" in types


def _experts_on_processor(situation: Situation) -> str | None:
    if situation.network is None:
        return None
    if not any(situation.own(flag) is not None for flag in ("cpu-moe", "n-cpu-moe", "override-tensor")):
        return None
    share = experts_on_cpu(situation.deployment, situation.target_facts)
    return f"{share:.0%} of the experts in main memory" if share > 0 else None


def _keep_searches(situation: Situation) -> Deployment:
    kept = tuple(draft for draft in situation.deployment.drafts if draft is not situation.network)
    return replace(situation.deployment, drafts=kept)


def _split_tensors(situation: Situation) -> str | None:
    is_split = situation.deployment.tensor_parallel is not None or situation.flag("split-mode", "sm") == "tensor"
    if not is_split or situation.network is None:
        return None
    return ", ".join(draft.method for draft in situation.deployment.drafts)


def _other_device(situation: Situation) -> str | None:
    device = situation.flag("devd", "device-draft", "spec-draft-device")
    return str(device) if device is not None and situation.uses("dspark") else None


def _cannot_tap(situation: Situation) -> str | None:
    if not situation.uses("dflash", "dspark", "eagle3") or situation.target.origin != "GGUF header":
        return None
    architecture = str(situation.about_target("model_type"))
    return None if architecture.startswith(_FEATURE_TARGETS) else architecture


def _next_without_snapshots(situation: Situation) -> bool:
    if not situation.uses("dflash", "dspark", "mtp", "eagle3"):
        return False
    return str(situation.about_target("model_type")).replace("_", "") == "qwen3next"


def _first_token_search(situation: Situation) -> str | None:
    if situation.uses("ngram-mod") is None or not situation.about_target("is_mixture") or situation.network:
        return None
    return "ngram-mod alone on a mixture of experts"


def _logprobs(situation: Situation) -> bool:
    return situation.speculates and "logprobs" in situation.workload.request_fields


RULES = (
    Rule(
        id="L1", topic=_TOPIC, releases=_ANY, severity="error", flag=_N_MAX,
        effect='"argument has been removed": builds with #22397 exit',
        fix=f"--{_N_MAX}, --spec-draft-n-min, --spec-ngram-mod-n-match, --spec-ngram-simple-size-n and -m",
        source="ggml-org/llama.cpp#22397, #22938; oobabooga/textgen#7541", when=_removed,
        repair=lambda s: s.deployment,  # read into what they meant; writing uses today's names
    ),
    Rule(
        id="L2", topic=_TOPIC, releases=_ANY, severity="error", flag="spec-draft-model",
        effect="--draft-model is no flag", fix="-md, --model-draft or --spec-draft-model",
        source="atomantic/PortOS#4653", when=lambda s: "draft-model" in (s.written or s.deployment.own),
        repair=lambda s: s.deployment,
    ),
    Rule(
        id="L3", topic=_TOPIC, releases=_ANY, severity="error", flag="spec-type",
        effect="an unknown type ends the server", fix=f"one or more of {', '.join(TYPES)}, with commas",
        source="ggml-org/llama.cpp#22964", when=_unknown_types,
    ),
    Rule(
        id="L4", topic=_TOPIC, releases=_ANY, severity="error", flag="spec-draft-model",
        effect="unknown model architecture: the drafter does not load",
        fix="a file converted for mainline (architecture dflash), and a build with #22105",
        source="spiritbuun/buun-llama-cpp#46; ggml-org/llama.cpp#25116", when=_old_build,
    ),
    Rule(
        id="L5", topic=_TOPIC, releases=_ANY, severity="error", flag="spec-draft-model",
        effect="the drafter's file has no vocabulary: it was converted without its target",
        fix="convert it again with --target-model-dir", source="ggml-org/llama.cpp#25549, #25173",
        when=_converted_draft,
    ),
    Rule(
        id="L6", topic=_TOPIC, releases=_ANY, severity="warning", flag="mmproj",
        effect="images with draft-dflash: HTTP 500 for positions with gaps in older builds, poor drafts in newer ones",
        fix="text only, or a server without drafts for images", source="ggml-org/llama.cpp#22105, #27342, #28587",
        is_reported=True, when=_images,
    ),
    Rule(
        id="L7", topic=_TOPIC, releases=_ANY, severity="warning", flag="parallel",
        effect="acceptance falls, or collapses, with 8 and 16 slots; 4 are fine", fix="4 slots, or n-max 1",
        source="ggml-org/llama.cpp#27117", is_reported=True, when=_many_slots,
    ),
    Rule(
        id="L8", topic=_TOPIC, releases=_ANY, severity="warning", flag="parallel",
        effect="with several busy slots drafts cost more than they give on Strix Halo: at 4 slots 25.3 tokens/s with "
        "a drafter, 34.1 without", fix="drafts for one user; none under load",
        source="ggml-org/llama.cpp#27342", is_reported=True, when=_slots_on_strix_halo,
    ),
    Rule(
        id="L9", topic=_TOPIC, releases=_ANY, severity="warning", flag="spec-type",
        effect="n-gram drafts alone keep no states of a hybrid target: each rejection restores a whole state and "
        "decodes again, and can hang in a loop", fix="a drafter with a network beside it, or none",
        source=f"{_CODE}; ggml-org/llama.cpp#19270, #20080, #23268, #25819, #28118", when=_hybrid_without_network,
    ),
    Rule(
        id="L10", topic=_TOPIC, releases=_ANY, severity="warning", flag="spec-type",
        effect="tokens past the end of a turn were kept with draft-mtp: the whole last answer is read again",
        fix="a build with the fix of #28049", source="ggml-org/llama.cpp#28049", is_reported=True, when=_mtp_on_hybrid,
    ),
    Rule(
        id="L11", topic=_TOPIC, releases=_ANY, severity="note", flag="spec-draft-model",
        effect='"dflash requires ctx_other" once at the start is a probe and no failure', fix="ignore it once",
        source="lemonade-sdk/llamacpp-rocm#129", when=lambda s: bool(s.block),
    ),
    Rule(
        id="L12", topic=_TOPIC, releases=_ANY, severity="warning", flag="spec-draft-ngl",
        effect="the drafter runs on the processor: slow", fix="-ngld 99", source="Anbeeld/beellama.cpp#97",
        when=_drafter_on_cpu, is_reported=True,
        repair=lambda s: change_draft(
            s, s.block, options={**(s.block.options if s.block else {}), "gpu_layers": 99}
        ),
    ),
    Rule(
        id="L12a", topic=_TOPIC, releases=_ANY, severity="note", flag="spec-draft-type-k; ctx-size",
        effect="the drafter keeps keys and values for the whole context of all slots, too", fix="a smaller context",
        source="Anbeeld/beellama.cpp#97; PrismML-Eng/llama.cpp#74", when=_full_draft_cache,
    ),
    Rule(
        id="L13", topic=_TOPIC, releases=_ANY, severity="error", flag="spec-type",
        effect="without a type the drafter is loaded and never used", fix="--spec-type draft-eagle3 or draft-simple",
        source=_CODE, when=_loaded_and_unused,
    ),
    Rule(
        id="L14", topic=_TOPIC, releases=_ANY, severity="warning", flag="spec-type",
        effect="the first sidecar found sets the type, in the order MTP, DSpark, DFlash, EAGLE-3", fix="name the type",
        source=f"{_CODE}; ggml-org/llama.cpp#25811, #25989, #26458", when=_inferred_from_hub,
    ),
    Rule(
        id="L15", topic=_TOPIC, releases=_ANY, severity="warning", flag=_N_MAX,
        effect="3 tokens are drafted unless said", fix="the block size less one for one user, fewer under load",
        source=f"{_CODE}; GenerelSchwerz/llama.cpp#3", when=_unsaid_length,
        repair=num_drafts(lambda s: s.about_draft("max_draft_tokens")),
    ),
    Rule(
        id="L16", topic=_TOPIC, releases=_ANY, severity="note", flag=_N_MAX,
        effect="it is cut to what a block gives; states are kept for the number as written", fix="that number",
        source=_CODE, when=_cut_to_the_block, repair=num_drafts(lambda s: s.about_draft("max_draft_tokens")),
    ),
    Rule(
        id="L17", topic=_TOPIC, releases=_ANY, severity="error", flag="spec-draft-p-min",
        effect="this DSpark drafter has no confidence head, so nothing can be cut by it: an error", fix="leave it out",
        source=_CODE, when=_no_confidence_head,
        repair=lambda s: change_draft(
            s, d := s.uses("dspark"), options={k: v for k, v in (d.options if d else {}).items() if k != "p_min"}
        ),
    ),
    Rule(
        id="L18", topic=_TOPIC, releases=_ANY, severity="warning", flag="spec-ngram-mod-n-max",
        effect="longer drafts than states are kept save the whole state first, and decode again after a rejection",
        fix=f"n-max of the n-gram drafts no larger than --{_N_MAX}", source=f"{_CODE}; ggml-org/llama.cpp#25819",
        when=_longer_than_snapshots,
        repair=lambda s: change_draft(
            s, s.uses("ngram-mod", "ngram"), num_draft_tokens=s.num_drafts(s.network) if s.network else None
        ),
    ),
    Rule(
        id="L19", topic=_TOPIC, releases=_ANY, severity="error", flag="spec-draft-p-min",
        effect="--spec-draft-conf-min is in the documentation and not in the program", fix="--spec-draft-p-min",
        source=_CODE, when=lambda s: s.flag("spec-draft-conf-min") is not None,
    ),
    Rule(
        id="L20", topic=_TOPIC, releases=_ANY, severity="warning", flag="spec-draft-type-k",
        effect="quantised keys of the drafter: q4_0 nearly halved acceptance, and q8_0 took DFlash to 2 % before "
        "#25725", fix="f16", source="ggml-org/llama.cpp#15039, #25725", is_reported=True,
        when=_quantised_draft_cache, repair=change_network(kv_dtype=None),
    ),
    Rule(
        id="L21", topic=_TOPIC, releases=_ANY, severity="error", flag="spec-type",
        effect="there is one draft context: two types with a network do not work together", fix="one of them",
        source=_CODE, when=_two_networks,
    ),
    Rule(
        id="L22", topic=_TOPIC, releases=_ANY, severity="warning", flag="spec-type",
        effect="none anywhere in the list means no drafts at all", fix="take none out, or the others",
        source=_CODE, when=_none_in_list,
    ),
    Rule(
        id="L23", topic=_TOPIC, releases=_ANY, severity="warning", flag="cpu-moe; n-cpu-moe; override-tensor",
        effect="each draft to verify touches other experts, and those in main memory are what a pass waits for: "
        "two rows cost 2.2 of one, and DFlash was retired in such a set-up",
        fix="do not draft with a network; n-gram drafts on text that repeats, measured",
        source="jundot/omlx#2077; published configuration 13", is_reported=True, when=_experts_on_processor,
        repair=_keep_searches,
    ),
    Rule(
        id="L24", topic=_TOPIC, releases=_ANY, severity="error", flag="split-mode",
        effect="tensors split over devices with a draft network: an assertion or a crash", fix="--split-mode layer",
        source="ggml-org/llama.cpp#23929; spiritbuun/buun-llama-cpp#105", is_reported=True, when=_split_tensors,
        repair=lambda s: replace(
            s.deployment, tensor_parallel=None, own={**s.deployment.own, "split-mode": "layer"}
        ),
    ),
    Rule(
        id="L25", topic=_TOPIC, releases=_ANY, severity="warning", flag="spec-draft-device",
        effect="a DSpark drafter on a device of its own ended in an assertion", fix="leave it out",
        source="ggml-org/llama.cpp#26475", is_reported=True, when=_other_device,
    ),
    Rule(
        id="L26", topic=_TOPIC, releases=_ANY, severity="error", flag="model",
        effect="this architecture does not hand out the inputs of its layers: an abort", fix="MTP or n-gram drafts",
        source=_CODE, when=_cannot_tap,
    ),
    Rule(
        id="L27", topic=_TOPIC, releases=_ANY, severity="warning", flag="model",
        effect="no states are kept for qwen3next: 6 tokens/s with drafts, 32 without", fix="a build with #28123",
        source=f"{_CODE}; ggml-org/llama.cpp#28120", when=_next_without_snapshots,
    ),
    Rule(
        id="L28", topic=_TOPIC, releases=_ANY, severity="note", flag="spec-type",
        effect="none of 19 n-gram set-ups gained on Qwen3.6-35B-A3B and an RTX 3090; editing and copying can gain",
        fix="measure on your own texts", source="ggml-org/llama.cpp#19493", is_reported=True, when=_first_token_search,
    ),
    Rule(
        id="L29", topic=_TOPIC, releases=_ANY, severity="error", flag="logprobs of requests",
        effect="drafted tokens get a log-probability of 0", fix="no drafts for such requests",
        source=f"{_CODE}; ggml-org/llama.cpp#27972, #27196", when=_logprobs,
    ),
)  # fmt: skip
