"""Words of one engine and the same in another: attention backends, cache types, quantisations, parsers.

A word stands here only if both mean one thing. From the parsers of vLLM 0.33 and SGLang 0.5.23, and llama.cpp 0.6.
"""

from __future__ import annotations

from collections.abc import Mapping

from blockdraft.deploy.deployment import EngineName

ENGINE_TITLES: Mapping[EngineName, str] = {"vllm": "vLLM", "sglang": "SGLang", "llamacpp": "llama.cpp"}

BACKENDS: Mapping[str, str] = {
    "FLASHINFER": "flashinfer",
    "TRITON_ATTN": "triton",
    "FLEX_ATTENTION": "flex_attention",
    "FLASHMLA": "flashmla",
    "FLASHINFER_MLA": "trtllm_mla",
    "TOKENSPEED_MLA": "tokenspeed_mla",
    "FLASH_ATTN": "fa3",
}
"""vLLM's word: SGLang's."""

BACKEND_REMARKS = {
    ("vllm", "FLASH_ATTN"): "vLLM takes FlashAttention 2, 3 or 4 by the card, SGLang is told: fa3 up to Hopper, fa4 on "
    "Blackwell",
    ("sglang", "fa3"): "vLLM takes the version of FlashAttention by the card",
}

KV_DTYPES: Mapping[EngineName, frozenset[str]] = {
    "vllm": frozenset({"auto", "bf16", "f16", "fp8", "fp8_e5m2", "nvfp4"}),
    "sglang": frozenset({"auto", "bf16", "fp8", "fp8_e5m2", "nvfp4"}),
    "llamacpp": frozenset({"f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1"}),
}
"""Cache types by their names here, of those that have the same meaning elsewhere; of llama.cpp all."""

QUANTIZATIONS = frozenset(
    {
        *("awq", "fp8", "modelopt", "modelopt_fp4", "modelopt_mixed", "gptq", "gptq_marlin", "awq_marlin"),
        *("compressed-tensors", "quark", "moe_wna16", "mxfp4", "mxfp8", "bitsandbytes", "gguf"),
    }
)
"""Methods that vLLM and SGLang call by one name."""

TOOL_PARSERS: Mapping[str, str] = {
    "deepseek_v3": "deepseekv3",
    "deepseek_v31": "deepseekv31",
    "deepseek_v32": "deepseekv32",
    "deepseek_v4": "deepseekv4",
    "deepseek_v41": "deepseekv41",
    "openai": "gpt-oss",
    "hunyuan_a13b": "hunyuan",
    "llama3_json": "llama3",
    "minimax_m2": "minimax-m2",
    "minimax_m3": "minimax-m3",
    **{
        name: name
        for name in (
            *("beam", "cohere_command4", "dots", "glm45", "glm47", "hermes", "gemma4", "gigachat3", "inkling"),
            *("k2_horizon", "kimi_k2", "kimi_k3", "lfm2", "ling3", "mimo", "minicpm5", "mistral", "muse"),
            *("poolside_v1", "pythonic", "qwen3_coder", "step3", "step3p5"),
        )
    },
}
"""vLLM's --tool-call-parser: SGLang's."""

REASONING_PARSERS: Mapping[str, str] = {
    "deepseek_r1": "deepseek-r1",
    "deepseek_v3": "deepseek-v3",
    "deepseek_v4": "deepseek-v4",
    "deepseek_v41": "deepseek-v41",
    "openai_gptoss": "gpt-oss",
    "hunyuan_a13b": "hunyuan",
    "nemotron_v3": "nemotron_3",
    "minimax_m2": "minimax",
    "minimax_m2_append_think": "minimax-append-think",
    "minimax_m3": "minimax-m3",
    **{
        name: name
        for name in (
            *("beam", "cohere_command4", "gemma4", "glm45", "granite_thinking_parser", "inkling", "k2_horizon"),
            *("kimi_k2", "kimi_k3", "ling3", "mimo", "mistral", "muse", "poolside_v1", "qwen3", "step3", "step3p5"),
        )
    },
}
"""vLLM's --reasoning-parser: SGLang's."""


def other_word(word: str, table: Mapping[str, str], source: EngineName) -> str | None:
    """Return the other engine's word by a table from vLLM's words to SGLang's, or None."""
    if source == "vllm":
        return table.get(word)
    return next((ours for ours, theirs in table.items() if theirs == word), None)
