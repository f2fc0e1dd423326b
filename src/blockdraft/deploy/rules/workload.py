"""Rules about who uses it: thinking, load, length, and what a benchmark measures."""

from __future__ import annotations

import json

from blockdraft.deploy.rules.rule import Rule, llamacpp, sglang, vllm
from blockdraft.deploy.rules.situation import NotKnownError, Situation

_TOPIC = "workload"
_ANY = (vllm(), sglang(), llamacpp())
_LONG = 16384
_BUSY = 8


def thinking_of(situation: Situation) -> str | None:
    """Return `on` or `off` as the workload or the server's template settings say it, or None."""
    if situation.workload.thinking:
        return situation.workload.thinking
    written = situation.flag("default-chat-template-kwargs", "chat-template-kwargs")
    if written is None:
        return None
    try:
        settings = json.loads(written) if isinstance(written, str) else dict(written)
    except (ValueError, TypeError):
        return None
    value = settings.get("enable_thinking")
    return None if value is None else ("on" if value else "off")


def _other_mode(situation: Situation) -> str | None:
    if situation.block is None or situation.draft_facts is None or situation.draft_facts.thinking is None:
        return None
    served = thinking_of(situation)
    if served is None:
        raise NotKnownError("whether thinking is on")
    trained = situation.draft_facts.thinking
    return f"trained with thinking {trained}, served with it {served}" if served != trained else None


def _busy_mixture(situation: Situation) -> str | None:
    if situation.network is None:
        return None
    asked = situation.workload.num_concurrent or situation.deployment.num_sequences
    if asked is None or asked <= _BUSY:
        return None
    return f"{asked} at once" if situation.about_target("is_mixture") else None


def _long_context(situation: Situation) -> str | None:
    length = situation.deployment.context_length
    if situation.block is None or length is None or length < _LONG:
        return None
    trained = situation.about_draft("trained_context")
    all_windows = situation.draft.num_sliding_layers == situation.draft.num_layers is not None
    return f"trained on {trained} tokens, served with {length}" if trained < _LONG and not all_windows else None


RULES = (
    Rule(
        id="P93", topic=_TOPIC, releases=_ANY, severity="warning", flag="enable_thinking",
        effect="a drafter knows the mode it was trained in: Qwen3.5-35B accepted 9.49 with thinking and 2.71 to 3.86 "
        "without, slower than no drafts", fix="the drafter's mode, or another drafter",
        source="z-lab/dflash#60, #133; ggml-org/llama.cpp#25792", when=_other_mode,
    ),
    Rule(
        id="P94", topic=_TOPIC, releases=_ANY, severity="warning", flag="max-num-seqs",
        effect="past about 8 requests a mixture of experts was slower with drafts than without",
        fix="fewer drafts, a length by batch size, adaptive verification, or none; measure",
        source="vllm-project/vllm#42505", is_reported=True, when=_busy_mixture,
    ),
    Rule(
        id="P95", topic=_TOPIC, releases=_ANY, severity="warning", flag="max-model-len",
        effect="drafters trained on short texts fade in long ones: 200 tokens/s after 500 tokens, 24 at 64k",
        fix="a drafter with sliding windows, or SGLang's --speculative-draft-window-size", source="z-lab/dflash#66",
        is_reported=True, when=_long_context,
    ),
    Rule(
        id="P96", topic=_TOPIC, releases=_ANY, severity="error", flag="dataset-name",
        effect="random tokens say nothing about acceptance", fix="SPEED-Bench, mt-bench, gsm8k or humaneval",
        source="vllm-project/vllm#42704", when=lambda s: s.speculates and s.workload.dataset == "random",
    ),
)  # fmt: skip
