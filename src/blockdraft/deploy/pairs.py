"""Public drafters and the targets they were made for; which of them a given target is, or was made from.

The data is `pairs.toml`. A target is recognised by its name (fine-tunes and quantised variants keep the base's name in
theirs), by the base model that its files name, or by its sizes, if only one registered model has them.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from blockdraft.deploy.bits import quantization_in_name
from blockdraft.deploy.deployment import EngineName, Method
from blockdraft.deploy.model_facts import DraftFacts, TargetFacts, draft_from_hf, target_from_hf
from blockdraft.errors import ConfigError

Relation = Literal["same", "quantised", "fine-tune", "alike"]

SINCE: Mapping[tuple[EngineName, Method], str] = {
    ("vllm", "dflash"): "0.20.0",
    ("vllm", "dspark"): "0.25.0",
    ("sglang", "dflash"): "0.5.11",
    ("sglang", "dspark"): "0.5.17",
}
"""The first release of an engine that runs a method, from its wheels."""

_QUANTISATION_WORDS = re.compile(
    r"(?:^|-)(?:gguf|awq|gptq|fp8|fp4|nvfp4|mxfp4|int[48]|w4a16|w8a8|[48]bit|bf16|fp16|f16|ud|mtp|dynamic|block|"
    r"iq?[1-8](?:-[a-z0-9]+)*|q[2-8](?:-(?:k|0|1)(?:-(?:xl|l|m|s))?)?)(?=-|$)"
)
_SIZES = ("num_layers", "hidden_size", "vocab_size", "num_kv_heads", "head_dim", "num_experts")


@dataclass(frozen=True, kw_only=True)
class Fault:
    """Something that was reported of a drafter."""

    what: str
    source: str


@dataclass(frozen=True, kw_only=True)
class Drafter:
    """A registered drafter."""

    reference: str
    target: str
    method: Method
    facts: DraftFacts
    also: tuple[str, ...] = ()
    """Copies under other names."""
    gguf: tuple[str, ...] = ()
    in_target: bool = False
    """True if the target's own checkpoint brings it."""
    engines: Mapping[str, str]
    """First versions where this drafter needs a later one than its method."""
    faults: tuple[Fault, ...] = ()

    def first_version(self, engine: EngineName) -> str | None:
        """Return the first version of an engine that runs it, or None if none is known."""
        return self.engines.get(engine) or SINCE.get((engine, self.method))


@dataclass(frozen=True, kw_only=True)
class Base:
    """The registered model that a target is or was made from, and how that was found out."""

    name: str
    relation: Relation
    how: str


@lru_cache(maxsize=1)
def _data() -> dict[str, Any]:
    return tomllib.loads(Path(__file__).with_name("pairs.toml").read_text(encoding="utf-8"))


def target_names() -> tuple[str, ...]:
    """Return the registered targets."""
    return tuple(_data()["targets"])


def registered_target(name: str) -> TargetFacts:
    """Return the facts of a registered target.

    Raises:
        KeyError: it is none.
    """
    targets = _data()["targets"]
    config = targets[name]
    facts = target_from_hf(targets[config["same_as"]] if "same_as" in config else config, name, origin="registry")
    if facts.num_layers is None or facts.hidden_size is None:  # only its name is known
        facts = replace(facts, num_experts=None, num_mtp_layers=None, state_bytes=None)
    return replace(facts, base=name, is_multimodal=None, num_mtp_layers=facts.num_mtp_layers or None)


@lru_cache(maxsize=1)
def drafters() -> tuple[Drafter, ...]:
    """Return all registered drafters."""
    return tuple(_drafter(entry) for entry in _data()["drafters"])


def _drafter(entry: Mapping[str, Any]) -> Drafter:
    facts = draft_from_hf(entry.get("config", {}), entry["reference"], origin="registry")
    # An entry without layer types says nothing about windows unless it says how many layers there are.
    declared = entry.get("config", {})
    knows_layers = "layer_types" in declared or ("num_attention_heads" in declared and "architectures" not in declared)
    return Drafter(
        reference=entry["reference"],
        target=entry["target"],
        method=entry["method"],
        also=tuple(entry.get("also", ())),
        gguf=tuple(entry.get("gguf", ())),
        in_target=entry.get("in_target", False),
        engines=entry.get("engines", {}),
        faults=tuple(Fault(**fault) for fault in entry.get("faults", ())),
        facts=replace(
            facts,
            method=entry["method"],
            drafts_from_anchor=entry["method"] == "dspark",
            num_sliding_layers=facts.num_sliding_layers if knows_layers else None,
            thinking=entry.get("thinking"),
            trained_context=entry.get("trained_context"),
            interleaved_rope=entry.get("interleaved_rope"),
            num_parameters=entry.get("num_parameters", facts.num_parameters),
            file_bytes=entry.get("file_bytes"),
        ),
    )


def find_drafter(reference: str) -> Drafter | None:
    """Return the registered drafter of a reference, a copy's name, a local folder's name or a GGUF file's name."""
    wanted = _plain(reference)
    for drafter in drafters():
        if any(_plain(name) == wanted for name in (drafter.reference, *drafter.also, *drafter.gguf)):
            return drafter
    return None


def drafters_of(base: str) -> tuple[Drafter, ...]:
    """Return the drafters of a registered target, in the order of the registry."""
    return tuple(drafter for drafter in drafters() if drafter.target == base)


def _leaf(reference: str) -> str:
    """Return the last part of a reference: the repository's or the file's name."""
    text = re.sub(r"^https?://[^/]+/", "", reference).removeprefix("hf:").split("@")[0].rstrip("/")
    if ":" in text and "/" in text:  # ORG/NAME:FILE, or llama.cpp's ORG/NAME:QUANT
        repository, _, file = text.partition(":")
        text = file if file.lower().endswith(".gguf") else repository
    return text.rsplit("/", maxsplit=1)[-1].removesuffix(".gguf")


def _words(name: str) -> str:
    return re.sub(r"[-_ ]+", "-", name.lower()).strip("-")


def _plain(reference: str) -> str:
    """Return a name in small letters, without what only tells how the weights are stored."""
    plain = _words(_leaf(reference))
    while (shorter := _QUANTISATION_WORDS.sub("", plain).strip("-")) != plain:
        plain = shorter
    return plain


def unquantised_name(reference: str) -> str:
    """Return a model's own name in its spelling: without its owner, and without how its weights are stored."""
    name = _leaf(reference)
    while (shorter := re.sub(_QUANTISATION_WORDS.pattern, "", name, flags=re.IGNORECASE).strip("-")) != name:
        name = shorter
    return name


def _core(base: str) -> str:
    """Return a registered target's name without what variants leave out."""
    return re.sub(r"-(?:instruct|it|chat)$", "", _plain(base))


def find_base(reference: str, facts: TargetFacts | None = None, named_bases: Iterable[str] = ()) -> Base | None:
    """Return the registered model that a target is or was made from, or None.

    `facts` are those of its files, if there are any: sizes that differ rule a name out. `named_bases` are the models
    that its files name as their origin.

    Raises:
        ConfigError: the sizes of the files differ from those of the model that its name says it is.
    """
    names = target_names()
    if found := _by_name(reference, names):
        if (other := _other_size(found.name, facts)) is None:
            return found
        if found.relation in ("same", "quantised"):
            raise ConfigError(f"{reference} is called like {found.name}, but {other}; it is another model")
    for named in named_bases:
        origin = _by_name(named, names)
        if origin and _other_size(origin.name, facts) is None:
            return Base(name=origin.name, relation="fine-tune", how=f"its files name {named} as their base")
    return _by_sizes(facts, names) if facts else None


def _by_name(reference: str, names: Iterable[str]) -> Base | None:
    leaf, plain = _leaf(reference), _plain(reference)
    for name in names:
        if plain in (_plain(name), _core(name)):
            if _words(leaf) == _words(_leaf(name)):
                return Base(name=name, relation="same", how="it is registered")
            scheme = quantization_in_name(reference) or "GGUF"
            return Base(name=name, relation="quantised", how=f"its name is that of {name}, stored otherwise ({scheme})")
    held = [name for name in names if re.search(rf"(?:^|-){re.escape(_core(name))}(?:-|$)", plain)]
    if not held:
        return None
    longest = max(held, key=lambda name: len(_core(name)))
    return Base(name=longest, relation="fine-tune", how=f"its name {leaf!r} holds that of {longest}")


def _other_size(base: str, facts: TargetFacts | None) -> str | None:
    """Return which size differs between a registered model and files, or None."""
    if facts is None:
        return None
    known = registered_target(base)
    for size in _SIZES:
        mine, theirs = getattr(facts, size), getattr(known, size)
        if mine is not None and theirs is not None and mine != theirs:
            return f"its {size} is {mine} and that of {base} is {theirs}"
    return None


def _by_sizes(facts: TargetFacts, names: Iterable[str]) -> Base | None:
    alike = []
    for name in names:
        known = registered_target(name)
        sizes = [(getattr(facts, size), getattr(known, size)) for size in _SIZES]
        if all(mine == theirs and mine is not None for mine, theirs in sizes):
            alike.append(name)
    if len(alike) != 1:
        return None
    return Base(name=alike[0], relation="alike", how=f"of the registered models only {alike[0]} has its sizes")
