"""What runs, in no engine's words: a target, what drafts for it, and how it is served.

Each engine's command line is read into a `Deployment` and written from one, so that two engines differ in how they
say a thing and never in what it means. Draft lengths count draft tokens, the anchor not among them; vLLM's
`num_speculative_tokens` and llama.cpp's `n-max` mean the same, SGLang's `num-draft-tokens` counts the anchor as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

EngineName = Literal["vllm", "sglang", "llamacpp"]

Method = Literal["dflash", "dspark", "mtp", "eagle", "eagle3", "draft-model", "ngram", "ngram-mod", "suffix"]
"""`ngram` searches for the last tokens in what came before (vLLM's ngram, SGLang's NGRAM, llama.cpp's ngram-simple)."""


@dataclass(frozen=True, kw_only=True)
class Draft:
    """One way of drafting."""

    method: Method
    model: str | None = None
    """Reference or path of the draft model; None where the method needs none or the target brings it."""
    num_draft_tokens: int | None = None
    """Most tokens drafted in a round, the anchor not counted; None for the engine's own choice."""
    attention_backend: str | None = None
    """Of the draft model, in the engine's word; None for that of the target."""
    kv_dtype: str | None = None
    quantization: str | None = None
    tensor_parallel: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    """What else was set, under names that all engines share where they can (`p_min`, `n_match`, `draft_sampling`)."""


@dataclass(frozen=True, kw_only=True)
class Container:
    """The image that an engine runs in, and what it sees of the machine."""

    image: str
    ports: tuple[str, ...] = ()
    """As `-p` takes them: HOST:CONTAINER."""
    mounts: tuple[str, ...] = ()
    """As `-v` takes them: HOST:CONTAINER."""
    gpus: str | None = None
    shares_ipc: bool = False
    other: tuple[str, ...] = ()
    """Words of the command that mean nothing here, kept as they are."""


@dataclass(frozen=True, kw_only=True)
class Deployment:
    """A target on an engine. None means: not said, the engine's default."""

    engine: EngineName
    target: str
    """Reference or path; for llama.cpp the repository or the .gguf file."""
    drafts: tuple[Draft, ...] = ()
    """Tried one after another for each round; nothing for plain decoding."""
    engine_version: str | None = None
    host: str | None = None
    port: int | None = None
    served_name: str | None = None
    context_length: int | None = None
    """Tokens of one sequence, prompt and answer."""
    num_sequences: int | None = None
    """Most sequences that run at once (vLLM's max-num-seqs, SGLang's max-running-requests, llama.cpp's slots)."""
    max_batched_tokens: int | None = None
    """Rows of one pass (vLLM's max-num-batched-tokens, SGLang's chunked-prefill-size, llama.cpp's batch-size)."""
    dtype: str | None = None
    quantization: str | None = None
    kv_dtype: str | None = None
    """Of the keys, and of the values unless `value_dtype` differs: auto, bf16, f16, fp8, q8_0 ..."""
    value_dtype: str | None = None
    memory_fraction: float | None = None
    """Share of the device's memory (vLLM's gpu-memory-utilization, SGLang's mem-fraction-static)."""
    attention_backend: str | None = None
    """In the engine's own word."""
    tensor_parallel: int | None = None
    pipeline_parallel: int | None = None
    num_nodes: int | None = None
    trust_remote_code: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)
    container: Container | None = None
    own: Mapping[str, Any] = field(default_factory=dict)
    """Settings that only this engine has, by their long flag without dashes; True for a flag without a value."""
