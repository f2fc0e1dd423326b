"""llama.cpp's `--spec-*` flags: a list of types, settings of the one draft model, and settings of each n-gram type."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from blockdraft.deploy.deployment import Draft, Method
from blockdraft.deploy.dialects.flags import Given, flag_table, plain
from blockdraft.deploy.dialects.notes import Note
from blockdraft.deploy.dialects.references import DRAFT_FLAGS, read_reference, write_reference
from blockdraft.deploy.dialects.settings import read_count
from blockdraft.deploy.dialects.vllm_speculation import method_by_name
from blockdraft.errors import ConfigError, nearest_name

MODEL_TYPES: Mapping[str, Method] = {
    "draft-simple": "draft-model",
    "draft-eagle3": "eagle3",
    "draft-mtp": "mtp",
    "draft-dflash": "dflash",
    "draft-dspark": "dspark",
}
NGRAM_TYPES: Mapping[str, Method] = {
    "ngram-simple": "ngram",
    "ngram-mod": "ngram-mod",
    "ngram-map-k": "ngram",
    "ngram-map-k4v": "ngram",
    "ngram-cache": "ngram",
}
METHODS: Mapping[str, Method] = {**MODEL_TYPES, **NGRAM_TYPES}
_VARIANTS = ("ngram-map-k", "ngram-map-k4v", "ngram-cache")
"""Types that are an n-gram search with an index of another kind, said by the option `variant`."""

_DRAFT = "spec-draft-"
_DRAFT_OPTIONS = {
    "n-min": "n_min",
    "p-min": "p_min",
    "sampling": "draft_sampling",
    "ngl": "gpu_layers",
    "type-v": "value_dtype",
}
_SYNTHETIC = {"spec-synth-len": "synthetic_length", "spec-synth-rates": "synthetic_rates"}
_NGRAM_SIZES = {
    "ngram-mod": {"n-match": "n_match", "n-min": "n_min", "n-max": "num_draft_tokens"},
    **{
        key: {"size-n": "n_match", "size-m": "num_draft_tokens", "min-hits": "min_hits"}
        for key in ("ngram-simple", "ngram-map-k", "ngram-map-k4v")
    },
}
_OLD_SIZES = {
    "spec-ngram-size-n": "n_match",
    "spec-ngram-size-m": "num_draft_tokens",
    "spec-ngram-min-hits": "min_hits",
}
_DEFAULT = {"n-match": "24", "n-min": "48", "n-max": "64"}
"""What --spec-default sets for ngram-mod."""


def read_drafts(given: Sequence[Given]) -> tuple[tuple[Draft, ...], list[Given], list[Note]]:
    """Return the drafts that flags describe, the flags that are left, and remarks.

    Raises:
        ConfigError: a type is unknown, or a draft model's type is not said and its name does not tell.
    """
    notes: list[Note] = []
    model, given = read_reference(given, DRAFT_FLAGS, written="the draft")
    given, types = _types(given)
    if not types and model is not None:
        types, note = _type_of(model)
        notes.append(note)
    given = _old_lengths(given, types)
    values: dict[str, dict[str, Any]] = {name: {} for name in types}
    rest = []
    for one in given:
        owner = _owner(one.key, types)
        if owner is None:
            rest.append(one)
            if one.key.startswith("spec-") and one.is_known:
                text = "has no effect on the types that are asked for; kept as it is written"
                notes.append(Note(kind="note", subject=one.written, text=text))
        for name, field in owner or ():
            values[name][field] = read_count(str(one.value), one.written) if _is_count(field) else plain(one.value)
    drafts = tuple(_draft(name, model if name in MODEL_TYPES else None, values[name]) for name in types)
    if model is not None and not any(name in MODEL_TYPES for name in types):
        text = f"loaded and not used: {', '.join(types)} drafts without a model"
        notes.append(Note(kind="note", subject=f"draft model {model}", text=text))
    return drafts, rest, notes


def write_drafts(drafts: Sequence[Draft]) -> list[str]:
    """Return the flags of drafts.

    Raises:
        ConfigError: llama.cpp has no such method, cannot say a part of one, or would need two draft models.
    """
    if not drafts:
        return []
    types = [_type_name(draft) for draft in drafts]
    words = ["--spec-type", ",".join(types)]
    said: dict[str, Any] = {}
    for draft, name in zip(drafts, types, strict=True):
        for key, value in _settings(draft, name).items():
            if said.setdefault(key, value) != value:
                raise ConfigError(
                    f"llama.cpp has one draft model and one setting of --{key} for it, not {said[key]} and {value}"
                )
    models = {draft.model for draft in drafts if draft.model}
    if len(models) > 1:
        raise ConfigError(f"llama.cpp drafts with one model, not with {' and '.join(sorted(models))}; keep one of them")
    words += [word for model in models for word in write_reference(model, DRAFT_FLAGS)]
    flags = flag_table("llamacpp")
    return words + [word for key, value in said.items() for word in flags.write(key, value)]


def _types(given: Sequence[Given]) -> tuple[list[Given], list[str]]:
    """Return the flags without those that name types, and the types; `none` in a list makes that list none."""
    types: list[str] = []
    rest: list[Given] = []
    for one in given:
        if one.key == "spec-default":
            types.append("ngram-mod")
            rest += [
                Given(key=f"spec-ngram-mod-{name}", written=one.written, value=value)
                for name, value in _DEFAULT.items()
            ]
        elif one.key == "spec-type":
            names = [name.strip() for name in str(one.value).split(",")]
            for name in names:
                if name not in METHODS and name != "none":
                    raise ConfigError(
                        f"{one.written} of llama.cpp knows no {name!r}{nearest_name(name, METHODS)}; known are "
                        f"{', '.join(METHODS)}"
                    )
            types += [] if "none" in names else names
        else:
            rest.append(one)
    return rest, list(dict.fromkeys(types))


def _type_of(model: str) -> tuple[list[str], Note]:
    """Return the type of a draft model that is named without one.

    llama.cpp reads it from the file or picks a file of the repository; here only the name is seen.
    """
    method = method_by_name(model)
    name = next((name for name, known in MODEL_TYPES.items() if known == method), "draft-simple")
    told = "its name tells" if method else "nothing in its name tells another"
    text = f"no --spec-type is given; read as {name}, which {told}. llama.cpp looks into the file"
    return [name], Note(kind="note", subject=f"draft model {model}", text=text)


def _old_lengths(given: Sequence[Given], types: Sequence[str]) -> list[Given]:
    """Return the flags with removed ones said for the n-gram types: lengths where no model drafts, and sizes."""
    ngrams = [name for name in types if name in _NGRAM_SIZES]
    renamed: list[Given] = []
    for one in given:
        field = _OLD_SIZES.get(one.key)
        if one.key in (f"{_DRAFT}n-max", f"{_DRAFT}n-min") and not one.written.startswith(("--spec", "LLAMA")):
            only_ngrams = ngrams and not any(name in MODEL_TYPES for name in types)
            field = ("num_draft_tokens" if one.key.endswith("max") else "n_min") if only_ngrams else None
        if field is None:
            renamed.append(one)
            continue
        for name in ngrams:
            renamed += [
                replace(one, key=f"spec-{name}-{size}") for size, known in _NGRAM_SIZES[name].items() if known == field
            ]
    return renamed


def _owner(key: str, types: Sequence[str]) -> list[tuple[str, str]] | None:
    """Return the types that a flag is about, each with the field it sets; None for no type that is asked for."""
    if key in _SYNTHETIC:
        return [(name, _SYNTHETIC[key]) for name in types[:1]] or None
    if key.startswith(_DRAFT):
        name = key.removeprefix(_DRAFT)
        field = {"n-max": "num_draft_tokens", "type-k": "kv_dtype"}.get(name) or _DRAFT_OPTIONS.get(name)
        return [(one, field or name.replace("-", "_")) for one in types if one in MODEL_TYPES] or None
    for name, sizes in _NGRAM_SIZES.items():
        size = key.removeprefix(f"spec-{name}-")
        if size in sizes and size != key:
            return [(name, sizes[size])] if name in types else None
    return None


def _is_count(field: str) -> bool:
    return field in ("num_draft_tokens", "n_match", "n_min", "min_hits")


def _draft(name: str, model: str | None, values: dict[str, Any]) -> Draft:
    fields = {field: values.pop(field) for field in ("num_draft_tokens", "kv_dtype") if field in values}
    if name in _VARIANTS:
        values = {"variant": name, **values}
    return Draft(method=METHODS[name], model=model, options=values, **fields)


def _type_name(draft: Draft) -> str:
    variant = draft.options.get("variant")
    if variant in NGRAM_TYPES:
        return str(variant)
    name = next((name for name, method in METHODS.items() if method == draft.method), None)
    if name is None:
        raise ConfigError(f"llama.cpp does not draft by {draft.method}; its types are {', '.join(METHODS)}")
    return name


def _settings(draft: Draft, name: str) -> dict[str, Any]:
    """Return the flags that a draft sets, with their values."""
    for field in ("attention_backend", "quantization", "tensor_parallel"):
        if getattr(draft, field) is not None:
            raise ConfigError(f"llama.cpp has no flag for {field} of the draft model")
    options = {**draft.options, "num_draft_tokens": draft.num_draft_tokens}
    options.pop("variant", None)
    found: dict[str, Any] = {}
    for key, option in _SYNTHETIC.items():
        value = options.pop(option, None)
        if value is not None:
            found[key] = ",".join(map(str, value)) if isinstance(value, list | tuple) else value
    if name in MODEL_TYPES:
        flags = {field: flag for flag, field in _DRAFT_OPTIONS.items()}
        flags |= {"num_draft_tokens": "n-max", "kv_dtype": "type-k"}
        options["kv_dtype"] = draft.kv_dtype
        prefix = _DRAFT
    else:
        flags = {field: size for size, field in _NGRAM_SIZES.get(name, {}).items()}
        prefix = f"spec-{name}-"
    for field, value in options.items():
        if value is not None:
            found[prefix + flags.get(field, field.replace("_", "-"))] = value
    return found
