"""llama.cpp's command line: `llama-server`. Flags are those of llama.cpp 0.6.

Its context is that of all slots together; here, as in the other engines, it is that of one sequence.
"""

from __future__ import annotations

from dataclasses import fields as fields_of
from typing import Any

from blockdraft.deploy.deployment import Deployment
from blockdraft.deploy.dialects.flags import Given, flag_table
from blockdraft.deploy.dialects.llamacpp_speculation import read_drafts, write_drafts
from blockdraft.deploy.dialects.reading import Reading
from blockdraft.deploy.dialects.references import MODEL_FLAGS, read_reference, write_reference
from blockdraft.deploy.dialects.settings import Setting, fill_own, read_settings, write_settings
from blockdraft.deploy.dialects.words import CommandLine
from blockdraft.errors import ConfigError

SETTINGS = (
    Setting(key="host", fills="host"),
    Setting(key="port", fills="port", type="integer"),
    Setting(key="alias", fills="served_name"),
    Setting(key="ctx-size", fills="context_length", type="integer", unset=("0",)),
    Setting(key="parallel", fills="num_sequences", type="integer", unset=("-1",)),
    Setting(key="batch-size", fills="max_batched_tokens", type="integer"),
    Setting(key="cache-type-k", fills="kv_dtype"),
    Setting(key="cache-type-v", fills="value_dtype"),
)
DEFAULT_KV_DTYPE = "f16"

_UNSAYABLE = {
    "dtype": "the GGUF file says it",
    "quantization": "the GGUF file says it",
    "memory_fraction": "llama.cpp keeps a margin instead (--fit-target, in MiB)",
    "attention_backend": "llama.cpp has one, switched by --flash-attn",
    "pipeline_parallel": "llama.cpp spreads layers over all devices by itself",
    "num_nodes": "other machines are named by --rpc",
    "trust_remote_code": "llama.cpp runs no code of models",
}
"""Fields without a flag, and why."""


def read(line: CommandLine) -> Reading:
    """Return what a command of llama.cpp means.

    Raises:
        ConfigError: a value is wrong, two contradict each other, or no model is named.
    """
    flags = flag_table("llamacpp")
    from_variables, environment = flags.from_environment(line.environment)
    given, loose, notes = flags.cut(line.words)
    if loose:
        raise ConfigError(f"llama-server takes no word {loose[0]!r} by itself; a model goes after --model or --hf-repo")
    given = [*_without_overruled(from_variables, given), *given]
    target, given = read_reference(given, MODEL_FLAGS, written="the command")
    if target is None:
        raise ConfigError("the command names no model; write a file after --model or a repository after --hf-repo")
    drafts, given, more = read_drafts(given)
    values, rest = read_settings(given, SETTINGS)
    own = fill_own(rest)
    _divide_context(values, own)
    _name_dtypes(values)
    _count_devices(values, own)
    deployment = Deployment(
        engine="llamacpp",
        target=target,
        drafts=drafts,
        engine_version=line.engine_version,
        environment=environment,
        container=line.container,
        own=own,
        **values,
    )
    return Reading(deployment=deployment, notes=(*line.notes, *notes, *more))


def write(deployment: Deployment) -> list[str]:
    """Return the command of a deployment on llama.cpp, its environment and container aside.

    Raises:
        ConfigError: llama.cpp cannot say a part of it.
    """
    flags = flag_table("llamacpp")
    for name, reason in _UNSAYABLE.items():
        if getattr(deployment, name):
            raise ConfigError(f"{name} has no flag in llama.cpp: {reason}")
    values: dict[str, Any] = {field.name: getattr(deployment, field.name) for field in fields_of(deployment)}
    if deployment.context_length and deployment.num_sequences and deployment.own.get("kv-unified") is not True:
        values["context_length"] = deployment.context_length * deployment.num_sequences
    values["value_dtype"] = deployment.value_dtype or deployment.kv_dtype
    words = ["llama-server", *write_reference(deployment.target, MODEL_FLAGS)]
    words += write_settings(values, SETTINGS, flags)
    if deployment.tensor_parallel is not None:
        shares = ",".join(["1"] * deployment.tensor_parallel)
        words += ["--split-mode", "tensor", "--tensor-split", shares]
    words += write_drafts(deployment.drafts)
    for key, value in deployment.own.items():
        words += flags.write(key, value)
    return words


def _without_overruled(from_variables: list[Given], given: list[Given]) -> list[Given]:
    """Return what variables say, less what flags say too: those win."""
    keys = {one.key for one in given}
    return [one for one in from_variables if one.key not in keys]


def _divide_context(values: dict[str, Any], own: dict[str, Any]) -> None:
    """Turn the context of all slots into that of one; with a unified cache each slot may have all of it."""
    slots = values.get("num_sequences")
    if slots and "context_length" in values and own.get("kv-unified") is not True:
        values["context_length"] //= slots


def _name_dtypes(values: dict[str, Any]) -> None:
    """Name the data type of the values only where it differs from that of the keys."""
    if "kv_dtype" in values or "value_dtype" in values:
        keys = values.setdefault("kv_dtype", DEFAULT_KV_DTYPE)
        if values.setdefault("value_dtype", DEFAULT_KV_DTYPE) == keys:
            del values["value_dtype"]


def _count_devices(values: dict[str, Any], own: dict[str, Any]) -> None:
    """Read tensors split in equal shares as tensor parallelism."""
    shares = str(own.get("tensor-split", "")).replace("/", ",").split(",")
    if own.get("split-mode") == "tensor" and len(set(shares)) == 1 and shares[0]:
        values["tensor_parallel"] = len(shares)
        del own["split-mode"], own["tensor-split"]


def unsayable(name: str) -> str | None:
    """Return why a field of `Deployment` has no flag here, or None if it has one."""
    return _UNSAYABLE.get(name)
