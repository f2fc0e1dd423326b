"""Which drafter a target gets on an engine: one that was named, a registered one, the target's own heads, or none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from blockdraft.deploy.deployment import EngineName, Method
from blockdraft.deploy.dialects.vllm_speculation import method_by_name
from blockdraft.deploy.hardware import Hardware
from blockdraft.deploy.model_facts import DraftFacts, TargetFacts, Thinking
from blockdraft.deploy.pairs import SINCE, Drafter, drafters, drafters_of, find_drafter
from blockdraft.deploy.versions import EngineVersion, is_before, number_of
from blockdraft.errors import ConfigError, nearest_name

GGUF_FOLDER = "/models"
"""Where a plan supposes files that have to be made first."""

SEARCHES: Mapping[str, Method] = {
    "ngram": "ngram",
    "ngram-simple": "ngram",
    "ngram-mod": "ngram-mod",
    "suffix": "suffix",
}
"""What drafts from texts that were seen, without a model, by the names that people give it."""

NO_DRAFTER = "none"

GGUF_NOTE = "convert it with convert_hf_to_gguf.py --target-model-dir TARGET"


@dataclass(frozen=True, kw_only=True)
class ChosenDrafter:
    """What drafts, and why it and no other."""

    method: Method | None
    """None for plain decoding."""
    model: str | None = None
    facts: DraftFacts | None = None
    registered: Drafter | None = None
    why: str
    source: str = ""
    others: tuple[str, ...] = ()
    """What was looked at and not taken, with reasons."""

    def describe(self) -> str:
        """Return who drafts and how."""
        if self.method is None:
            return "none: plain decoding"
        if self.method in SEARCHES.values():
            return f"{self.method}, which needs no model"
        return f"{self.model or 'of the target'} ({self.method})"


def split_searches(named: str | None) -> tuple[tuple[Method, ...], str | None]:
    """Return the searches that a chain like `ngram-mod,./drafter.gguf` begins with, and what is behind them."""
    searches: list[Method] = []
    while named:
        first, _, rest = named.partition(",")
        if first not in SEARCHES:
            break
        searches.append(SEARCHES[first])
        named = rest
    return tuple(searches), named or None


def only_searches(searches: Sequence[Method]) -> ChosenDrafter:
    """Return what drafts where nothing but searches was named."""
    return ChosenDrafter(method=searches[-1], why="it was named; it copies from texts that were seen")


def choose_drafter(
    *,
    engine: EngineName,
    version: EngineVersion,
    hardware: Hardware,
    target: TargetFacts | None,
    base: str | None,
    named: str | None = None,
    named_facts: DraftFacts | None = None,
    thinking: Thinking | None = None,
    num_sequences: int = 1,
) -> ChosenDrafter:
    """Return what drafts for a target. A drafter that was named is taken, whatever else is known; so is `none`."""
    if named == NO_DRAFTER:
        return ChosenDrafter(method=None, why="as asked")
    if named is not None:
        return _named(named, named_facts, engine)
    if losing := _losing_hardware(engine, hardware, num_sequences):
        return losing
    others: list[str] = []
    fitting = []
    for drafter in drafters_of(base) if base else ():
        obstacle = _obstacle(drafter, engine, version, hardware)
        if obstacle:
            others.append(f"{drafter.reference}: {obstacle}")
        else:
            fitting.append(drafter)
    if fitting:
        fitting.sort(key=lambda drafter: _mismatch(drafter, thinking))
        best, *rest = fitting
        others += [f"{drafter.reference}: {drafter.method}, also fits" for drafter in rest]
        return _registered(best, engine, thinking, tuple(others))
    return _without_a_pair(engine, target, base, tuple(others))


def _named(reference: str, facts: DraftFacts | None, engine: EngineName) -> ChosenDrafter:
    """Return the drafter that was named.

    Raises:
        ConfigError: neither the registry, nor its files, nor its name tell what kind of drafter it is.
    """
    found = find_drafter(reference)
    known = facts or (found.facts if found else None)
    if found:
        method, how = found.method, "its kind is registered"
    elif facts:
        method, how = _method(facts) or "draft-model", "its kind is read from its files"
    elif (by_name := method_by_name(reference)) is not None:
        method, how = by_name, "its kind is told by its name alone"
    else:
        near = nearest_name(reference, [drafter.reference for drafter in drafters()])
        raise ConfigError(
            f"nothing tells what kind of drafter {reference!r} is{near}: it is not registered and its files are not "
            "here; give a folder or a .gguf file"
        )
    model, why = reference, f"it was named; {how}: {method}"
    if engine == "llamacpp" and facts and facts.origin == "config.json":
        model = _gguf_file(reference)
        own = f"blockdraft export {reference} --to gguf" if method in ("dflash", "dspark") else GGUF_NOTE
        why += f"; llama.cpp reads GGUF files: {own}"
    return ChosenDrafter(method=method, model=model, facts=known, registered=found, why=why)


def _gguf_file(reference: str) -> str:
    """Return where a plan supposes a drafter in llama.cpp's form."""
    return f"{GGUF_FOLDER}/{reference.rstrip('/').rsplit('/', maxsplit=1)[-1]}-BF16.gguf"


def _method(facts: DraftFacts | None) -> Method | None:
    known: dict[str, Method] = {"dflash": "dflash", "dspark": "dspark", "eagle3": "eagle3"}
    return known.get(facts.method or "") if facts else None


def _losing_hardware(engine: EngineName, hardware: Hardware, num_sequences: int) -> ChosenDrafter | None:
    """Return plain decoding where reports say that a draft network loses, else None."""
    if hardware.vendor == "cpu":
        why = (
            "on processors each row to verify costs arithmetic that plain decoding does not need: 0.33 of plain speed "
            "was measured for a 27B target; blockdraft's own engine, with blockdraft tune, is made for this case"
        )
        return ChosenDrafter(method=None, why=why, source="Tenstorrent's notes on Qwen3.6-27B, 2 x Xeon Silver 4309Y")
    if engine == "llamacpp" and hardware.gfx == "gfx1151" and num_sequences > 1:
        why = f"{num_sequences} slots on Strix Halo: 34.1 tokens/s at 4 slots without drafts, 25.3 with DFlash 2"
        return ChosenDrafter(method=None, why=why, source="ggml-org/llama.cpp#27342")
    return None


def _obstacle(drafter: Drafter, engine: EngineName, version: EngineVersion, hardware: Hardware) -> str | None:
    """Return why an engine cannot run a drafter, or None."""
    if engine == "llamacpp":
        return _llama_obstacle(drafter)
    needed = drafter.first_version(engine)
    if needed is None:
        return f"no release of {engine} is known to run it"
    if is_before(version.number, number_of(engine, needed)):
        return f"needs {engine} {needed}, and {version.text} is used"
    if engine == "sglang" and drafter.method == "dspark" and hardware.compute_capability == (12, 0):
        return "DSPARK on sm_120 does not run (sgl-project/sglang#33985)"
    if drafter.target == "Qwen/Qwen3.8-Flash-Next" and engine == "vllm":
        return "vLLM runs this target with mtp and n-gram drafts only"
    return None


def _llama_obstacle(drafter: Drafter) -> str | None:
    architecture = drafter.facts.architecture or ""
    if architecture.startswith("Gemma4"):
        return "the converter's branch for it was open (ggml-org/llama.cpp#25549)"
    return None


def _mismatch(drafter: Drafter, thinking: Thinking | None) -> tuple[bool, int]:
    """Sort by the mode of the target, then by how much is known of the drafter."""
    other_mode = bool(thinking and drafter.facts.thinking and drafter.facts.thinking != thinking)
    return other_mode, 0 if drafter.facts.num_layers and drafter.facts.num_kv_heads else 1


def _registered(
    drafter: Drafter, engine: EngineName, thinking: Thinking | None, others: tuple[str, ...]
) -> ChosenDrafter:
    model: str | None = drafter.reference
    why = f"registered for {drafter.target}"
    if engine == "llamacpp":
        model = drafter.gguf[0] if drafter.gguf else _gguf_file(drafter.reference)
        why += "" if drafter.gguf else f"; {GGUF_NOTE}"
    if drafter.in_target:
        model = None
        why += "; the target's own checkpoint brings it"
    if thinking and drafter.facts.thinking and drafter.facts.thinking != thinking:
        why += f"; trained with thinking {drafter.facts.thinking}, and no other is registered"
    facts = drafter.facts
    if engine == "llamacpp" and facts.quantization is None:
        facts = replace(facts, quantization="bf16")
    return ChosenDrafter(method=drafter.method, model=model, facts=facts, registered=drafter, why=why, others=others)


def _without_a_pair(
    engine: EngineName, target: TargetFacts | None, base: str | None, others: tuple[str, ...]
) -> ChosenDrafter:
    about = f"no registered drafter for {base} runs here" if base else "the target is not registered, nor made from one"
    heads = target.num_mtp_layers if target else None
    if heads:
        why = f"{about}; the target brings {heads} MTP layer{'s' if heads > 1 else ''} of its own"
        return ChosenDrafter(method="mtp", why=why, others=others)
    needed = {method: since for (name, method), since in SINCE.items() if name == engine}
    ways = f"; train one (blockdraft train) and name it: {', '.join(needed) or 'dflash, dspark'} run here"
    return ChosenDrafter(method=None, why=f"{about}, and no MTP layers are known{ways}", others=others)
