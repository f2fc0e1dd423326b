"""Why a setting of one engine has no equivalent in another, and what comes nearest."""

from __future__ import annotations

from collections.abc import Mapping

from blockdraft.deploy.deployment import EngineName
from blockdraft.deploy.dialects.flags import flag_table
from blockdraft.deploy.translation.words import ENGINE_TITLES

_FROM_TEMPLATE = (
    "llama.cpp tells the format of tool calls and thoughts from the chat template (--jinja, on by default; "
    "--reasoning-format)"
)

REASONS: Mapping[EngineName, Mapping[str, str]] = {
    "vllm": {
        "tool-call-parser": "each engine has parsers of its own; this one has no namesake",
        "reasoning-parser": "each engine has parsers of its own; this one has no namesake",
        "kv-offloading-size": "keeping KV in memory of the host is a feature of its own in each engine: SGLang has "
        "--enable-hierarchical-cache with --hicache-size, llama.cpp --cache-ram",
        "distributed-executor-backend": "how processes are started is each engine's own affair",
        "compilation-config": "passes and graphs are vLLM's own",
        "enforce-eager": "llama.cpp compiles no graphs of this kind",
        "mamba-cache-mode": "SGLang's --mamba-radix-cache-strategy chooses between other ways to keep recurrent state",
        "generation-config": "SGLang says it with --sampling-defaults; llama.cpp reads none",
        "enable-expert-parallel": "SGLang is told over how many devices: --ep-size",
        "config": "a file of vLLM's own flags; put them on the command line to have them translated",
        "hf-overrides": "SGLang has --json-model-override-args, with other keys; llama.cpp --override-kv",
        "limit-mm-per-prompt": "SGLang has --limit-mm-data-per-request, with other keys",
        "max-model-len": "vLLM fits the context to the memory; llama.cpp does so too (--fit on) where --ctx-size is "
        "not said",
        "speculative-config": "a method that only vLLM has",
    },
    "sglang": {
        "tool-call-parser": "each engine has parsers of its own; this one has no namesake",
        "reasoning-parser": "each engine has parsers of its own; this one has no namesake",
        "mamba-radix-cache-strategy": "vLLM and llama.cpp choose by themselves how they keep recurrent state "
        "(vLLM's --mamba-cache-mode is `align` with prefix caching)",
        "disable-cuda-graph": "llama.cpp compiles no graphs of this kind",
        "enable-metrics": "vLLM serves /metrics without being told",
        "chunked-prefill-size": "-1 switches chunks off; vLLM says --no-enable-chunked-prefill, llama.cpp cannot",
        "schedule-policy": "each scheduler has orders of its own",
        "enable-hierarchical-cache": "keeping KV in memory of the host is a feature of its own in each engine: vLLM "
        "has --kv-offloading-size, llama.cpp --cache-ram",
        "disable-overlap-schedule": "vLLM's --no-async-scheduling is its nearest relative; llama.cpp has nothing to "
        "overlap",
        "ep-size": "vLLM has a switch for it: --enable-expert-parallel",
    },
    "llamacpp": {
        "gpu-layers": "vLLM and SGLang run on the GPU as a whole",
        "n-gpu-layers": "vLLM and SGLang run on the GPU as a whole",
        "cpu-moe": "vLLM and SGLang do not keep experts on the CPU while the rest is on the GPU (SGLang has "
        "--kt-num-gpu-experts, with a kernel library of its own)",
        "n-cpu-moe": "vLLM and SGLang do not keep experts on the CPU while the rest is on the GPU (SGLang has "
        "--kt-num-gpu-experts, with a kernel library of its own)",
        "device": "vLLM and SGLang are built for one kind of device; CUDA_VISIBLE_DEVICES or HIP_VISIBLE_DEVICES picks "
        "among those of it",
        "fit": "vLLM and SGLang size their pool of KV pages by a share of the memory",
        "ubatch-size": "vLLM and SGLang compute a pass as one batch",
        "flash-attn": "vLLM and SGLang choose among attention backends: --attention-backend",
        "threads": "vLLM and SGLang compute on the GPU",
        "threads-batch": "vLLM and SGLang compute on the GPU",
        "kv-unified": "the pool of KV pages of vLLM and SGLang is always shared by all sequences",
        "jinja": "vLLM and SGLang always use the model's own template",
        "metrics": "vLLM serves /metrics without being told",
        "split-mode": "how tensors are split is said by the degree of tensor parallelism",
        "tensor-split": "vLLM and SGLang split tensors in equal shares",
        "override-tensor": "vLLM and SGLang do not place single tensors",
        "load-mode": "vLLM and SGLang load the weights whole",
        "hf-file": "vLLM and SGLang load the repository, not one file of it",
        "mmproj": "vLLM and SGLang read the vision tower from the checkpoint",
        "rpc": "vLLM spreads over machines with Ray or --nnodes, SGLang with --nnodes and --dist-init-addr",
        "cache-ram": "keeping KV in memory of the host is a feature of its own in each engine: vLLM has "
        "--kv-offloading-size, SGLang --hicache-size",
        "cache-reuse": "vLLM and SGLang reuse prefixes only",
        "context-shift": "vLLM and SGLang end a sequence that fills its context",
    },
}


def reason_for(source: EngineName, key: str, to: EngineName) -> str:
    """Return why a setting has no equivalent."""
    if to == "llamacpp" and key in ("tool-call-parser", "reasoning-parser"):
        return _FROM_TEMPLATE
    found = REASONS[source].get(key)
    if found:
        return found
    if flag_table(source).find(key) is None:
        return f"{ENGINE_TITLES[source]} has no such flag, so that nothing can mean the same"
    return f"a setting of {ENGINE_TITLES[source]} for which none is known in {ENGINE_TITLES[to]}"
