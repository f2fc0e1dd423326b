"""Translation of a deployment, field by field."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from blockdraft.deploy.deployment import Container, Deployment, EngineName
from blockdraft.deploy.dialects.notes import Note
from blockdraft.deploy.forms.containers import HOSTS, IMAGES, PORTS, accelerator_of
from blockdraft.deploy.translation.drafts import translate_drafts
from blockdraft.deploy.translation.own import translate_own
from blockdraft.deploy.translation.words import (
    BACKEND_REMARKS,
    BACKENDS,
    ENGINE_TITLES,
    KV_DTYPES,
    QUANTIZATIONS,
    other_word,
)

_VARIABLES: Mapping[EngineName, tuple[str, ...]] = {
    "vllm": ("VLLM_",),
    "sglang": ("SGLANG_", "SGL_"),
    "llamacpp": ("LLAMA_", "GGML_"),
}
"""How variables begin that only one engine reads."""

_KEPT = ("host", "port", "served_name", "context_length", "num_sequences", "max_batched_tokens", "tensor_parallel")
_ONLY_OTHERS = ("pipeline_parallel", "num_nodes", "trust_remote_code")
"""Fields that vLLM and SGLang share and llama.cpp has no flag for."""

_LLAMACPP_WHY = {
    "dtype": "the GGUF file says in which types the weights are",
    "quantization": "the GGUF file says in which types the weights are",
    "memory_fraction": "llama.cpp is told a context and fits the rest, with a margin in MiB: --fit-target",
    "attention_backend": "llama.cpp picks its kernels by the device; --flash-attn auto is the default",
    "pipeline_parallel": "llama.cpp spreads layers over all devices by itself (--split-mode layer)",
    "num_nodes": "llama.cpp reaches other machines by rpc-server there and --rpc HOST:PORT here",
    "trust_remote_code": "llama.cpp runs no code of models",
}


@dataclass(frozen=True, kw_only=True)
class Translation:
    """A deployment on another engine."""

    source: Deployment
    deployment: Deployment
    notes: tuple[Note, ...]
    """What was converted, and what has no equivalent."""


def translate(source: Deployment, to: EngineName) -> Translation:
    """Return a deployment as another engine says it; on the same engine, as it is.

    Only what truly means the same is carried over. Where an engine does something by default that the other does not,
    it is said.
    """
    if source.engine == to:
        return Translation(source=source, deployment=source, notes=())
    fields: dict[str, Any] = {}
    notes: list[Note] = []
    for step in (_address, _same, _types, _memory, _attention, _container, _environment):
        found, more = step(source, to)
        fields |= found
        notes += more
    drafts, more = translate_drafts(source, to)
    own, of_own = translate_own(source, to)
    if to == "llamacpp":
        notes += [*_slots(source), *_files(source)]
    if source.engine == "llamacpp":
        notes += _from_gguf(source, to)
    deployment = Deployment(engine=to, target=source.target, drafts=drafts, own=own, **fields)
    return Translation(source=source, deployment=deployment, notes=(*notes, *more, *of_own))


Outcome = tuple[dict[str, Any], list[Note]]


def _same(source: Deployment, to: EngineName) -> Outcome:
    fields = {name: getattr(source, name) for name in _KEPT if getattr(source, name) is not None}
    notes = []
    if to == "llamacpp" and source.tensor_parallel is not None:
        fields.pop("tensor_parallel")
        if source.tensor_parallel > 1:
            fields["tensor_parallel"] = source.tensor_parallel
            text = f"--split-mode tensor over {source.tensor_parallel} devices, which llama.cpp calls experimental"
            notes.append(Note(kind="converted", subject=f"tensor_parallel {source.tensor_parallel}", text=text))
    for name in _ONLY_OTHERS:
        value = getattr(source, name)
        if to == "llamacpp" and (value is True or (value or 0) > 1):
            notes.append(_without(name, value, _LLAMACPP_WHY[name]))
        elif to != "llamacpp":
            fields[name] = value
    if to == "sglang" and source.served_name and "," in source.served_name:
        fields["served_name"], _, others = source.served_name.partition(",")
        notes.append(_without("served_name", others, "SGLang serves a model by one name; the first stays"))
    return fields, notes


def _address(source: Deployment, to: EngineName) -> Outcome:
    """Say where the server listens, as engines differ in what they do without being told."""
    fields: dict[str, Any] = {}
    notes = []
    if source.port is None:
        fields["port"] = PORTS[source.engine]
        text = f"not said; {ENGINE_TITLES[source.engine]} listens on {PORTS[source.engine]}, {ENGINE_TITLES[to]} on "
        notes.append(Note(kind="converted", subject="port", text=f"{text}{PORTS[to]}, so it is said"))
    host = source.host or ("0.0.0.0" if source.container else HOSTS[source.engine])
    if source.host is None and host != HOSTS[to]:
        fields["host"] = host
        text = f"not said; {ENGINE_TITLES[source.engine]} listens on {host}, {ENGINE_TITLES[to]} on {HOSTS[to]}, so"
        notes.append(Note(kind="converted", subject="host", text=f"{text} it is said"))
    return fields, notes


def _types(source: Deployment, to: EngineName) -> Outcome:
    """Translate data types of weights and cache."""
    fields: dict[str, Any] = {}
    notes = []
    for name in ("dtype", "quantization"):
        value = getattr(source, name)
        if value is None or (name == "dtype" and value == "auto" and to == "llamacpp"):
            continue
        if to == "llamacpp":
            notes.append(_without(name, value, _LLAMACPP_WHY[name]))
        elif name == "dtype" or value in QUANTIZATIONS:
            fields[name] = value
        else:
            notes.append(_without(name, value, f"{ENGINE_TITLES[to]} has no method of that name"))
    values = [source.kv_dtype, source.value_dtype]
    if source.kv_dtype == "auto" and to == "llamacpp":
        text = "the model's type in vLLM and SGLang; llama.cpp's own choice is f16"
        notes.append(Note(kind="no-equivalent", subject="kv_dtype auto", text=text))
    elif to != "llamacpp" and source.value_dtype is not None:
        text = f"{ENGINE_TITLES[to]} keeps keys and values in one type"
        notes.append(_without("kv_dtype", f"{values[0]} with values in {values[1]}", text))
    elif source.kv_dtype in KV_DTYPES[to] and (source.engine != "llamacpp" or source.kv_dtype in ("f16", "bf16")):
        fields["kv_dtype"] = source.kv_dtype
    elif source.kv_dtype is not None:
        notes.append(_without("kv_dtype", source.kv_dtype, _cache_reason(source.kv_dtype, to)))
    return fields, notes


def _cache_reason(kv_dtype: str, to: EngineName) -> str:
    if to == "llamacpp":
        near = "; q8_0 has as many bits, in blocks with a scale" if kv_dtype.startswith("fp8") else ""
        return f"llama.cpp has no cache of that type{near}"
    near = "; fp8 has as many bits, without a scale for each block" if kv_dtype == "q8_0" else ""
    return f"{ENGINE_TITLES[to]} has no cache of that type{near}"


def _memory(source: Deployment, to: EngineName) -> Outcome:
    value = source.memory_fraction
    if value is None:
        return {}, []
    if to == "llamacpp":
        return {}, [_without("memory_fraction", value, _LLAMACPP_WHY["memory_fraction"])]
    if to == "sglang":
        text = "vLLM's share covers weights, KV, activations and graphs; SGLang's --mem-fraction-static only weights "
        text += "and KV, so that the same number would not leave room. Give a smaller one, or leave it to SGLang"
    else:
        text = "SGLang's share covers weights and KV; vLLM's --gpu-memory-utilization activations and graphs as well, "
        text += "so that the same number would leave less for KV. Give a larger one, or leave it to vLLM"
    return {}, [_without("memory_fraction", value, text)]


def _attention(source: Deployment, to: EngineName) -> Outcome:
    value = source.attention_backend
    if value is None:
        return {}, []
    if to == "llamacpp":
        return {}, [_without("attention_backend", value, _LLAMACPP_WHY["attention_backend"])]
    word = other_word(value, BACKENDS, source.engine)
    if word is None:
        return {}, [_without("attention_backend", value, f"{ENGINE_TITLES[to]} has none that is the same")]
    remark = BACKEND_REMARKS.get((source.engine, value))
    text = f"is {word} in {ENGINE_TITLES[to]}{f'; {remark}' if remark else ''}"
    return {"attention_backend": word}, [Note(kind="converted", subject=f"attention_backend {value}", text=text)]


def _container(source: Deployment, to: EngineName) -> Outcome:
    if source.container is None:
        return {}, []
    images = IMAGES[to]
    image = images.get(accelerator_of(source), images["cuda"])
    container: Container = replace(source.container, image=image)
    text = f"{image} in its place; pick the tag for your card"
    return {"container": container}, [Note(kind="converted", subject=f"image {source.container.image}", text=text)]


def _environment(source: Deployment, to: EngineName) -> Outcome:
    kept: dict[str, str] = {}
    notes = []
    for name, value in source.environment.items():
        if name.startswith(_VARIABLES[source.engine]):
            text = f"read by {ENGINE_TITLES[source.engine]} alone"
            notes.append(Note(kind="no-equivalent", subject=f"{name}={value}", text=text))
        else:
            kept[name] = value
    return {"environment": kept}, notes


def _slots(source: Deployment) -> list[Note]:
    """Say what llama.cpp does with a context and a number of sequences."""
    if source.context_length and source.num_sequences:
        total = source.context_length * source.num_sequences
        text = f"{source.num_sequences} sequences of {source.context_length} tokens are --ctx-size {total}, which "
        text += "llama.cpp divides by its slots and reserves at start; vLLM and SGLang share a pool of pages"
        return [Note(kind="converted", subject="context_length", text=text)]
    if source.num_sequences:
        text = "the context is not said, and llama.cpp divides that of the model by its slots"
        return [Note(kind="note", subject="num_sequences", text=text)]
    return []


def _files(source: Deployment) -> list[Note]:
    """Say which models llama.cpp needs as GGUF."""
    models = [source.target, *(draft.model for draft in source.drafts if draft.model)]
    named = [model for model in dict.fromkeys(models) if "gguf" not in model.lower()]
    text = "llama.cpp loads GGUF; name a repository or file of that kind (convert drafters with --target-model-dir)"
    return [Note(kind="by-hand", subject=model, text=text) for model in named]


def _from_gguf(source: Deployment, to: EngineName) -> list[Note]:
    """Say which models vLLM and SGLang want in the format of Hugging Face."""
    models = [source.target, *(draft.model for draft in source.drafts if draft.model)]
    named = [model for model in dict.fromkeys(models) if "gguf" in model.lower()]
    text = f"{ENGINE_TITLES[to]} loads the checkpoint that this was converted from; name its repository or folder"
    notes = [Note(kind="by-hand", subject=model, text=text) for model in named]
    if source.context_length and source.num_sequences and source.own.get("kv-unified") is not True:
        total = source.context_length * source.num_sequences
        text = f"{total} tokens divided by {source.num_sequences} slots: {source.context_length} for each sequence"
        notes.append(Note(kind="converted", subject="--ctx-size", text=text))
    return notes


def _without(name: str, value: Any, reason: str) -> Note:
    return Note(kind="no-equivalent", subject=f"{name} {value}", text=reason)
