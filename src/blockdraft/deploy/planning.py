"""A plan: from target, hardware, goal and engine to a deployment in which every choice is explained.

The choices are few and their evidence is named. What the rules then find wrong with them is mended by the rules' own
repairs, and told; what cannot be mended stays as a finding.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from blockdraft.deploy.choosing import SEARCHES, ChosenDrafter, choose_drafter, only_searches
from blockdraft.deploy.deployment import Deployment, Draft, EngineName, Method
from blockdraft.deploy.draft_length import choose_length
from blockdraft.deploy.hardware import GIB, MAX_DEVICES, Hardware
from blockdraft.deploy.memory import DEFAULT_FRACTION, MemoryAccount, account
from blockdraft.deploy.model_facts import DraftFacts, TargetFacts, bytes_of_weights
from blockdraft.deploy.pairs import Base
from blockdraft.deploy.rules import Examination, Finding, Situation, Workload, examine
from blockdraft.deploy.settings_of_engines import engine_settings
from blockdraft.deploy.sizing import Sizer, is_gguf, usual_sequences
from blockdraft.deploy.versions import EngineVersion

Goal = Literal["latency", "throughput", "context"]
GOALS: tuple[Goal, ...] = ("latency", "throughput", "context")
ENGINES: tuple[EngineName, ...] = ("vllm", "sglang", "llamacpp")

_MAX_REPAIRS = 8
_WITH_ROOM = 0.8
_NONE = "none"
_COPIED = 4
"""Tokens that vLLM copies at a hit; its documentation's example has 4 or 5."""
_MENDED = ("error", "warning")
"""Findings of these severities are mended where their rule knows how."""


@dataclass(frozen=True, kw_only=True)
class Wish:
    """What is asked for."""

    target: str
    engine: EngineName
    version: EngineVersion
    hardware: Hardware
    goal: Goal = "latency"
    drafter: str | None = None
    searches: tuple[Method, ...] = ()
    """N-gram searches that are asked before the drafter, and alone if only they were named."""
    context_length: int | None = None
    num_sequences: int | None = None
    target_facts: TargetFacts | None = None
    draft_facts: DraftFacts | None = None
    base: Base | None = None
    workload: Workload = field(default_factory=Workload)


@dataclass(frozen=True, kw_only=True)
class Choice:
    """One setting, its value, and why."""

    setting: str
    value: str
    why: str
    source: str = ""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A deployment with its reasons, its memory and what the rules say of it."""

    wish: Wish
    deployment: Deployment
    drafter: ChosenDrafter
    choices: tuple[Choice, ...]
    memory: MemoryAccount
    examination: Examination
    target_facts: TargetFacts | None
    """Those of the wish, in the quantisation that was chosen."""
    advice: tuple[str, ...] = ()
    """What would help where the target does not fit."""

    @property
    def can_start(self) -> bool:
        """True if no rule expects it to fail and what is known of its memory fits."""
        return not self.examination.of("error") and self.memory.fits is not False


def plan(wish: Wish) -> Plan:
    """Return the plan for one engine."""
    drafter = _drafter(wish)
    choices = [Choice(setting="drafter", value=_spoken(drafter, wish), why=drafter.why, source=drafter.source)]
    deployment = Deployment(engine=wish.engine, target=wish.target, engine_version=_said(wish.version))
    drafts = [_search(method, wish.engine) for method in wish.searches]
    if drafter.method is not None and drafter.method not in SEARCHES.values():
        length = choose_length(wish.goal, wish.hardware, drafter, wish.num_sequences)
        drafts.append(Draft(method=drafter.method, model=drafter.model, num_draft_tokens=length.number))
        choices.append(Choice(setting="draft tokens", value=str(length.number), why=length.why, source=length.source))
    deployment = replace(deployment, drafts=tuple(drafts))
    deployment, more = engine_settings(deployment, wish.hardware, wish.goal, wish.version, drafter.facts)
    choices += [Choice(**one) for one in more]
    sizer = Sizer(
        deployment=deployment,
        target=wish.target_facts,
        draft=drafter.facts,
        hardware=wish.hardware,
        version=wish.version,
        goal=wish.goal,
        is_named=wish.drafter is not None or bool(wish.searches),
    )
    sizer.fit(wish.context_length, wish.num_sequences)
    choices += [Choice(**one) for one in sizer.reasons]
    return _checked(wish, drafter, choices, sizer)


def refusal(engine: EngineName, target: str, facts: TargetFacts | None, hardware: Hardware) -> str | None:
    """Return why an engine cannot run a target here at all, or None."""
    is_file = is_gguf(target) or (facts is not None and facts.origin == "GGUF header")
    if engine != "llamacpp" and is_file:
        return "it is a GGUF file, which llama.cpp reads; name the repository with safetensors"
    if engine == "sglang" and hardware.vendor == "cpu":
        return "SGLang's CPU engine has to be built from source and needs AMX"
    return None


def _drafter(wish: Wish) -> ChosenDrafter:
    if wish.searches and wish.drafter is None:
        return only_searches(wish.searches)
    return choose_drafter(
        engine=wish.engine,
        version=wish.version,
        hardware=wish.hardware,
        target=wish.target_facts,
        base=wish.base.name if wish.base else None,
        named=wish.drafter,
        named_facts=wish.draft_facts,
        thinking=wish.workload.thinking,
        num_sequences=wish.num_sequences or usual_sequences(wish.engine, wish.goal),
    )


def _search(method: Method, engine: EngineName) -> Draft:
    """Return a search with the engine's own lengths; vLLM has none for n-grams and does not start without."""
    return Draft(method=method, num_draft_tokens=_COPIED if (engine, method) == ("vllm", "ngram") else None)


def _spoken(drafter: ChosenDrafter, wish: Wish) -> str:
    before = wish.searches[:-1] if drafter.method in SEARCHES.values() else wish.searches
    return "".join(f"{method}, then " for method in before) + drafter.describe()


def _said(version: EngineVersion) -> str | None:
    """A version that was only assumed is no part of the deployment."""
    return None if version.origin == "assumed" else version.text


def _checked(wish: Wish, drafter: ChosenDrafter, choices: list[Choice], sized: Sizer) -> Plan:
    situation = Situation(
        deployment=sized.deployment,
        version=wish.version,
        target_facts=sized.target,
        draft_facts=drafter.facts,
        hardware=wish.hardware,
        workload=replace(wish.workload, num_concurrent=wish.workload.num_concurrent or sized.deployment.num_sequences),
    )
    mended, repairs = mend(situation)
    deployment = mended.deployment
    if drafter.method is not None and not deployment.drafts:
        dropped = [choice for choice in (*choices, *repairs) if choice.value.startswith(_NONE)] or [repairs[-1]]
        drafter = replace(drafter, method=None, why=dropped[-1].why)
    return Plan(
        wish=wish,
        deployment=deployment,
        drafter=drafter,
        choices=(*choices, *repairs),
        memory=account(deployment, sized.target, drafter.facts if deployment.drafts else None, wish.hardware),
        examination=examine(mended),
        target_facts=sized.target,
        advice=_advice(wish, sized.target),
    )


def _advice(wish: Wish, target: TargetFacts | None) -> tuple[str, ...]:
    """Say what would make the weights fit, if they do not."""
    room = wish.hardware.memory_bytes * DEFAULT_FRACTION[wish.engine]
    needed = target.weight_bytes if target else None
    if needed is None or target is None or needed / wish.hardware.num_devices < room:
        return ()
    helping = []
    if wish.engine != "llamacpp":
        for scheme in ("fp8", "awq"):
            smaller = bytes_of_weights(target.num_parameters, target.num_embedding_parameters, scheme)
            if smaller and smaller / wish.hardware.num_devices < room and scheme != target.quantization:
                helping.append(f"a variant of it in {scheme} takes about {smaller / GIB:.0f} GiB")
    count = wish.hardware.num_devices
    while count < MAX_DEVICES and needed / count > room * _WITH_ROOM:
        count *= 2
    helping.append(f"{count} such devices hold its {needed / GIB:.0f} GiB")
    return tuple(helping)


def mend(situation: Situation) -> tuple[Situation, tuple[Choice, ...]]:
    """Apply the repairs of rules until none changes anything, and tell each.

    What only the words of a command have (an old flag, a thing said twice) is gone once it is written again.
    """
    rewritten = replace(situation, words=())
    left = {finding.rule for finding in examine(rewritten).findings}
    choices = [
        _repair(finding)
        for finding in (examine(situation).findings if situation.words else ())
        if finding.severity in _MENDED and finding.rule not in left
    ]
    situation = rewritten
    for _ in range(_MAX_REPAIRS):
        for finding in examine(situation).findings:
            changed = finding.repaired
            if finding.severity in _MENDED and changed is not None and changed != situation.deployment:
                situation = replace(situation, deployment=changed)
                choices.append(_repair(finding))
                break
        else:
            break
    return situation, tuple(choices)


def _repair(finding: Finding) -> Choice:
    why = f"{finding.effect} [{finding.rule}]"
    return Choice(setting=finding.flag, value=finding.fix, why=why, source=finding.source)
