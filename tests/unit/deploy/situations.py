"""Situations for the tests of rules: a registered pair on a card, with what a test changes."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from blockdraft.deploy.deployment import Deployment, Draft, EngineName, Method
from blockdraft.deploy.hardware import profile
from blockdraft.deploy.model_facts import DraftFacts, TargetFacts
from blockdraft.deploy.pairs import find_drafter, registered_target
from blockdraft.deploy.rules import Situation, Workload
from blockdraft.deploy.versions import READ_VERSIONS, EngineVersion


def drafter(reference: str, **changes: Any) -> DraftFacts:
    found = find_drafter(reference)
    assert found is not None
    return replace(found.facts, **changes)


DENSE = registered_target("Qwen/Qwen3-8B")
HYBRID = registered_target("Qwen/Qwen3.6-27B")
MIXTURE = registered_target("Qwen/Qwen3.6-35B-A3B")
DFLASH = drafter("z-lab/Qwen3-8B-DFlash-b16")
MIXED = drafter("z-lab/Qwen3.6-27B-DFlash")
FOR_MIXTURE = drafter("z-lab/Qwen3.6-35B-A3B-DFlash")
DFLASH2 = drafter("z-lab/Qwen3.8-27B-DFlash2")
DSPARK = drafter("deepseek-ai/dspark_qwen3_8b_block7")
UNKNOWN = TargetFacts(name="unknown", origin="config.json")


@dataclass(frozen=True, kw_only=True)
class Case:
    """A rule, a situation in which it applies, and one near it in which it does not."""

    rule: str
    hit: Situation
    miss: Situation


def situation(
    engine: EngineName = "vllm",
    *,
    version: str | None = None,
    method: Method | None = "dflash",
    num_drafts: int | None = 15,
    model: str = "drafter",
    target: TargetFacts | None = DENSE,
    draft: DraftFacts | None = DFLASH,
    on: str | None = "h100",
    words: str = "",
    env: Mapping[str, str] | None = None,
    own: Mapping[str, Any] | None = None,
    options: Mapping[str, Any] | None = None,
    load: Workload | None = None,
    drafts: tuple[Draft, ...] | None = None,
    draft_fields: Mapping[str, Any] | None = None,
    **fields: Any,
) -> Situation:
    """Return a situation; `fields` are those of the deployment."""
    if drafts is None:
        one = method and Draft(
            method=method, model=model, num_draft_tokens=num_drafts, options=options or {}, **(draft_fields or {})
        )
        drafts = (one,) if one else ()
    named = {"target": target.name if target else "target"} | fields
    return Situation(
        deployment=Deployment(engine=engine, drafts=drafts, environment=env or {}, own=own or {}, **named),
        version=EngineVersion(engine=engine, text=version or READ_VERSIONS[engine], origin="given"),
        target_facts=target,
        draft_facts=draft,
        hardware=profile(on) if on else None,
        words=tuple(shlex.split(words)),
        workload=load or Workload(),
    )


def sglang(**values: Any) -> Situation:
    return situation("sglang", **values)


def llama(**values: Any) -> Situation:
    return situation("llamacpp", **values)
