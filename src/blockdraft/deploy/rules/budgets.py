"""Rules about rows of a pass, sequences at once, memory and captured graphs."""

from __future__ import annotations

from dataclasses import replace

from blockdraft.deploy.deployment import Deployment
from blockdraft.deploy.hardware import GIB
from blockdraft.deploy.memory import DEFAULT_FRACTION, account, probabilistic_bytes
from blockdraft.deploy.rules.edits import change, drop
from blockdraft.deploy.rules.rule import Rule, llamacpp, sglang, vllm
from blockdraft.deploy.rules.situation import Situation, known

_TOPIC = "batch, memory, graphs"
_BATCHED = "max-num-batched-tokens"
_GOOD_BUDGET = 8192
_OLD_DEFAULT = 2048
_LORA = ("enable-lora",)


def _feature_draft_length(situation: Situation) -> int | None:
    """Return K of a drafter that takes rows of the pass, or None without one."""
    draft = situation.uses("dflash", "dspark", "eagle3")
    return situation.num_drafts(draft) if draft else None


def _batched(situation: Situation) -> int:
    return known(situation.deployment.max_batched_tokens, f"{_BATCHED}, whose default depends on the device")


def _nothing_left(situation: Situation) -> str | None:
    if (length := _feature_draft_length(situation)) is None:
        return None
    batched = situation.deployment.max_batched_tokens or _OLD_DEFAULT
    left = batched - (length - 1) * situation.num_sequences
    return f"{batched} - {length - 1} x {situation.num_sequences} = {left}" if left <= 0 else None


def _slots_exceed(situation: Situation) -> str | None:
    if (length := _feature_draft_length(situation)) is None:
        return None
    batched, rows = _batched(situation), situation.num_sequences * (length + 1)
    return (
        f"{situation.num_sequences} x {length + 1} = {rows} rows, and the budget is {batched}"
        if rows > batched
        else None
    )


def _fewer_sequences(situation: Situation) -> str | None:
    seen = _slots_exceed(situation)
    length = _feature_draft_length(situation)
    return f"{seen}: {_batched(situation) // (length + 1)} sequences at once" if seen and length else None


def _enough_budget(situation: Situation) -> Deployment:
    """Return the deployment with a budget that the drafts of all sequences leave 8192 tokens of."""
    length = _feature_draft_length(situation) or 0
    needed = _GOOD_BUDGET + situation.num_sequences * length
    return replace(situation.deployment, max_batched_tokens=-(-needed // 1024) * 1024)


def _small_budget(situation: Situation) -> str | None:
    if (length := _feature_draft_length(situation)) is None:
        return None
    budget = _batched(situation)
    if situation.is_between("vllm", None, "0.28.0"):
        budget -= (length - 1) * situation.num_sequences
    return f"{budget} scheduled tokens" if 0 < budget < _GOOD_BUDGET else None


def _old_advice(situation: Situation) -> str | None:
    batched = situation.deployment.max_batched_tokens
    if not situation.uses("dflash") or batched is None or batched < 4 * _GOOD_BUDGET - _GOOD_BUDGET // 8:
        return None
    hidden = situation.about_target("hidden_size")
    return f"{batched} rows of width {hidden} are about {batched * hidden * 32 / GIB:.1f} GiB of activations"


def _distributions(situation: Situation) -> str | None:
    if situation.speculative("draft_sample_method") != "probabilistic" or situation.network is None:
        return None
    length, vocab = situation.num_drafts(situation.network), situation.about_target("vocab_size")
    size = probabilistic_bytes(situation.num_sequences, length, vocab) / GIB
    return f"{situation.num_sequences} x {length} x {vocab} x 2 B = {size:.2f} GiB"


def _tight_dflash2(situation: Situation) -> str | None:
    if not situation.block or not situation.draft.is_dflash2 or situation.devices.memory_bytes > 24 * GIB:
        return None
    fraction = situation.deployment.memory_fraction or DEFAULT_FRACTION["vllm"]
    return f"{fraction} of {situation.devices.memory_bytes / GIB:.0f} GiB" if fraction >= 0.9 else None


def _states(situation: Situation) -> str | None:
    if not situation.speculates or not situation.target.is_hybrid:
        return None
    length = max(situation.num_drafts(draft) for draft in situation.deployment.drafts)
    one = situation.about_target("state_bytes")
    total = one * (1 + length) / (1 << 20)
    return f"{1 + length} x {one / (1 << 20):.1f} MiB = {total:.0f} MiB a sequence, instead of one"


def _crowded_graphs(situation: Situation) -> bool:
    asked = situation.workload.num_concurrent or situation.deployment.num_sequences
    if not situation.uses("dflash") or situation.flag("enforce-eager"):
        return False
    return known(asked, "how many sequences run at once") >= 16


def _lora_rows(situation: Situation) -> str | None:
    return _slots_exceed(situation) if situation.flag(*_LORA) else None


def _little_left(situation: Situation) -> str | None:
    fraction = situation.deployment.memory_fraction
    if not situation.block or fraction is None:
        return None
    left = situation.devices.memory_bytes * (1 - fraction) / GIB
    return f"{left:.2f} GiB beside the static share" if left < 1.0 else None


def _draft_window(situation: Situation) -> str | None:
    window, sink = situation.flag("speculative-draft-window-size"), situation.flag("speculative-draft-sink-size")
    if window is None:
        return f"a sink of {sink} and no window" if sink not in (None, 0, "0") else None
    block = situation.about_draft("block_size")
    return f"window {window}, block {block}" if int(window) < block else None


def _dynamic_length(situation: Situation) -> str | None:
    if situation.speculative("num_speculative_tokens_per_batch_size") is None:
        return None
    parallel = int(situation.flag("data-parallel-size", "dp") or 1)
    if parallel > 1:
        return f"data parallel {parallel}"
    return "the V1 model runner" if situation.runner == "v1" else None


def _adaptive(situation: Situation) -> str | None:
    if not situation.speculative("enable_adaptive_verification"):
        return None
    bad = [flag for flag in ("enforce-eager", "enable-lora") if situation.flag(flag)]
    if (situation.deployment.pipeline_parallel or 1) > 1:
        bad.append("pipeline-parallel-size")
    return ", ".join(bad)


def _pipelined(situation: Situation) -> str | None:
    stages = situation.deployment.pipeline_parallel or 1
    return f"{stages} stages" if stages > 1 and situation.uses("dflash", "dspark", "eagle3") else None


def _too_large(situation: Situation) -> str | None:
    """Return by how much one sequence at its full context (all slots on llama.cpp) exceeds the memory, or None."""
    length, is_llama = situation.deployment.context_length, situation.deployment.engine == "llamacpp"
    count = situation.deployment.num_sequences if is_llama else 1
    served = replace(situation.deployment, num_sequences=count or 1, context_length=length or 1)
    known(situation.target.weight_bytes, "the size of the target's weights")
    counted = account(served, situation.target, situation.draft_facts, situation.devices)
    if counted.fits is not False:
        return None
    return f"{counted.total_bytes / GIB:.1f} GiB of {counted.budget_bytes / GIB:.1f} a device"


def _unsaid_length(situation: Situation) -> str | None:
    """Return what the model's whole context takes, if that is what is served and it does not fit."""
    if situation.deployment.context_length is not None or situation.target_facts is None:
        return None
    whole = replace(situation.deployment, num_sequences=1, context_length=situation.about_target("context_length"))
    counted = account(whole, situation.target, situation.draft_facts, situation.devices)
    fitting = counted.context_with_drafts
    if counted.fits is not False or not fitting:
        return None
    return f"{whole.context_length} tokens need {counted.total_bytes / GIB:.1f} GiB; {fitting} fit"


def _fitting_length(situation: Situation) -> Deployment:
    one = replace(situation.deployment, num_sequences=1)
    fitting = account(one, situation.target, situation.draft_facts, situation.devices).context_with_drafts or 1024
    return replace(situation.deployment, context_length=max(1024, fitting // 1024 * 1024))


RULES = (
    Rule(
        id="M1", topic=_TOPIC, releases=(vllm(), sglang(), llamacpp()), severity="error",
        flag="max-model-len; context-length; ctx-size; tensor parallel",
        effect="weights, drafter, states, keys and values of one sequence exceed the memory (llama.cpp: of all slots)",
        fix="a smaller quantisation, a shorter context, fewer drafts, or more devices",
        source="the memory account; parts of it are estimates", when=_too_large,
    ),
    Rule(
        id="M2", topic=_TOPIC, releases=(vllm(),), severity="error", flag="max-model-len",
        effect="without a length vLLM takes the model's whole context, and ends if one such sequence does not fit",
        fix="say a length that fits", source="the memory account; parts of it are estimates", when=_unsaid_length,
        repair=_fitting_length,
    ),
    Rule(
        id="P52", topic=_TOPIC, releases=(vllm("0.20.0", "0.28.0"),), severity="error", flag=_BATCHED,
        effect="slots for drafts are taken off the budget and nothing is left: ValidationError",
        fix="a budget of 8192 and (K - 1) x max-num-seqs, or fewer sequences",
        source="vllm-project/vllm#50708; vllm-project/vllm-ascend#13717", when=_nothing_left, repair=_enough_budget,
    ),
    Rule(
        id="P53", topic=_TOPIC, releases=(vllm("0.28.0", "0.33.0"),), severity="error", flag=_BATCHED,
        effect="more rows than the budget: index out of bounds, or an error of the compile range",
        fix="a budget of at least max-num-seqs x (K + 1)",
        source="vllm-project/vllm#53970, #51655 (comment)", when=_slots_exceed, repair=_enough_budget,
    ),
    Rule(
        id="P54", topic=_TOPIC, releases=(vllm(since="0.33.0"),), severity="warning", flag=_BATCHED,
        effect="fewer sequences run at once than asked for; a line in the log is all that tells",
        fix="a budget of at least max-num-seqs x (K + 1)", source="read in vLLM 0.33.0", when=_fewer_sequences,
        repair=_enough_budget,
    ),
    Rule(
        id="P55", topic=_TOPIC, releases=(vllm(),), severity="note", flag=_BATCHED,
        effect="below 8192 scheduled tokens prompts are read slowly", fix="8192 or more",
        source="read in vLLM 0.33.0; vllm-project/vllm#44815", when=_small_budget, repair=_enough_budget,
    ),
    Rule(
        id="P55a", topic=_TOPIC, releases=(vllm(since="0.28.0"),), severity="note", flag=_BATCHED,
        effect="32768 is advice from when slots for drafts were taken off the budget (before 0.28): memory for nothing",
        fix="8192, or max-num-seqs x (K + 1) if that is more", source="dated by wheels; Z Lab's README",
        when=_old_advice, repair=change(max_batched_tokens=_GOOD_BUDGET),
    ),
    Rule(
        id="P56", topic=_TOPIC, releases=(vllm(),), severity="note", flag="speculative-config.draft_sample_method",
        effect="probabilistic drafts keep a distribution for each sequence and draft", fix="fewer sequences, or greedy",
        source="read in vLLM 0.33.0", when=_distributions,
    ),
    Rule(
        id="P57", topic=_TOPIC, releases=(vllm(),), severity="warning", flag="gpu-memory-utilization",
        effect="DFlash 2 ran out of memory in the first long prompt on 24 GB cards", fix="0.80: leave about 3 GiB",
        source="noonghunna/club-3090#1064", is_reported=True, when=_tight_dflash2, repair=change(memory_fraction=0.8),
    ),
    Rule(
        id="P58", topic=_TOPIC, releases=(vllm(), sglang()), severity="note",
        flag="speculative-config.num_speculative_tokens; max-num-seqs",
        effect="each sequence keeps 1 + K recurrent states of its linear-attention layers",
        fix="fewer drafts or fewer sequences where context is short", source="read in vLLM 0.33.0", when=_states,
    ),
    Rule(
        id="P59", topic=_TOPIC, releases=(vllm("0.20.0", "0.33.0"),), severity="note", flag="the engine's version",
        effect="pages of a hybrid target and of a DFlash drafter could not be made alike: assertion at start, on some "
        "devices", fix="a newer build, or another --block-size", source="vllm-project/vllm#46480; z-lab/dflash#139",
        is_reported=True, when=lambda s: bool(s.uses("dflash")) and s.target.is_hybrid,
    ),
    Rule(
        id="P60", topic=_TOPIC, releases=(vllm("0.22.0", "0.23.0"),), severity="error", flag="max-num-seqs",
        effect="illegal memory access with captured graphs at 16 to 32 requests", fix="upgrade, or --enforce-eager",
        source="z-lab/dflash#146", is_reported=True, when=_crowded_graphs,
    ),
    Rule(
        id="P61", topic=_TOPIC, releases=(vllm(),), severity="error", flag=_BATCHED,
        effect="with LoRA the budget must hold all rows: ValueError", fix="max-num-seqs x (K + 1) or more",
        source="read in vLLM 0.33.0", when=_lora_rows, repair=_enough_budget,
    ),
    Rule(
        id="P62", topic=_TOPIC, releases=(sglang(),), severity="note", flag="max-running-requests",
        effect="with any speculative algorithm it is 48 unless said", fix="say it", source="read in SGLang 0.5.23",
        when=lambda s: s.speculates and s.deployment.num_sequences is None,
    ),
    Rule(
        id="P63", topic=_TOPIC, releases=(sglang(),), severity="warning", flag="mem-fraction-static",
        effect="with less than 1 GiB free the drafter runs without captured graphs, which is slow", fix="lower it",
        source="read in SGLang 0.5.23", when=_little_left,
    ),
    Rule(
        id="P64", topic=_TOPIC, releases=(sglang(),), severity="error", flag="speculative-draft-window-size",
        effect="the window must hold a block, and a sink needs a window: ValueError",
        fix="a window of the block at least",
        source="read in SGLang 0.5.23", when=_draft_window,
        repair=drop("speculative-draft-window-size", "speculative-draft-sink-size"),
    ),
    Rule(
        id="P65", topic=_TOPIC, releases=(vllm(since="0.24.0"),), severity="warning",
        flag="speculative-config.num_speculative_tokens_per_batch_size",
        effect="off without a word under data parallelism; on V1 it forces piecewise graphs",
        fix="one draft length, or the V2 model runner", source="read in vLLM 0.33.0; vllm-project/vllm#49548",
        when=_dynamic_length,
    ),
    Rule(
        id="P66", topic=_TOPIC, releases=(vllm(since="0.28.0"),), severity="error",
        flag="speculative-config.enable_adaptive_verification",
        effect="adaptive verification needs captured graphs, no LoRA and no pipeline: ValueError", fix="drop one",
        source="read in vLLM 0.33.0", when=_adaptive,
    ),
    Rule(
        id="P67", topic=_TOPIC, releases=(vllm(), sglang()), severity="error",
        flag="pipeline-parallel-size; pp-size",
        effect="hidden states do not pass from stage to stage: ValueError, but for the few classes that relay them",
        fix="one stage; tensor parallelism instead",
        source="read in vLLM 0.33.0 and SGLang 0.5.23; vllm-project/vllm#30436, #52761", when=_pipelined,
        repair=change(pipeline_parallel=None),
    ),
)  # fmt: skip
