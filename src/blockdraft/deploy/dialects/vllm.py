"""vLLM's command line: `vllm serve`, and its OpenAI server as a module.

Flags and the keys of `--speculative-config` are those of vLLM 0.33. Attention backends are kept in capitals, as vLLM
prints them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import fields as fields_of
from typing import Any

from blockdraft.deploy.deployment import Deployment
from blockdraft.deploy.dialects.flags import Given, flag_table
from blockdraft.deploy.dialects.notes import Note
from blockdraft.deploy.dialects.reading import Reading
from blockdraft.deploy.dialects.settings import Setting, fill_own, read_settings, write_settings
from blockdraft.deploy.dialects.vllm_speculation import ALSO_KV_DTYPES, KV_DTYPES, read_draft, write_draft
from blockdraft.deploy.dialects.words import CommandLine
from blockdraft.errors import ConfigError

SETTINGS = (
    Setting(key="host", fills="host"),
    Setting(key="port", fills="port", type="integer"),
    Setting(key="served-model-name", fills="served_name", type="list"),
    Setting(key="max-model-len", fills="context_length", type="integer", unset=("auto", "-1")),
    Setting(key="max-num-seqs", fills="num_sequences", type="integer"),
    Setting(key="max-num-batched-tokens", fills="max_batched_tokens", type="integer"),
    Setting(key="dtype", fills="dtype", also={"half": "float16", "float": "float32"}),
    Setting(key="quantization", fills="quantization"),
    Setting(key="kv-cache-dtype", fills="kv_dtype", words=KV_DTYPES, also=ALSO_KV_DTYPES),
    Setting(key="gpu-memory-utilization", fills="memory_fraction", type="number"),
    Setting(key="attention-backend", fills="attention_backend"),
    Setting(key="tensor-parallel-size", fills="tensor_parallel", type="integer"),
    Setting(key="pipeline-parallel-size", fills="pipeline_parallel", type="integer"),
    Setting(key="nnodes", fills="num_nodes", type="integer"),
    Setting(key="trust-remote-code", fills="trust_remote_code", type="switch"),
)

_SPECULATION = {
    "spec-method": "method",
    "spec-model": "model",
    "spec-tokens": "num_speculative_tokens",
    "spec-ngram-max": "prompt_lookup_max",
    "spec-ngram-min": "prompt_lookup_min",
    "spec-draft-tp": "draft_tensor_parallel_size",
    "spec-draft-length": "max_model_len",
}
"""Flags that stand for one key of `--speculative-config`; the last four are names for removed ones."""


def read(line: CommandLine) -> Reading:
    """Return what a command of vLLM means.

    Raises:
        ConfigError: a value is wrong, something is said twice, or no model is named.
    """
    flags = flag_table("vllm")
    given, loose, notes = flags.cut(_fold_dotted(line.words))
    environment = dict(line.environment)
    backend = environment.pop("VLLM_ATTENTION_BACKEND", None)
    if backend is not None:
        text = "no longer read by vLLM; taken as --attention-backend"
        notes.append(Note(kind="outdated", subject="VLLM_ATTENTION_BACKEND", text=text))
        given = [Given(key="attention-backend", written="VLLM_ATTENTION_BACKEND", value=backend), *given]
    values, rest = read_settings(given, SETTINGS)
    if "attention_backend" in values:
        values["attention_backend"] = values["attention_backend"].upper()
    speculation = [one for one in rest if one.key in _SPECULATION or one.key == "speculative-config"]
    draft, kept, more = read_draft(_merge(speculation))
    own = fill_own([one for one in rest if one not in speculation and one.key != "model"])
    named = [*loose, *(str(one.value) for one in rest if one.key == "model")]
    if len(named) != 1:
        raise ConfigError(
            f"the command names {len(named)} models ({', '.join(named)}); a flag without a value may stand before one"
            if named
            else "the command names no model; write it after `vllm serve`"
        )
    deployment = Deployment(
        engine="vllm",
        target=named[0],
        drafts=(draft,) if draft else (),
        engine_version=line.engine_version,
        environment=environment,
        container=line.container,
        own={**own, **kept},
        **values,
    )
    return Reading(deployment=deployment, notes=(*line.notes, *notes, *more))


def write(deployment: Deployment) -> list[str]:
    """Return the command of a deployment on vLLM, its environment and container aside.

    Raises:
        ConfigError: vLLM cannot say a part of it.
    """
    flags = flag_table("vllm")
    values = {field.name: getattr(deployment, field.name) for field in fields_of(deployment)}
    if deployment.value_dtype is not None:
        raise ConfigError("vLLM keeps keys and values in one data type; value_dtype has no flag")
    words = ["vllm", "serve", deployment.target.removeprefix("hf:"), *write_settings(values, SETTINGS, flags)]
    if len(deployment.drafts) > 1:
        methods = ", ".join(draft.method for draft in deployment.drafts)
        raise ConfigError(f"vLLM drafts with one method, not with {methods}; keep one of them")
    for draft in deployment.drafts:
        config = json.dumps(write_draft(draft), separators=(", ", ": "))
        words += ["--speculative-config", config]
    for key, value in deployment.own.items():
        words += flags.write(key, value)
    return words


def _merge(speculation: Sequence[Given]) -> dict[str, Any]:
    """Return the configuration that the JSON and the short flags make together."""
    config: dict[str, Any] = {}
    for one in speculation:
        if one.key == "speculative-config":
            config |= _parse(str(one.value), one.written)
    for one in speculation:
        if one.key in _SPECULATION:
            key = _SPECULATION[one.key]
            if key in config:
                raise ConfigError(f"{one.written} and the key {key!r} of --speculative-config say the same; keep one")
            config[key] = int(one.value) if str(one.value).isdecimal() else one.value
    return config


def _parse(text: str, written: str) -> dict[str, Any]:
    try:
        config = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{written} is not valid JSON ({error}); it reads {text!r}") from error
    if not isinstance(config, dict):
        raise ConfigError(f'{written} must be a JSON object like {{"method": "ngram"}}, not {text}')
    return {key.replace("-", "_"): value for key, value in config.items()}


def _fold_dotted(words: Sequence[str]) -> list[str]:
    """Return the words with `--flag.key value` gathered into `--flag JSON`, as vLLM's parser does."""
    folded: list[str] = []
    objects: dict[str, dict[str, Any]] = {}
    position = 0
    while position < len(words):
        name, equals, value = words[position].partition("=")
        position += 1
        base, dot, path = name.partition(".")
        if not (dot and base.startswith("--")):
            folded.append(words[position - 1])
            continue
        if not equals:
            if position == len(words):
                raise ConfigError(f"{name} lacks its value")
            value = words[position]
            position += 1
        *parents, last = path.replace("-", "_").split(".")
        here = objects.setdefault(base, {})
        for parent in parents:
            here = here.setdefault(parent, {})
        try:
            here[last] = json.loads(value)
        except json.JSONDecodeError:
            here[last] = value
    return [*folded, *(word for base, found in objects.items() for word in (base, json.dumps(found)))]
