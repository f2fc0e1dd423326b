"""SGLang's command line: `sglang serve`, and its server as a module. Flags are those of SGLang 0.5.23."""

from __future__ import annotations

from dataclasses import fields as fields_of

from blockdraft.deploy.deployment import Deployment
from blockdraft.deploy.dialects.flags import flag_table
from blockdraft.deploy.dialects.notes import Note
from blockdraft.deploy.dialects.reading import Reading
from blockdraft.deploy.dialects.settings import Setting, fill_own, read_settings, write_settings
from blockdraft.deploy.dialects.sglang_speculation import KV_DTYPES, read_draft, write_draft
from blockdraft.deploy.dialects.words import CommandLine
from blockdraft.errors import ConfigError

SETTINGS = (
    Setting(key="model-path", fills="target"),
    Setting(key="host", fills="host"),
    Setting(key="port", fills="port", type="integer"),
    Setting(key="served-model-name", fills="served_name"),
    Setting(key="context-length", fills="context_length", type="integer"),
    Setting(key="max-running-requests", fills="num_sequences", type="integer"),
    Setting(key="chunked-prefill-size", fills="max_batched_tokens", type="integer", unset=("-1",)),
    Setting(key="dtype", fills="dtype", also={"half": "float16", "float": "float32"}),
    Setting(key="quantization", fills="quantization"),
    Setting(key="kv-cache-dtype", fills="kv_dtype", words=KV_DTYPES),
    Setting(key="mem-fraction-static", fills="memory_fraction", type="number"),
    Setting(key="attention-backend", fills="attention_backend"),
    Setting(key="tp-size", fills="tensor_parallel", type="integer"),
    Setting(key="pp-size", fills="pipeline_parallel", type="integer"),
    Setting(key="nnodes", fills="num_nodes", type="integer"),
    Setting(key="trust-remote-code", fills="trust_remote_code", type="switch"),
)

_IDLE_VARIABLES = {
    "SGLANG_ENABLE_SPEC_V2": "no longer a switch since SGLang 0.5.14, where its path is the only one",
    "SGLANG_ENABLE_DFLASH_SPEC_V2": "read by no released SGLang",
}
"""Variables that change nothing in SGLang 0.5.23."""


def read(line: CommandLine) -> Reading:
    """Return what a command of SGLang means.

    Raises:
        ConfigError: a value is wrong, two contradict each other, or no model is named.
    """
    given, loose, notes = flag_table("sglang").cut(line.words)
    if loose:
        raise ConfigError(f"SGLang takes no word {loose[0]!r} by itself; the model goes after --model-path")
    values, rest = read_settings(given, SETTINGS)
    if "target" not in values:
        raise ConfigError("the command names no model; write it after --model-path")
    draft, rest, more = read_draft(rest)
    notes += more
    for name, text in _IDLE_VARIABLES.items():
        if name in line.environment:
            notes.append(Note(kind="outdated", subject=name, text=f"{text}; kept, and does nothing"))
    deployment = Deployment(
        engine="sglang",
        drafts=(draft,) if draft else (),
        engine_version=line.engine_version,
        environment=dict(line.environment),
        container=line.container,
        own=fill_own(rest),
        **values,
    )
    return Reading(deployment=deployment, notes=(*line.notes, *notes))


def write(deployment: Deployment) -> list[str]:
    """Return the command of a deployment on SGLang, its environment and container aside.

    Raises:
        ConfigError: SGLang cannot say a part of it.
    """
    flags = flag_table("sglang")
    values = {field.name: getattr(deployment, field.name) for field in fields_of(deployment)}
    values["target"] = deployment.target.removeprefix("hf:")
    if deployment.value_dtype is not None:
        raise ConfigError("SGLang keeps keys and values in one data type; value_dtype has no flag")
    words = ["python", "-m", "sglang.launch_server", *write_settings(values, SETTINGS, flags)]
    if len(deployment.drafts) > 1:
        methods = ", ".join(draft.method for draft in deployment.drafts)
        raise ConfigError(f"SGLang drafts with one method, not with {methods}; keep one of them")
    for draft in deployment.drafts:
        words += write_draft(draft)
    for key, value in deployment.own.items():
        words += flags.write(key, value)
    return words
