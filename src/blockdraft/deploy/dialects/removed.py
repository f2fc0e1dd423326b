"""Flags that an engine once had, and what became of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from blockdraft.deploy.deployment import EngineName


@dataclass(frozen=True, kw_only=True)
class Removed:
    """One flag that current versions refuse."""

    successor: str | None
    """The flag (without dashes) that takes the value now; None where the setting is left out."""
    text: str
    arity: str = "1"


def _renamed(successor: str, text: str, arity: str = "1") -> Removed:
    return Removed(successor=successor, text=f"{text}; read as --{successor}", arity=arity)


def _left_out(text: str, arity: str = "1") -> Removed:
    return Removed(successor=None, text=f"{text}; left out", arity=arity)


_LLAMA_CPP_SIZES = "removed from llama.cpp: each n-gram type has a flag of its own"

REMOVED: Mapping[EngineName, Mapping[str, Removed]] = {
    "vllm": {
        "swap-space": _left_out(
            "unknown to vLLM since 0.18; --kv-offloading-size keeps KV in memory of the host, but is another feature "
            "(GiB over all tensor-parallel ranks together) and off by default"
        ),
        "speculative-model": _renamed("spec-model", "gone since vLLM 0.9"),
        "num-speculative-tokens": _renamed("spec-tokens", "gone since vLLM 0.9"),
        "ngram-prompt-lookup-max": _renamed("spec-ngram-max", "gone since vLLM 0.9"),
        "ngram-prompt-lookup-min": _renamed("spec-ngram-min", "gone since vLLM 0.9"),
        "speculative-draft-tensor-parallel-size": _renamed("spec-draft-tp", "gone since vLLM 0.9"),
        "speculative-max-model-len": _renamed("spec-draft-length", "gone since vLLM 0.9"),
        "spec-decoding-acceptance-method": _left_out(
            "gone since vLLM 0.9; its rejection_sampler is the only rule of today's default, "
            "typical_acceptance_sampler was lossy"
        ),
        "use-v2-block-manager": _left_out("gone: there is one block manager", "0"),
        "num-scheduler-steps": _left_out("gone with multi-step scheduling"),
        "enable-reasoning": _left_out("gone: --reasoning-parser alone switches it on", "0"),
        "worker-use-ray": _renamed("distributed-executor-backend=ray", "gone", "0"),
    },
    "sglang": {
        "mamba-scheduler-strategy": _renamed("mamba-radix-cache-strategy", "renamed by SGLang 0.5.23"),
        "cuda-graph-max-bs": _renamed("cuda-graph-max-bs-decode", "split in two by SGLang 0.5.23"),
        "cuda-graph-bs": _renamed("cuda-graph-bs-decode", "split in two by SGLang 0.5.23", "+"),
    },
    "llamacpp": {
        **{name: _renamed("spec-draft-n-max", "removed from llama.cpp") for name in ("draft", "draft-n", "draft-max")},
        **{name: _renamed("spec-draft-n-min", "removed from llama.cpp") for name in ("draft-min", "draft-n-min")},
        "draft-model": _renamed("spec-draft-model", "never was a flag of llama.cpp, which says --model-draft"),
        "spec-ngram-size-n": _renamed("spec-ngram-size-n", _LLAMA_CPP_SIZES),
        "spec-ngram-size-m": _renamed("spec-ngram-size-m", _LLAMA_CPP_SIZES),
        "spec-ngram-min-hits": _renamed("spec-ngram-min-hits", _LLAMA_CPP_SIZES),
    },
}
"""By engine and by the old flag without its dashes."""
