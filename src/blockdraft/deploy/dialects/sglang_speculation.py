"""SGLang's `--speculative-*` flags. Its draft tokens count the anchor as well: 16 there are 15 here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields as fields_of
from typing import Any

from blockdraft.deploy.deployment import Draft, Method
from blockdraft.deploy.dialects.flags import Given, flag_table, plain
from blockdraft.deploy.dialects.notes import Note
from blockdraft.deploy.dialects.settings import Setting, read_settings, write_settings
from blockdraft.errors import ConfigError, nearest_name

KV_DTYPES = {"fp8": "fp8_e4m3", "bf16": "bfloat16"}

METHODS: Mapping[str, Method] = {
    "DFLASH": "dflash",
    "DSPARK": "dspark",
    "NEXTN": "mtp",
    "EAGLE": "eagle",
    "EAGLE3": "eagle3",
    "STANDALONE": "draft-model",
    "NGRAM": "ngram",
}
_CHAINS = ("mtp", "eagle", "eagle3", "draft-model")
"""Methods that draft one token after another, in one chain or a tree."""

_SETTINGS = (
    Setting(key="speculative-draft-model-path", fills="model"),
    Setting(key="speculative-draft-attention-backend", fills="attention_backend"),
    Setting(key="speculative-draft-kv-cache-dtype", fills="kv_dtype", words=KV_DTYPES),
    Setting(key="speculative-draft-model-quantization", fills="quantization"),
    Setting(key="speculative-num-draft-tokens", fills="verified", type="integer"),
    Setting(key="speculative-dflash-block-size", fills="dflash_block", type="integer"),
    Setting(key="speculative-dspark-block-size", fills="dspark_block", type="integer"),
    Setting(key="speculative-num-steps", fills="num_steps", type="integer"),
    Setting(key="speculative-eagle-topk", fills="num_branches", type="integer"),
    Setting(key="speculative-draft-model-revision", fills="revision"),
)
_SAID_BY_SWITCH = {
    "speculative-use-rejection-sampling": ("draft_sampling", "probabilistic"),
    "speculative-use-block-verification": ("verification", "block"),
}
_PREFIX = "speculative-"


def read_draft(given: Sequence[Given]) -> tuple[Draft | None, list[Given], list[Note]]:
    """Return the draft that flags describe, the flags that are left, and remarks.

    Raises:
        ConfigError: the algorithm is unknown, or two lengths contradict each other.
    """
    named = [str(one.value).upper() for one in given if one.key == "speculative-algorithm"]
    if not named or named[-1] == "NONE":
        return None, list(given), _idle(given)
    algorithm = named[-1]
    if algorithm == "UNO":
        text = "an algorithm that has no name in other engines; kept as it is written"
        return None, list(given), [Note(kind="note", subject=algorithm, text=text)]
    if algorithm not in METHODS:
        near = nearest_name(algorithm, METHODS)
        raise ConfigError(f"--speculative-algorithm of SGLang knows no {algorithm!r}{near}")
    said = [one for one in given if one.key.startswith(_PREFIX) and one.is_known]
    rest = [one for one in given if one not in said]
    values, more = read_settings(said, _SETTINGS)
    options: dict[str, Any] = {}
    for one in more:
        if one.key in _SAID_BY_SWITCH:
            name, word = _SAID_BY_SWITCH[one.key]
            options[name] = word
        elif one.key != "speculative-algorithm":
            options[one.key.removeprefix(_PREFIX).replace("-", "_")] = plain(one.value)
    method = METHODS[algorithm]
    if method == "eagle" and "mtp" in values.get("model", "mtp").lower():
        # To SGLang, NEXTN and EAGLE are one: a head that came with the target, or one that was trained for it.
        method = "mtp"
    length, notes = _length(method, values)
    options |= {name: values[name] for name in ("num_steps", "num_branches", "revision") if name in values}
    known = {field.name for field in fields_of(Draft)}
    fields = {name: value for name, value in values.items() if name in known}
    return Draft(method=method, num_draft_tokens=length, options=options, **fields), rest, notes


def write_draft(draft: Draft) -> list[str]:
    """Return the flags of a draft.

    Raises:
        ConfigError: SGLang has no such method, or cannot say a part of it.
    """
    algorithm = next((name for name, method in METHODS.items() if method == draft.method), None)
    if algorithm is None:
        raise ConfigError(f"SGLang does not draft by {draft.method}; it does by {', '.join(METHODS.values())}")
    if draft.tensor_parallel is not None:
        raise ConfigError("SGLang spreads the draft model as it spreads the target; tensor_parallel of it has no flag")
    flags = flag_table("sglang")
    options = dict(draft.options)
    values: dict[str, Any] = {field.name: getattr(draft, field.name) for field in fields_of(draft)}
    values["model"] = draft.model.removeprefix("hf:") if draft.model else None
    values["revision"] = options.pop("revision", None)
    length = draft.num_draft_tokens
    if length is not None:
        values["dspark_block" if draft.method == "dspark" else "verified"] = length + (draft.method != "dspark")
    if draft.method in _CHAINS:
        branches = options.pop("num_branches", 1 if length is not None else None)
        values["num_branches"] = branches
        values["num_steps"] = options.pop("num_steps", length if branches == 1 else None)
    words = ["--speculative-algorithm", algorithm, *write_settings(values, _SETTINGS, flags)]
    for key, (name, word) in _SAID_BY_SWITCH.items():
        if options.get(name) == word:
            del options[name]
            words.append(f"--{key}")
    for name, value in options.items():
        words += flags.write(_PREFIX + name.replace("_", "-"), value)
    return words


def _length(method: Method, values: dict[str, Any]) -> tuple[int | None, list[Note]]:
    """Return the draft tokens without the anchor; take the values that say them out of `values`."""
    verified, block = values.pop("verified", None), values.pop("dflash_block", None)
    drafted = values.pop("dspark_block", None)
    notes: list[Note] = []
    if None not in (verified, block) and verified != block:
        raise ConfigError(
            f"--speculative-num-draft-tokens {verified} and --speculative-dflash-block-size {block} count the same "
            "tokens, the anchor among them; they must agree"
        )
    if None not in (verified, drafted) and verified != drafted + 1:
        raise ConfigError(
            f"--speculative-num-draft-tokens {verified} must be --speculative-dspark-block-size {drafted} and one more "
            "for the anchor"
        )
    if method in _CHAINS and values.get("num_branches", 1) == 1:
        steps = values.pop("num_steps", None)
        values.pop("num_branches", None)
        if None not in (verified, steps) and verified != steps + 1:
            text = f"SGLang makes it {steps + 1}, the steps of the chain and the anchor"
            notes.append(Note(kind="converted", subject=f"--speculative-num-draft-tokens {verified}", text=text))
        drafted = steps
    if drafted is not None:
        return drafted, notes
    counted = verified if verified is not None else block
    if counted is not None and counted < 2:
        raise ConfigError(f"SGLang's draft tokens count the anchor, so that {counted} of them draft nothing; give 2 up")
    return None if counted is None else counted - 1, notes


def _idle(given: Sequence[Given]) -> list[Note]:
    text = "has no effect without --speculative-algorithm; kept as it is written"
    return [Note(kind="note", subject=one.written, text=text) for one in given if one.key.startswith(_PREFIX)]
