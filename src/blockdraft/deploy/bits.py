"""How many bits a number takes: weights by quantisation, keys and values by type.

Figures for GGUF types are those of their block layouts (Q8_0: 34 bytes for 32 weights); the K mixtures, which give
some tensors more, are what llama.cpp's quantiser prints for whole models, so they are estimates.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from blockdraft.errors import ConfigError, nearest_name

WEIGHT_BITS: Mapping[str, float] = {
    "f32": 32.0,
    "bf16": 16.0,
    "f16": 16.0,
    "fp8": 8.0,
    "int8": 8.0,
    "awq": 4.25,
    "gptq": 4.25,
    "int4": 4.25,
    "nvfp4": 4.5,
    "mxfp4": 4.25,
    "q8_0": 8.5,
    "q6_k": 6.56,
    "q5_k_m": 5.69,
    "q5_k_s": 5.54,
    "q5_0": 5.5,
    "q4_k_m": 4.85,
    "q4_k_s": 4.58,
    "q4_1": 5.0,
    "q4_0": 4.55,
    "iq4_xs": 4.25,
    "iq4_nl": 4.5,
    "q3_k_m": 3.91,
    "q3_k_s": 3.5,
    "iq3_m": 3.66,
    "q2_k": 2.96,
}
"""Bits of a weight, scales included."""

KEEPS_EMBEDDINGS = frozenset({"fp8", "int8", "awq", "gptq", "int4", "nvfp4", "mxfp4"})
"""Schemes that leave the embedding and the output head in 16 bits."""

KV_BITS: Mapping[str, float] = {
    "f32": 32.0,
    "bf16": 16.0,
    "bfloat16": 16.0,
    "f16": 16.0,
    "float16": 16.0,
    "fp8": 8.0,
    "fp8_e4m3": 8.0,
    "fp8_e5m2": 8.0,
    "q8_0": 8.5,
    "q5_1": 6.0,
    "q5_0": 5.5,
    "q4_1": 5.0,
    "q4_0": 4.5,
    "iq4_nl": 4.5,
}
"""Bits of one number of a key or a value."""

_SEPARATORS = re.compile(r"[-_./ ]+")
_ALIASES = {"bfloat16": "bf16", "float16": "f16", "half": "f16", "fp16": "f16", "float32": "f32", "float8": "fp8"}
_IN_NAMES = sorted(WEIGHT_BITS, key=len, reverse=True)
_METHODS = {"awq": "awq", "gptq": "gptq", "fp8": "fp8", "modelopt_fp4": "nvfp4", "mxfp4": "mxfp4", "nvfp4": "nvfp4"}


def kv_bits(dtype: str | None) -> float:
    """Return the bits of one key or value number; None and auto are 16.

    Raises:
        ConfigError: there is no such type.
    """
    if dtype is None or dtype == "auto":
        return 16.0
    if dtype.lower() not in KV_BITS:
        raise ConfigError(f"{dtype!r} is no type of keys and values{nearest_name(dtype, KV_BITS)}")
    return KV_BITS[dtype.lower()]


def weight_bits(quantization: str | None) -> float:
    """Return the bits of one weight; None is 16.

    Raises:
        ConfigError: there is no such quantisation.
    """
    name = normalized(quantization)
    if name is None:
        return 16.0
    if name not in WEIGHT_BITS:
        raise ConfigError(f"{quantization!r} is no quantisation that is known{nearest_name(name, WEIGHT_BITS)}")
    return WEIGHT_BITS[name]


def normalized(quantization: str | None) -> str | None:
    """Return the short name of a quantisation as engines spell it (`awq_marlin` is `awq`)."""
    if quantization is None or quantization in ("auto", "none"):
        return None
    name = quantization.lower().replace("-", "_")
    for word in ("awq", "gptq", "fp8", "nvfp4", "mxfp4"):
        if word in name:
            return word
    return _ALIASES.get(name, "nvfp4" if name == "modelopt_fp4" else name)


def quantization_in_name(name: str) -> str | None:
    """Return the quantisation that a repository or a file carries in its name, or None."""
    parts = _SEPARATORS.sub("_", name.lower()).strip("_")
    for known in _IN_NAMES:
        if re.search(rf"(?:^|_){re.escape(known)}(?:_|$)", parts):
            return known
    if re.search(r"(?:^|_)(?:w4a16|4bit|int4)(?:_|$)", parts):
        return "int4"
    if re.search(r"(?:^|_)(?:w8a8|8bit|int8)(?:_|$)", parts):
        return "int8"
    # Unsloth's dynamic mixtures (UD_Q5_K_XL) are near the plain mixture of their letter.
    mixture = re.search(r"(?:^|_)q([2-6])_k(?:_(?:xl|l|m|s))?(?:_|$)", parts)
    return {"2": "q2_k", "3": "q3_k_m", "4": "q4_k_m", "5": "q5_k_m", "6": "q6_k"}[mixture[1]] if mixture else None


def quantization_in_config(config: Mapping[str, Any]) -> str | None:
    """Return the quantisation that a config.json declares, or None."""
    declared = config.get("quantization_config") or config.get("compression_config")
    if not isinstance(declared, Mapping):
        return None
    method = str(declared.get("quant_method") or declared.get("quantization_method") or "").lower()
    if method == "modelopt":
        return "nvfp4" if "FP4" in str(declared.get("quant_algo", "")).upper() else "fp8"
    if method == "compressed-tensors":
        groups = declared.get("config_groups") or {}
        weights = next((group.get("weights") or {} for group in groups.values()), {})
        if weights.get("num_bits") == 4:
            return "nvfp4" if weights.get("type") == "float" else "int4"
        return "fp8" if weights.get("type") == "float" else "int8"
    return _METHODS.get(method, method or None)
