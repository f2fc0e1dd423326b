"""What the rules look at: a deployment, the two models, the hardware, the command as written, and who will use it.

Anything may be unknown. A rule that asks for something unknown gets `NotKnownError`, and the check then says that the
rule could not be applied and what was missing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, TypeVar

from blockdraft.deploy.deployment import Deployment, Draft, EngineName, Method
from blockdraft.deploy.hardware import Hardware
from blockdraft.deploy.memory import BLOCK_METHODS, MODEL_METHODS, model_draft, num_sequences
from blockdraft.deploy.model_facts import DraftFacts, TargetFacts, Thinking
from blockdraft.deploy.versions import READ_VERSIONS, EngineVersion, is_before, number_of

Value = TypeVar("Value")
Runner = Literal["v1", "v2"]


class NotKnownError(Exception):
    """A rule needs something that nobody said. Not an error of the user: it never leaves the check."""

    def __init__(self, what: str) -> None:
        self.what = what
        super().__init__(what)


@dataclass(frozen=True, kw_only=True)
class Workload:
    """Who will use it and how, as far as it was said."""

    num_concurrent: int | None = None
    thinking: Thinking | None = None
    samples: bool | None = None
    """True if requests have a temperature above 0."""
    request_fields: frozenset[str] = frozenset()
    """Fields of requests that matter: min_p, logit_bias, logprobs, tools, response_format, images, stream."""
    dataset: str | None = None
    """Of a benchmark."""
    shares_prefixes: bool | None = None


@dataclass(frozen=True, kw_only=True)
class Situation:
    """All that can be known before a launch."""

    deployment: Deployment
    version: EngineVersion
    target_facts: TargetFacts | None = None
    draft_facts: DraftFacts | None = None
    hardware: Hardware | None = None
    words: tuple[str, ...] = ()
    """The command line as it was written; nothing for a deployment that was made here."""
    workload: Workload = field(default_factory=Workload)

    # models

    @property
    def target(self) -> TargetFacts:
        return known(self.target_facts, "the target's configuration")

    @property
    def draft(self) -> DraftFacts:
        return known(self.draft_facts, "the drafter's configuration")

    def about_target(self, name: str) -> Any:
        """Return a fact about the target that must be known."""
        return known(getattr(self.target, name), f"{_spoken(name)} of the target")

    def about_draft(self, name: str) -> Any:
        """Return a fact about the drafter that must be known."""
        return known(getattr(self.draft, name), f"{_spoken(name)} of the drafter")

    # drafting

    def uses(self, *methods: Method) -> Draft | None:
        """Return the first draft of one of these methods, or None."""
        return next((draft for draft in self.deployment.drafts if draft.method in methods), None)

    @property
    def block(self) -> Draft | None:
        """The DFlash or DSpark draft, if there is one."""
        return next((draft for draft in self.deployment.drafts if draft.method in BLOCK_METHODS), None)

    @property
    def network(self) -> Draft | None:
        """The draft that has a network, if there is one."""
        return model_draft(self.deployment)

    @property
    def speculates(self) -> bool:
        return bool(self.deployment.drafts)

    def num_drafts(self, draft: Draft) -> int:
        """Return how many tokens a draft has, from the command or from the block that the engine takes it from."""
        if draft.num_draft_tokens is not None:
            return draft.num_draft_tokens
        if self.deployment.engine == "llamacpp" and draft.method in MODEL_METHODS:
            return 3
        if draft.method in BLOCK_METHODS and self.deployment.engine == "sglang":
            return int(self.about_draft("max_draft_tokens"))
        raise NotKnownError("the number of draft tokens")

    @property
    def drafts_with_features(self) -> bool:
        """True if some drafter is not a search in the text."""
        return any(draft.method not in ("ngram", "ngram-mod", "suffix") for draft in self.deployment.drafts)

    @property
    def num_sequences(self) -> int:
        return num_sequences(self.deployment)

    # hardware

    @property
    def devices(self) -> Hardware:
        return known(self.hardware, "the hardware")

    @property
    def capability(self) -> tuple[int, int] | None:
        """NVIDIA's compute capability; None for devices of others."""
        return self.devices.compute_capability

    def is_below(self, major: int, minor: int) -> bool:
        """True on an NVIDIA device of a lower compute capability."""
        return self.capability is not None and self.capability < (major, minor)

    @property
    def has_old_flash_attention(self) -> bool:
        """True where FLASH_ATTN is version 2: all NVIDIA devices but those of capability 9 and 10."""
        return self.capability is not None and self.capability[0] not in (9, 10)

    # the engine

    def is_between(self, engine: EngineName, since: str | None, before: str | None) -> bool:
        """True if the engine is this one and its version lies in the range."""
        if self.deployment.engine != engine:
            return False
        number = self.version.number
        if since is not None and is_before(number, number_of(engine, since)):
            return False
        return before is None or is_before(number, number_of(engine, before))

    @property
    def runner(self) -> Runner:
        """VLLM's model runner, where the environment, the device or the release decides."""
        forced = self.environment("VLLM_USE_V2_MODEL_RUNNER")
        if forced is not None:
            return "v2" if forced.lower() in ("1", "true") else "v1"
        if self.uses("dspark"):  # V1 does not run it at all
            return "v2"
        if self.uses("suffix") or (self.hardware is not None and self.hardware.vendor == "cpu"):
            return "v1"
        if self.is_between("vllm", None, "0.29.0"):
            raise NotKnownError("which model runner vLLM takes (VLLM_USE_V2_MODEL_RUNNER)")
        return "v2"

    def environment(self, name: str) -> str | None:
        """Return a variable that is set for the engine."""
        return self.deployment.environment.get(name)

    @property
    def attention_backend(self) -> str | None:
        """Of the target, in capitals."""
        return (self.deployment.attention_backend or "").upper().replace("-", "_") or None

    @property
    def draft_backend(self) -> str | None:
        """Of the drafter, in capitals: its own, else the target's."""
        own = self.network.attention_backend if self.network else None
        return (own or "").upper().replace("-", "_") or self.attention_backend

    # flags

    def own(self, *names: str) -> Any:
        """Return the first of these flags of the engine that is set, or None."""
        return next((self.deployment.own[name] for name in names if name in self.deployment.own), None)

    def flag(self, *names: str) -> Any:
        """Return the value of the first of these flags: from the command as written, else from the deployment."""
        for name in names:
            if name in self.written:
                return self.written[name]
        return self.own(*names)

    @cached_property
    def written(self) -> Mapping[str, str | bool]:
        """The flags of the command as written, without dashes, with their values; True for those without one."""
        found: dict[str, str | bool] = {}
        words = self.words
        for index, word in enumerate(words):
            if not word.startswith("-") or not word.strip("-") or word.lstrip("-")[0].isdigit():
                continue
            name, has_value, value = word.lstrip("-").partition("=")
            following = words[index + 1] if index + 1 < len(words) else "-"
            found[name] = value if has_value else (True if _is_flag(following) else following)
        return found

    @cached_property
    def speculative_json(self) -> Mapping[str, Any]:
        """The JSON of vLLM's --speculative-config as written, dashes in keys made underscores."""
        text = self.written.get("speculative-config", self.written.get("sc"))
        try:
            data = json.loads(text) if isinstance(text, str) else {}
        except ValueError:
            return {}
        return {key.replace("-", "_"): value for key, value in data.items()} if isinstance(data, dict) else {}

    def speculative(self, key: str) -> Any:
        """Return a key of vLLM's speculative configuration: as written, else from the drafts."""
        if key in self.speculative_json:
            return self.speculative_json[key]
        names = (key, *_SHARED_NAMES.get(key, ()))
        options = [draft.options for draft in self.deployment.drafts]
        return next((each[name] for each in options for name in names if name in each), None)


_SHARED_NAMES: Mapping[str, tuple[str, ...]] = {
    "draft_sample_method": ("draft_sampling",),
    "rejection_sample_method": ("verification",),
    "prompt_lookup_min": ("n_match_min",),
    "prompt_lookup_max": ("n_match",),
    "enable_adaptive_verification": ("adaptive_verification",),
}
"""How all engines call some of vLLM's keys in `Draft.options`."""


def known(value: Value | None, what: str) -> Value:
    """Return a value that a rule cannot do without.

    Raises:
        NotKnownError: it is None.
    """
    if value is None:
        raise NotKnownError(what)
    return value


def _spoken(name: str) -> str:
    return "the " + name.replace("num_", "number of ").replace("_", " ")


def _is_flag(word: str) -> bool:
    return word.startswith("-") and len(word) > 1 and not word[1].isdigit() and word[1] != "."


def assumed(engine: EngineName) -> EngineVersion:
    """Return the version that is taken for granted where none is known."""
    return EngineVersion(engine=engine, text=READ_VERSIONS[engine], origin="assumed")
