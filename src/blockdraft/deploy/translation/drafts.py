"""How one engine drafts, in another: methods, lengths and what tunes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from blockdraft.deploy.deployment import Deployment, Draft, EngineName, Method
from blockdraft.deploy.dialects import llamacpp_speculation, sglang_speculation, vllm_speculation
from blockdraft.deploy.dialects.notes import Note
from blockdraft.deploy.translation.words import (
    BACKENDS,
    ENGINE_TITLES,
    KV_DTYPES,
    QUANTIZATIONS,
    other_word,
)

METHODS: Mapping[EngineName, frozenset[Method]] = {
    "vllm": frozenset(vllm_speculation.METHODS.values()),
    "sglang": frozenset(sglang_speculation.METHODS.values()),
    "llamacpp": frozenset(llamacpp_speculation.METHODS.values()),
}

_LENGTHS: Mapping[EngineName, Mapping[Method, int]] = {
    "vllm": {},
    "sglang": {"ngram": 11},
    "llamacpp": {
        **dict.fromkeys(("dflash", "dspark", "mtp", "eagle3", "draft-model"), 3),
        "ngram": 48,
        "ngram-mod": 64,
    },
}
"""What an engine drafts at most where nothing is said; a method that is not here takes it from the drafter."""

_NEEDED: Mapping[EngineName, tuple[Method, ...]] = {
    "vllm": ("dflash", "ngram", "draft-model", "eagle", "eagle3"),
    "llamacpp": ("dflash", "dspark"),
}
"""Methods whose length the engine does not take from the drafter: vLLM wants to be told, llama.cpp drafts 3."""

_WITHOUT = {
    ("ngram-mod", "vllm"): "vLLM's ngram searches the sequence's own tokens, without a table that all requests share; "
    "it is the nearest: --spec-method ngram",
    ("ngram-mod", "sglang"): "SGLang's NGRAM keeps a trie of its own; it is the nearest: --speculative-algorithm NGRAM",
    ("suffix", "sglang"): "SGLang's NGRAM keeps a trie of its own; it is the nearest: --speculative-algorithm NGRAM",
    (
        "suffix",
        "llamacpp",
    ): "llama.cpp's ngram-mod also looks across requests; it is the nearest: --spec-type ngram-mod",
    ("eagle", "llamacpp"): "llama.cpp runs EAGLE-3 heads and none of the two before: --spec-type draft-eagle3",
}

_OPTIONS: Mapping[EngineName, Mapping[str, tuple[Method, ...] | None]] = {
    "vllm": {
        "n_match": ("ngram",),
        "n_match_min": ("ngram",),
        "draft_sampling": None,
        "verification": None,
        "revision": None,
        "context_length": None,
        "synthetic_length": None,
        "synthetic_rates": None,
        "adaptive_verification": None,
    },
    "sglang": {"draft_sampling": None, "verification": None, "revision": None},
    "llamacpp": {
        "n_match": ("ngram", "ngram-mod"),
        "draft_sampling": ("dflash", "dspark", "mtp", "eagle3", "draft-model"),
        "synthetic_length": None,
        "synthetic_rates": None,
    },
}
"""Options that mean the same in several engines, and for which methods an engine has them; None for all."""

_DEFAULTS = {"draft_sampling": "greedy", "verification": "standard", "n_min": 0, "p_min": 0}
"""Options at the value that every engine uses, or that does nothing, need no flag."""

_WHY = {
    "n_min": "drafts of every length are verified; only llama.cpp drops short ones",
    "p_min": "only llama.cpp ends a draft by its probability (vLLM's enable_adaptive_verification and SGLang's ragged "
    "verification weigh all requests together)",
    "gpu_layers": "a draft model is on the GPU as a whole",
    "value_dtype": "keys and values have one data type",
    "verification": "llama.cpp samples at every position, or tests by rejection with draft_sampling probabilistic",
    "adaptive_verification": "SGLang has SGLANG_RAGGED_VERIFY_MODE for DSPARK, with a cost table; llama.cpp has p_min",
    "n_match_min": "one length is searched, the longest",
    "min_hits": "drafts follow the first hit",
    "context_length": "the draft model's context follows the target's",
    "variant": "an index that only llama.cpp has",
    "enforce_eager": "of vLLM's graphs",
    "synthetic_length": "only for benchmarks, as the output is invalid; SGLang has SGLANG_SIMULATE_ACC_LEN",
    "synthetic_rates": "only for benchmarks, as the output is invalid",
}

Outcome = tuple[tuple[Draft, ...], list[Note]]


def translate_drafts(source: Deployment, to: EngineName) -> Outcome:
    """Return the drafts that say the same in another engine, and remarks on the rest."""
    notes: list[Note] = []
    possible = []
    for draft in source.drafts:
        if draft.method in METHODS[to]:
            possible.append(draft)
        else:
            text = _WITHOUT.get((draft.method, to), f"{ENGINE_TITLES[to]} has no such method")
            notes.append(Note(kind="no-equivalent", subject=f"drafting by {draft.method}", text=text))
    chosen = possible if to == "llamacpp" else possible[:1]
    for draft in possible[len(chosen) :]:
        text = f"{ENGINE_TITLES[to]} drafts with one method; {chosen[0].method} stays"
        notes.append(Note(kind="no-equivalent", subject=f"drafting by {draft.method} as well", text=text))
    found = []
    for draft in chosen:
        translated, more = _translate(draft, source.engine, to)
        found.append(translated)
        notes += more
    return tuple(found), notes


def _translate(draft: Draft, source: EngineName, to: EngineName) -> tuple[Draft, list[Note]]:
    draft, notes = _length(draft, source, to)
    fields: dict[str, Any] = {}
    for name, value in (
        ("attention_backend", draft.attention_backend),
        ("kv_dtype", draft.kv_dtype),
        ("quantization", draft.quantization),
        ("tensor_parallel", draft.tensor_parallel),
    ):
        if value is None:
            continue
        fields[name] = _field(name, value, source, to)
        if fields[name] is None:
            text = f"no flag of {ENGINE_TITLES[to]} says the same of the draft model"
            notes.append(Note(kind="no-equivalent", subject=f"draft {name} {value}", text=text))
    options: dict[str, Any] = {}
    for name, value in draft.options.items():
        if _DEFAULTS.get(name) == value:
            continue
        if _is_sayable(name, value, draft.method, to):
            options[name] = value
        else:
            text = _WHY.get(
                name, f"a setting of {ENGINE_TITLES[source]} for which none is known in {ENGINE_TITLES[to]}"
            )
            notes.append(Note(kind="no-equivalent", subject=f"{draft.method}: {name} {value}", text=text))
    return replace(draft, options=options, **fields), notes


def _length(draft: Draft, source: EngineName, to: EngineName) -> tuple[Draft, list[Note]]:
    """Say how many tokens are drafted, where the other engine would draft another number."""
    notes = []
    options = dict(draft.options)
    branches = options.pop("num_branches", None)
    steps = options.pop("num_steps", None)
    length = draft.num_draft_tokens
    if branches is not None:
        text = f"a tree of {branches} branches; only SGLang drafts trees, so that {steps} tokens in a chain remain"
        notes.append(Note(kind="no-equivalent", subject="--speculative-eagle-topk", text=text))
        length = steps
    default = _LENGTHS[source].get(draft.method)
    if length is None and default is not None:
        length = default
        text = f"not said, {default} in {ENGINE_TITLES[source]}; said here, as {ENGINE_TITLES[to]} has another default"
        notes.append(Note(kind="converted", subject="draft tokens", text=text))
    elif length is None and draft.method in _NEEDED.get(to, ()):
        text = f"{ENGINE_TITLES[to]} does not read it from the drafter; a block of 16 is an anchor and 15 draft tokens"
        notes.append(Note(kind="by-hand", subject="draft tokens (not said)", text=text))
    if length is not None and "sglang" in (source, to) and draft.method != "dspark":
        text = f"{length} draft tokens are {length + 1} in SGLang, which counts the anchor (block size {length + 1})"
        notes.append(Note(kind="converted", subject="draft tokens", text=text))
    return replace(draft, num_draft_tokens=length, options=options), notes


def _field(name: str, value: Any, source: EngineName, to: EngineName) -> Any:
    """Return the value of a draft's field in another engine, or None."""
    if name == "attention_backend":
        return None if "llamacpp" in (source, to) else other_word(value, BACKENDS, source)
    if name == "kv_dtype":
        return value if value in KV_DTYPES[to] else None
    if name == "quantization":
        return value if to != "llamacpp" and value in QUANTIZATIONS else None
    return value if to == "vllm" else None


def _is_sayable(name: str, value: Any, method: Method, to: EngineName) -> bool:
    known = _OPTIONS[to]
    if name not in known or not (known[name] is None or method in (known[name] or ())):
        return False
    return name != "verification" or to == "vllm" or value == "block"
