"""Translation of vLLM's --speculative-config into the fields of `SpecConfig`.

What is accepted is what can be honoured. A key that vLLM knows and blockdraft does not is refused by name,
unless its value asks for nothing. A key that is not given takes blockdraft's default, not vLLM's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from blockdraft.drafters.config import AUTO, NGRAM_TYPES, NgramSimple, Rule, SpecConfig
from blockdraft.errors import ConfigError, nearest_name

_METHODS: Mapping[str, str] = {
    "ngram": "ngram-simple",
    "draft_model": "draft-simple",
    "dflash": "draft-dflash",
    "dspark": "draft-dspark",
    "eagle3": "draft-eagle3",
    "mtp": "draft-mtp",
}
_REFUSED_METHODS: Mapping[str, str] = {
    "ngram_gpu": "use 'ngram', which runs on the host",
    "suffix": "use 'ngram', or --spec-type ngram-mod",
    "eagle": "only its successor EAGLE-3 is supported, as 'eagle3'",
    "custom_class": "write a Drafter in Python and pass it to the engine",
    "extract_hidden_states": "it does not draft; blockdraft trains on hidden states it captures itself",
}
_SUPPORTED_KEYS = (
    "method",
    "model",
    "num_speculative_tokens",
    "draft_sample_method",
    "rejection_sample_method",
    "enable_adaptive_verification",
    "prompt_lookup_max",
    "prompt_lookup_min",
)
_UNSUPPORTED_KEYS: Mapping[str, tuple[object, ...]] = {
    "enforce_eager": (True, False),
    "draft_tensor_parallel_size": (1,),
    "tensor_parallel_size": (),
    "quantization": (),
    "moe_backend": (),
    "attention_backend": ("auto",),
    "kv_cache_dtype": ("auto",),
    "max_model_len": (),
    "revision": (),
    "code_revision": (),
    "index_share_for_mtp_iteration": (),
    "disable_padded_drafter_batch": (False,),
    "disable_eagle_block_drop": (False,),
    "disable_lookahead_block_hashes": (False,),
    "draft_lm_head_quantization": (),
    "use_local_argmax_reduction": (False,),
    "use_heterogeneous_vocab": (False,),
    "parallel_drafting": (False,),
    "num_speculative_tokens_per_batch_size": (),
    "suffix_decoding_max_tree_depth": (),
    "suffix_decoding_max_cached_requests": (),
    "suffix_decoding_max_spec_factor": (),
    "suffix_decoding_min_token_prob": (),
    "draft_load_config": (),
    "synthetic_acceptance_rates": (),
    "synthetic_acceptance_length": (),
    "dspark_draft_topk": (),
    "xpress_topc": (),
    "fly_window_size": (),
    "fly_entropy_threshold": (),
    "fly_entropy_top_k": (),
}
"""Keys of vLLM that are refused, with the values that ask for nothing and therefore pass."""

_RULES: Mapping[str, Rule] = {"standard": "rejection", "strict": "match", "probabilistic": "rejection"}
_REFUSED_RULES: Mapping[str, str] = {
    "block": "block verification is not supported yet; use 'standard', which is exact too",
    "synthetic": "it accepts drafts at random, so the text is not the target's; blockdraft has no lossy mode",
    "fly": "it keeps drafts that the target would reject; blockdraft has no lossy mode",
}


def translate(mapping: Mapping[str, object]) -> SpecConfig:
    """Return the configuration that a speculative config of vLLM asks for.

    Raises:
        ConfigError: an unknown key or value, or one that is not supported.
    """
    given = {str(key).replace("-", "_"): value for key, value in mapping.items() if value is not None}
    _check_keys(given)
    spec_type, model = _method_and_model(given)
    num_tokens = _positive_int(given, "num_speculative_tokens")
    rule, notes = _rule(given)
    adaptive = given.get("enable_adaptive_verification", False)
    if not isinstance(adaptive, bool):
        raise ConfigError(f"enable_adaptive_verification must be true or false, not {adaptive!r}")
    greedy = _one_of(given, "draft_sample_method", ("probabilistic", "greedy")) == "greedy"
    return SpecConfig(
        types=(spec_type,),
        draft_model=model,
        n_max=None if spec_type in NGRAM_TYPES else num_tokens,
        rule=rule,
        policy="budget" if adaptive else "fixed",
        draft_sampling="greedy" if greedy else "probabilistic",
        ngram_simple=_prompt_lookup(given, num_tokens, used=spec_type == "ngram-simple"),
        notes=notes,
    )


def _check_keys(given: Mapping[str, object]) -> None:
    for key, value in given.items():
        if key in _SUPPORTED_KEYS:
            continue
        if key not in _UNSUPPORTED_KEYS:
            known = (*_SUPPORTED_KEYS, *_UNSUPPORTED_KEYS)
            raise ConfigError(f"unknown key {key!r} in the speculative config{nearest_name(key, known)}")
        if value not in _UNSUPPORTED_KEYS[key]:
            raise ConfigError(
                f"{key!r} in the speculative config is known to vLLM but not supported by blockdraft; leave it out "
                f"(supported are {', '.join(_SUPPORTED_KEYS)})"
            )


def _method_and_model(given: Mapping[str, object]) -> tuple[str, str | None]:
    """Return the speculation type and the draft model."""
    model = given.get("model")
    if model is not None and not isinstance(model, str):
        raise ConfigError(f"model in the speculative config must be a model reference, not {model!r}")
    if model in ("ngram", "[ngram]"):
        if given.get("method", "ngram") != "ngram":
            raise ConfigError(f"model {model!r} means n-gram drafting, but method is {given['method']!r}")
        return _METHODS["ngram"], None
    method = given.get("method")
    if isinstance(method, str) and method.endswith("_mtp"):
        method = "mtp"
    name = _one_of({"method": method}, "method", tuple(_METHODS), _REFUSED_METHODS)
    if name is not None:
        return _METHODS[name], model
    if model is None:
        raise ConfigError(f"the speculative config needs a method or a model; methods are {', '.join(_METHODS)}")
    return AUTO, model


def _rule(given: Mapping[str, object]) -> tuple[Rule, tuple[str, ...]]:
    """Return the verification rule, and a note if an old name was used."""
    name = _one_of(given, "rejection_sample_method", tuple(_RULES), _REFUSED_RULES)
    if name is None:
        return "auto", ()
    rule = _RULES[name]
    if name == "standard":
        return rule, ()
    return rule, (f"rejection_sample_method {name!r} is an older name in vLLM; it means the rule {rule!r} here",)


def _prompt_lookup(given: Mapping[str, object], num_tokens: int | None, *, used: bool) -> NgramSimple:
    """Return ngram-simple with vLLM's prompt look-up rules."""
    longest, shortest = _positive_int(given, "prompt_lookup_max"), _positive_int(given, "prompt_lookup_min")
    if not used:
        if longest or shortest:
            raise ConfigError('prompt_lookup_max and prompt_lookup_min belong to "method": "ngram"')
        return NgramSimple()
    # One copies the other; both unset are 5, as in vLLM.
    longest, shortest = longest or shortest or 5, shortest or longest or 5
    if shortest > longest:
        raise ConfigError(f"prompt_lookup_min is {shortest} but prompt_lookup_max is {longest}")
    size_m = NgramSimple.size_m if num_tokens is None else num_tokens
    return NgramSimple(size_n=longest, size_n_min=shortest, size_m=size_m, min_draft=1)


def _positive_int(given: Mapping[str, object], key: str) -> int | None:
    value = given.get(key)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigError(f"{key} must be a whole number of at least 1, not {value!r}")
    return value


def _one_of(
    given: Mapping[str, object], key: str, allowed: Sequence[str], refused: Mapping[str, str] | None = None
) -> str | None:
    """Return the value of `key`, or None if it is not given."""
    value = given.get(key)
    if value is None:
        return None
    if not isinstance(value, str):
        raise ConfigError(f"{key} must be one of {', '.join(allowed)}, not {value!r}")
    if refused and value in refused:
        raise ConfigError(f"{key} {value!r} is not supported: {refused[value]}")
    if value not in allowed:
        raise ConfigError(f"{key} must be one of {', '.join(allowed)}, not {value!r}{nearest_name(value, allowed)}")
    return value
