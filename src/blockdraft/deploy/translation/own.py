"""Settings that are no field of a `Deployment`, and what says the same in another engine."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from blockdraft.deploy.deployment import Deployment, EngineName
from blockdraft.deploy.dialects.notes import Note
from blockdraft.deploy.translation.reasons import reason_for
from blockdraft.deploy.translation.words import (
    ENGINE_TITLES,
    REASONING_PARSERS,
    TOOL_PARSERS,
    other_word,
)


@dataclass(frozen=True, kw_only=True)
class Shared:
    """One setting by its key in each engine; None where an engine has none."""

    vllm: str | None = None
    sglang: str | None = None
    llamacpp: str | None = None
    words: Mapping[str, str] | None = None
    """vLLM's word: SGLang's; None where words are the same."""
    inverted: tuple[EngineName, ...] = ()
    """Engines whose switch says the opposite."""
    default: bool | None = None
    """What the switch is where nothing is said, in the sense of the engines that are not inverted."""

    def key(self, engine: EngineName) -> str | None:
        """Return the key of an engine."""
        keys = {"vllm": self.vllm, "sglang": self.sglang, "llamacpp": self.llamacpp}
        return keys[engine]


SHARED = (
    Shared(vllm="seed", sglang="random-seed", llamacpp="seed"),
    Shared(
        vllm="default-chat-template-kwargs",
        sglang="default-chat-template-kwargs",
        llamacpp="chat-template-kwargs",
    ),
    Shared(vllm="tool-call-parser", sglang="tool-call-parser", words=TOOL_PARSERS),
    Shared(vllm="reasoning-parser", sglang="reasoning-parser", words=REASONING_PARSERS),
    Shared(
        vllm="enable-prefix-caching",
        sglang="disable-radix-cache",
        llamacpp="cache-prompt",
        inverted=("sglang",),
        default=True,
    ),
    Shared(vllm="enforce-eager", sglang="disable-cuda-graph", default=False),
    Shared(vllm="data-parallel-size", sglang="dp-size"),
    Shared(vllm="cpu-offload-gb", sglang="cpu-offload-gb"),
    Shared(vllm="tokenizer", sglang="tokenizer-path"),
    Shared(vllm="revision", sglang="revision"),
    Shared(vllm="download-dir", sglang="download-dir"),
    Shared(vllm="ssl-keyfile", sglang="ssl-keyfile", llamacpp="ssl-key-file"),
    Shared(vllm="ssl-certfile", sglang="ssl-certfile", llamacpp="ssl-cert-file"),
    Shared(vllm="root-path", sglang="fastapi-root-path", llamacpp="api-prefix"),
    Shared(vllm="node-rank", sglang="node-rank"),
    Shared(vllm="language-model-only", sglang="language-model-only", default=False),
    Shared(vllm="stream-interval", sglang="stream-interval"),
    Shared(sglang="enable-metrics", llamacpp="metrics", default=False),
)

_LLAMA_SAMPLING = {
    "temperature": "temp",
    "top_p": "top-p",
    "top_k": "top-k",
    "min_p": "min-p",
    "presence_penalty": "presence-penalty",
    "frequency_penalty": "frequency-penalty",
    "repetition_penalty": "repeat-penalty",
}
"""By the keys that vLLM's generation config and SGLang's sampling parameters share, the flags of llama.cpp."""
_SAMPLING_KEYS: Mapping[EngineName, str] = {
    "vllm": "override-generation-config",
    "sglang": "preferred-sampling-params",
}

Outcome = tuple[dict[str, Any], list[Note]]


def translate_own(source: Deployment, to: EngineName) -> Outcome:
    """Return the settings that say the same in another engine, and remarks on the rest."""
    rest = dict(source.own)
    found: dict[str, Any] = {}
    notes: list[Note] = []
    for step in (_sampling, _implied, _lists, _addresses, _templates, _shared):
        values, more = step(rest, source, to)
        found |= values
        notes += more
    for key in rest:
        notes.append(Note(kind="no-equivalent", subject=_flag(key), text=reason_for(source.engine, key, to)))
    return found, notes


def _shared(rest: dict[str, Any], source: Deployment, to: EngineName) -> Outcome:
    found: dict[str, Any] = {}
    notes: list[Note] = []
    for row in SHARED:
        ours, theirs = row.key(source.engine), row.key(to)
        if ours not in rest or theirs is None:
            continue
        value = rest[ours]
        if row.words is not None:
            value = other_word(str(value), row.words, source.engine)
        elif row.default is not None:
            is_on = bool(value) != (source.engine in row.inverted)
            if is_on == row.default:
                text = f"{'on' if is_on else 'off'} in {ENGINE_TITLES[to]} as well, without being said"
                notes.append(Note(kind="converted", subject=_flag(ours), text=text))
                del rest[ours]
                continue
            value = is_on != (to in row.inverted)
        elif theirs == "cpu-offload-gb" and to == "sglang":
            value = int(value) if isinstance(value, int | float) and value == int(value) else None
        if value is None:
            continue
        del rest[ours]
        found[theirs] = value
        if theirs != ours or value != source.own[ours]:
            said = f"{_flag(theirs)} {'' if value is True else value}".strip()
            notes.append(Note(kind="converted", subject=_flag(ours), text=f"is {said} in {ENGINE_TITLES[to]}"))
    return found, notes


def _sampling(rest: dict[str, Any], source: Deployment, to: EngineName) -> Outcome:
    """Translate the sampling that a server uses where a request does not say."""
    key = _SAMPLING_KEYS.get(source.engine)
    if key is None:
        names = {flag: name for name, flag in _LLAMA_SAMPLING.items()}
        taken = [flag for flag, value in rest.items() if flag in names and isinstance(value, int | float)]
        config = {names[flag]: rest.pop(flag) for flag in taken}
    else:
        config = _json_object(rest.get(key))
        if not config or not config.keys() <= _LLAMA_SAMPLING.keys():
            return {}, []
        rest.pop(key, None)
        taken = [key]
    if not config:
        return {}, []
    target = _SAMPLING_KEYS.get(to)
    found = {target: json.dumps(config)} if target else {_LLAMA_SAMPLING[name]: v for name, v in config.items()}
    said = ", ".join(f"{name} {value}" for name, value in config.items())
    text = f"default sampling ({said}) is said by {', '.join(_flag(name) for name in found)} in {ENGINE_TITLES[to]}"
    return found, [Note(kind="converted", subject=", ".join(map(_flag, taken)), text=text)]


def _implied(rest: dict[str, Any], source: Deployment, to: EngineName) -> Outcome:
    """Translate what the other engine does without being told."""
    texts = {
        ("vllm", "enable-auto-tool-choice"): {
            "sglang": "SGLang calls tools as soon as --tool-call-parser is given",
            "llamacpp": "llama.cpp calls tools with any chat template that has them",
        },
        ("vllm", "enable-chunked-prefill"): {
            "sglang": "on in SGLang as well, without being said",
            "llamacpp": "llama.cpp reads prompts in batches as well, without being told",
        },
    }
    notes = []
    for (engine, key), by_target in texts.items():
        text = by_target.get(to)
        if engine == source.engine and rest.get(key) is True and text:
            del rest[key]
            notes.append(Note(kind="converted", subject=_flag(key), text=text))
    found: dict[str, Any] = {}
    has_parser = other_word(str(rest.get("tool-call-parser")), TOOL_PARSERS, source.engine) is not None
    if source.engine == "sglang" and to == "vllm" and has_parser:
        found["enable-auto-tool-choice"] = True
        text = "vLLM calls tools only with --enable-auto-tool-choice, which is said as well"
        notes.append(Note(kind="converted", subject="--tool-call-parser", text=text))
    return found, notes


def _lists(rest: dict[str, Any], source: Deployment, to: EngineName) -> Outcome:
    """Translate keys of the API: several words in vLLM, one in SGLang, a list with commas in llama.cpp."""
    if "api-key" not in rest:
        return {}, []
    value = rest["api-key"]
    keys = [str(one) for one in value] if isinstance(value, tuple | list) else str(value).split(",")
    if to == "sglang" and len(keys) > 1:
        return {}, []
    del rest["api-key"]
    return {"api-key": tuple(keys) if to == "vllm" else ",".join(keys)}, []


def _addresses(rest: dict[str, Any], source: Deployment, to: EngineName) -> Outcome:
    """Translate where the nodes meet: an address and a port in vLLM, both in one word in SGLang."""
    if source.engine == "vllm" and to == "sglang" and "master-addr" in rest:
        said = "--master-addr, --master-port" if "master-port" in rest else "--master-addr"
        address, port = rest.pop("master-addr"), rest.pop("master-port", 29501)
        found: dict[str, Any] = {"dist-init-addr": f"{address}:{port}"}
    elif source.engine == "sglang" and to == "vllm" and "dist-init-addr" in rest:
        address, _, port = str(rest["dist-init-addr"]).rpartition(":")
        if not port.isdecimal():
            return {}, []
        del rest["dist-init-addr"]
        said = "--dist-init-addr"
        found = {"master-addr": address, "master-port": int(port)}
    else:
        return {}, []
    theirs = " ".join(f"{_flag(key)} {value}" for key, value in found.items())
    text = f"where the nodes meet, is {theirs} in {ENGINE_TITLES[to]}"
    return found, [Note(kind="converted", subject=said, text=text)]


def _templates(rest: dict[str, Any], source: Deployment, to: EngineName) -> Outcome:
    """Translate the file of a chat template. A template that is named or written out is another in each engine."""
    ours = "chat-template-file" if source.engine == "llamacpp" else "chat-template"
    theirs = "chat-template-file" if to == "llamacpp" else "chat-template"
    value = str(rest.get(ours, ""))
    if not value or not ("/" in value or value.endswith((".jinja", ".jinja2"))) or "{" in value:
        return {}, []
    del rest[ours]
    return {theirs: value}, []


def _json_object(value: Any) -> dict[str, Any]:
    try:
        found = json.loads(value) if isinstance(value, str) else value
    except json.JSONDecodeError:
        return {}
    return dict(found) if isinstance(found, Mapping) else {}


def _flag(key: str) -> str:
    return key if key.startswith("-") else f"--{key}"
