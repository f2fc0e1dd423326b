"""Rules about prefix caches and keys and values that are moved or kept elsewhere."""

from __future__ import annotations

from dataclasses import replace

from blockdraft.deploy.deployment import Deployment
from blockdraft.deploy.rules.rule import Rule, sglang, vllm
from blockdraft.deploy.rules.situation import Situation

_TOPIC = "caches"
OLD_STRATEGY, NEW_STRATEGY = "mamba-scheduler-strategy", "mamba-radix-cache-strategy"
"""SGLang's flag, and what it is called from 0.5.23 on."""


def _caches_prefixes(situation: Situation) -> bool:
    """True unless it is switched off: both engines cache prefixes by default."""
    if situation.deployment.engine == "sglang":
        return not situation.flag("disable-radix-cache")
    return not situation.flag("no-enable-prefix-caching") and situation.flag("enable-prefix-caching") is not False


def _no_hits(situation: Situation) -> bool:
    if not situation.block or not _caches_prefixes(situation):
        return False
    is_late = situation.uses("dspark") is not None or situation.draft.is_dflash2
    return is_late and situation.target.is_hybrid and not situation.speculative("disable_eagle_block_drop")


def _moves_hybrid_state(situation: Situation) -> str | None:
    flags = [name for name in ("kv-transfer-config", "kv-offloading-size") if situation.flag(name) is not None]
    return ", ".join(flags) if flags and situation.speculates and situation.target.is_hybrid else None


def _offload_of_all(situation: Situation) -> str | None:
    size, parallel = situation.flag("kv-offloading-size"), situation.deployment.tensor_parallel or 1
    return f"{size} GiB over {parallel} devices" if size is not None and parallel > 1 else None


def _strategy(situation: Situation) -> str | None:
    found = situation.flag(NEW_STRATEGY, OLD_STRATEGY)
    return str(found) if found is not None else None


def _hybrid_with_radix(situation: Situation) -> bool:
    return situation.speculates and _caches_prefixes(situation) and situation.target.is_hybrid


def _with_extra_buffer(situation: Situation) -> Deployment:
    is_new = situation.is_between("sglang", "0.5.23", None)
    kept = {key: value for key, value in situation.deployment.own.items() if key not in (OLD_STRATEGY, NEW_STRATEGY)}
    value = _strategy(situation)
    name = NEW_STRATEGY if is_new else OLD_STRATEGY
    chosen = value if value not in (None, "no_buffer", "auto") else "extra_buffer"
    return replace(situation.deployment, own={**kept, name: chosen})


def _decode_radix(situation: Situation) -> bool:
    return (
        situation.flag("disaggregation-mode") == "decode"
        and bool(situation.flag("disaggregation-decode-enable-radix-cache"))
        and situation.uses("dflash") is not None
    )


def _decode_qwen4(situation: Situation) -> bool:
    if situation.flag("disaggregation-mode") != "decode" or not situation.uses("dflash"):
        return False
    return str(situation.about_target("model_type")).startswith("qwen4_exp")


RULES = (
    Rule(
        id="P68", topic=_TOPIC, releases=(vllm(),), severity="note", flag="enable-prefix-caching",
        effect="accepted tokens fell with the length of cached prefixes: 2.98 below 16k, 1.25 past 256k",
        fix="measure one prompt cold and warm; --no-enable-prefix-caching as a control",
        source="vllm-project/vllm#47930 (open)", is_reported=True,
        when=lambda s: bool(s.block) and _caches_prefixes(s) and s.workload.shares_prefixes is not False,
    ),
    Rule(
        id="P69", topic=_TOPIC, releases=(vllm(before="0.33.0"),), severity="warning", flag="enable-prefix-caching",
        effect="the prefix cache of a hybrid target is never hit",
        fix="0.33.0, or disable_eagle_block_drop (0.31.0 on); watch vllm:prefix_cache_hits_total",
        source="z-lab/dflash#165; vllm-project/vllm#54094, #57110, #48459", when=_no_hits,
    ),
    Rule(
        id="P70", topic=_TOPIC, releases=(vllm(),), severity="warning", flag="kv-transfer-config; kv-offloading-size",
        effect="moved or offloaded state of hybrid targets was corrupted, or never hit, with drafts",
        fix="a build with #52771; no multi-tier cache with MTP",
        source="vllm-project/vllm#53505, #52735, #55503", is_reported=True, when=_moves_hybrid_state,
    ),
    Rule(
        id="P71", topic=_TOPIC, releases=(vllm(),), severity="note", flag="kv-offloading-size",
        effect="the size is that of all devices together, not of each", fix="multiply it by the number of devices",
        source="read in vLLM 0.33.0", when=_offload_of_all,
    ),
    Rule(
        id="P72", topic=_TOPIC, releases=(sglang(),), severity="error", flag=NEW_STRATEGY,
        effect="a hybrid target with drafts, radix cache and no_buffer: ValueError",
        fix="extra_buffer, or --disable-radix-cache", source="QwenLM/Qwen3.8#108; read in SGLang 0.5.23",
        when=lambda s: _strategy(s) == "no_buffer" and _hybrid_with_radix(s), repair=_with_extra_buffer,
    ),
    Rule(
        id="P72a", topic=_TOPIC, releases=(sglang(since="0.5.23"),), severity="error", flag=OLD_STRATEGY,
        effect=f"the flag is called --{NEW_STRATEGY} in this release", fix=f"--{NEW_STRATEGY}",
        source="read in SGLang 0.5.23", when=lambda s: s.flag(OLD_STRATEGY) is not None, repair=_with_extra_buffer,
    ),
    Rule(
        id="P72b", topic=_TOPIC, releases=(sglang(),), severity="warning", flag=NEW_STRATEGY,
        effect="rolling back a hybrid target needs extra state buffers; left to itself the engine may pick no_buffer",
        fix="extra_buffer", source="QwenLM/Qwen3.8#108; read in SGLang 0.5.23",
        when=lambda s: _strategy(s) is None and _hybrid_with_radix(s), repair=_with_extra_buffer,
    ),
    Rule(
        id="P73", topic=_TOPIC, releases=(sglang(),), severity="error",
        flag="disaggregation-decode-enable-radix-cache",
        effect="no radix cache on the decoding side with DFLASH: ValueError", fix="switch it off, or DSPARK or EAGLE",
        source="read in SGLang 0.5.23", when=_decode_radix,
    ),
    Rule(
        id="P74", topic=_TOPIC, releases=(sglang(since="0.5.21"),), severity="error", flag="disaggregation-mode",
        effect="capturing the decoder of Qwen4-Exp with DFLASH failed on main of September 2026", fix="pin a release",
        source="sgl-project/sglang#34920 (comment), #39685", is_reported=True, when=_decode_qwen4,
    ),
)  # fmt: skip
