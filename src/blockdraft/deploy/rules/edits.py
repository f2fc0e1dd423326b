"""Changes that mend a deployment; each returns a new one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from blockdraft.deploy.deployment import Deployment, Draft
from blockdraft.deploy.rules.situation import Situation

Repair = Callable[[Situation], Deployment]


def change(**values: Any) -> Repair:
    """Return a repair that sets fields of the deployment."""
    return lambda situation: replace(situation.deployment, **values)


def change_draft(situation: Situation, chosen: Draft | None, **values: Any) -> Deployment:
    """Return the deployment with fields of one of its drafts set."""
    drafts = situation.deployment.drafts
    return replace(
        situation.deployment,
        drafts=tuple(replace(draft, **values) if draft is chosen else draft for draft in drafts),
    )


def change_network(**values: Any) -> Repair:
    """Return a repair that sets fields of the draft with a network."""
    return lambda situation: change_draft(situation, situation.network, **values)


def drop(*names: str) -> Repair:
    """Return a repair that takes flags of the engine away."""
    return lambda situation: without_flags(situation.deployment, names)


def without_flags(deployment: Deployment, names: Iterable[str]) -> Deployment:
    """Return the deployment without some of the engine's own flags."""
    gone = set(names)
    return replace(deployment, own={name: value for name, value in deployment.own.items() if name not in gone})


def with_flag(name: str, value: Any) -> Repair:
    """Return a repair that sets a flag of the engine."""
    return lambda situation: replace(situation.deployment, own={**situation.deployment.own, name: value})


def drop_option(*names: str) -> Repair:
    """Return a repair that takes options of all drafts away."""

    def repair(situation: Situation) -> Deployment:
        return replace(
            situation.deployment,
            drafts=tuple(
                replace(draft, options={key: value for key, value in draft.options.items() if key not in names})
                for draft in situation.deployment.drafts
            ),
        )

    return repair


def without_variable(*names: str) -> Repair:
    """Return a repair that takes environment variables away."""

    def repair(situation: Situation) -> Deployment:
        kept = {key: value for key, value in situation.deployment.environment.items() if key not in names}
        return replace(situation.deployment, environment=kept)

    return repair


def num_drafts(count: Callable[[Situation], int]) -> Repair:
    """Return a repair that sets how many tokens the network drafts."""
    return lambda situation: change_draft(situation, situation.network, num_draft_tokens=count(situation))
