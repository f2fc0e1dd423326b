"""vLLM's `--speculative-config`, key by key."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from blockdraft.deploy.deployment import Draft, Method
from blockdraft.deploy.dialects.notes import Note
from blockdraft.errors import ConfigError, nearest_name

KV_DTYPES = {"bf16": "bfloat16", "f16": "float16"}
ALSO_KV_DTYPES = {"fp8_e4m3": "fp8"}

METHODS: Mapping[str, Method] = {
    "dflash": "dflash",
    "dspark": "dspark",
    "mtp": "mtp",
    "eagle": "eagle",
    "eagle3": "eagle3",
    "draft_model": "draft-model",
    "ngram": "ngram",
    "ngram_gpu": "ngram",
    "suffix": "suffix",
}
"""vLLM's methods that have a name here; the first of several is the one written."""

_FIELDS = {
    "model": "model",
    "num_speculative_tokens": "num_draft_tokens",
    "attention_backend": "attention_backend",
    "kv_cache_dtype": "kv_dtype",
    "quantization": "quantization",
    "draft_tensor_parallel_size": "tensor_parallel",
}
_OPTIONS = {
    "prompt_lookup_max": "n_match",
    "prompt_lookup_min": "n_match_min",
    "draft_sample_method": "draft_sampling",
    "max_model_len": "context_length",
    "synthetic_acceptance_length": "synthetic_length",
    "synthetic_acceptance_rates": "synthetic_rates",
    "enable_adaptive_verification": "adaptive_verification",
    "rejection_sample_method": "verification",
}
"""Keys with a name that other engines share."""

_INTEGERS = ("num_speculative_tokens", "draft_tensor_parallel_size", "prompt_lookup_max", "prompt_lookup_min")
_KEYS = (
    *("method", "enforce_eager", "moe_backend", "revision", "code_revision", "index_share_for_mtp_iteration"),
    *("disable_padded_drafter_batch", "disable_eagle_block_drop", "disable_lookahead_block_hashes"),
    *("draft_lm_head_quantization", "use_local_argmax_reduction", "use_heterogeneous_vocab", "parallel_drafting"),
    *("num_speculative_tokens_per_batch_size", "suffix_decoding_max_tree_depth", "suffix_decoding_max_spec_factor"),
    *("suffix_decoding_max_cached_requests", "suffix_decoding_min_token_prob", "draft_load_config"),
    *("dspark_draft_topk", "xpress_topc", "fly_window_size", "fly_entropy_threshold", "fly_entropy_top_k"),
)
KEYS = frozenset({*_FIELDS, *_OPTIONS, *_KEYS})
"""All keys of vLLM 0.33."""

_GONE = {
    "disable_by_batch_size": "gone since vLLM 0.17; left out",
    "speculative_token_tree": "gone since vLLM 0.21, which drafts no trees; left out",
}
_RULES = {
    "strict": "refused since vLLM 0.21; `standard`, the default, keeps the target's distribution too and accepts more",
    "probabilistic": "refused since vLLM 0.21; read as draft_sample_method probabilistic with the rule `standard`",
}
_NAMED = (("eagle-", "eagle"), ("eagle3", "eagle3"), ("dflash", "dflash"), ("dspark", "dspark"), ("mtp", "mtp"))
"""What a draft model's name contains, and the method that this tells, in vLLM's order."""


def method_by_name(model: str) -> Method | None:
    """Return the method that a draft model's name tells, or None."""
    lowered = model.lower()
    found = next((method for part, method in _NAMED if part in lowered), None)
    return METHODS[found] if found else None


def read_draft(config: Mapping[str, Any]) -> tuple[Draft | None, dict[str, Any], list[Note]]:
    """Return the draft of a configuration, settings to keep as they are, and remarks.

    Raises:
        ConfigError: a value is of the wrong kind.
    """
    if not config:
        return None, {}, []
    config, notes = _without_outdated(config)
    for key in _INTEGERS:
        if config.get(key) is not None and not (type(config[key]) is int and config[key] > 0):
            raise ConfigError(f"{key} of --speculative-config takes a whole number above 0, not {config[key]!r}")
    for key in config.keys() - KEYS:
        text = f"--speculative-config of vLLM has no such key{nearest_name(key, KEYS)}; kept as it is written"
        notes.append(Note(kind="unknown", subject=key, text=text))
    method, note = _method(config)
    notes += [note] if note else []
    if method is None:
        return None, {"speculative-config": json.dumps(config)}, notes
    fields = {_FIELDS[key]: value for key, value in config.items() if key in _FIELDS}
    options = {_OPTIONS.get(key, key): value for key, value in config.items() if key not in {*_FIELDS, "method"}}
    if config.get("method") == "ngram_gpu":
        options["on_gpu"] = True
    if method == "ngram":
        fields.pop("model", None)
    if fields.get("attention_backend"):
        fields["attention_backend"] = fields["attention_backend"].upper()
    meanings = {word: name for name, word in KV_DTYPES.items()} | ALSO_KV_DTYPES
    if "kv_dtype" in fields:
        fields["kv_dtype"] = meanings.get(fields["kv_dtype"], fields["kv_dtype"])
    return Draft(method=method, options=options, **fields), {}, notes


def write_draft(draft: Draft) -> dict[str, Any]:
    """Return the configuration of a draft.

    Raises:
        ConfigError: vLLM has no such method.
    """
    name = next((theirs for theirs, method in METHODS.items() if method == draft.method), None)
    if name is None:
        raise ConfigError(
            f"vLLM does not draft by {draft.method}; it does by {', '.join(sorted(set(METHODS.values())))}"
        )
    options = dict(draft.options)
    config: dict[str, Any] = {"method": "ngram_gpu" if options.pop("on_gpu", False) else name}
    for key, field in _FIELDS.items():
        value = getattr(draft, field)
        if value is not None:
            config[key] = KV_DTYPES.get(value, value) if field == "kv_dtype" else value
    if draft.model is not None:
        config["model"] = draft.model.removeprefix("hf:")
    theirs = {ours: key for key, ours in _OPTIONS.items()}
    return config | {theirs.get(name, name): value for name, value in options.items()}


def _method(config: Mapping[str, Any]) -> tuple[Method | None, Note | None]:
    """Return the method, or None where it has no name here; and a remark."""
    said, model = config.get("method"), str(config.get("model") or "")
    if said is None:
        if model in ("ngram", "[ngram]"):
            return "ngram", None
        if not model:
            raise ConfigError("--speculative-config names neither a method nor a model; name at least one of them")
        found = method_by_name(model) or "draft-model"
        text = f"not said; vLLM takes {found} from the draft model's name {model!r}"
        return found, Note(kind="note", subject="method", text=text)
    if said in METHODS:
        return METHODS[said], None
    if str(said).endswith("_mtp"):
        return "mtp", Note(kind="outdated", subject=str(said), text="an alias of mtp; written as mtp")
    if said in ("medusa", "mlp_speculator"):
        text = "gone since vLLM 0.33; kept as it is written"
        return None, Note(kind="outdated", subject=said, text=text)
    if said in ("custom_class", "extract_hidden_states"):
        text = "a method that has no name in other engines; kept as it is written"
        return None, Note(kind="note", subject=said, text=text)
    near = nearest_name(str(said), METHODS)
    raise ConfigError(f"vLLM has no method {said!r}{near}; known are {', '.join(METHODS)}")


def _without_outdated(config: Mapping[str, Any]) -> tuple[dict[str, Any], list[Note]]:
    kept = dict(config)
    notes = []
    for key, text in _GONE.items():
        if key in kept:
            del kept[key]
            notes.append(Note(kind="outdated", subject=key, text=text))
    rule = kept.get("rejection_sample_method")
    if rule in _RULES:
        del kept["rejection_sample_method"]
        if rule == "probabilistic":
            kept["draft_sample_method"] = "probabilistic"
        notes.append(Note(kind="outdated", subject=f"rejection_sample_method {rule}", text=_RULES[rule]))
    return kept, notes
