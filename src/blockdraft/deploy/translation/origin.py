"""The way back without loss: a translation carries the command it came from, in a comment.

What another engine cannot say would be gone on the way back. So each translation holds the whole command that it was
made from. Translated back, the two are compared: what nobody has changed since is taken from there, and what somebody
has changed wins.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from blockdraft.deploy.deployment import Deployment, Draft, EngineName
from blockdraft.deploy.dialects import Note, read_command
from blockdraft.deploy.dialects.words import join
from blockdraft.deploy.forms import command_words
from blockdraft.deploy.translation.translate import translate
from blockdraft.deploy.translation.words import ENGINE_TITLES

_MARK = "# translated from: "


def as_comment(source: Deployment) -> str:
    """Return the line that holds a deployment, for files and shells that take `#` for a comment.

    Raises:
        ConfigError: the engine cannot say a part of the deployment.
    """
    words = command_words(source)
    text = join(words)
    return f"{_MARK}{json.dumps(words) if chr(10) in text else text}\n"


def read_origin(text: str) -> Deployment | None:
    """Return the deployment that a text says it was translated from, or None.

    Raises:
        ConfigError: the line is there and cannot be read.
    """
    for line in text.splitlines():
        if line.strip().startswith(_MARK.strip()):
            said = line.strip().removeprefix(_MARK.strip()).strip()
            return read_command(json.loads(said) if said.startswith("[") else said)
    return None


def restore(current: Deployment, origin: Deployment) -> tuple[Deployment, list[Note]]:
    """Return the deployment on the engine it came from, with what was changed since.

    Args:
        current: as it is now, on the other engine.
        origin: what it was translated from.
    """
    back = translate(current, origin.engine).deployment
    # The way there and back without a change, to tell changes from what is lost on the way.
    unchanged = translate(translate(origin, current.engine).deployment, origin.engine).deployment
    merged: dict[str, Any] = {}
    for field in fields(Deployment):
        before, now, at_first = (getattr(one, field.name) for one in (unchanged, back, origin))
        if field.name == "drafts":
            merged[field.name] = _merge_drafts(before, now, at_first)
        elif field.name == "target":
            merged[field.name] = _merge_model(before, now, at_first)
        elif field.name == "container" and None not in (before, now, at_first):
            merged[field.name] = replace(at_first, **_changes(before, now))
        elif isinstance(at_first, Mapping):
            merged[field.name] = _merge_mapping(before, now, at_first)
        else:
            merged[field.name] = at_first if now == before else now
    found = Deployment(**merged)
    if found == back:
        return found, []
    title = ENGINE_TITLES[current.engine]
    text = f"taken from the command this was translated from, as {title} could not say it"
    return found, [Note(kind="restored", subject=subject, text=text) for subject in _differences(back, found)]


def restored_source(current: Deployment, origin: Deployment | None, to: EngineName) -> tuple[Deployment, list[Note]]:
    """Return what to translate: the deployment as it stood on its first engine, where that is known."""
    if origin is None or origin.engine == current.engine:
        return current, []
    found, notes = restore(current, origin)
    return found, notes if found.engine == to else []


def _merge_mapping(before: Mapping[str, Any], now: Mapping[str, Any], at_first: Mapping[str, Any]) -> dict[str, Any]:
    merged = {key: value for key, value in at_first.items() if key not in before or key in now}
    return merged | {key: value for key, value in now.items() if key not in before or before[key] != value}


def _merge_model(before: str | None, now: str | None, at_first: str | None) -> str | None:
    """Return the model; the same one in the format of the other engine is no change of it."""
    if now == before or (now and at_first and _stem(now) == _stem(at_first)):
        return at_first
    return now


def _stem(model: str) -> str:
    """Return the name of a model without its owner, folder and format."""
    return model.rsplit("/", 1)[-1].lower().removesuffix(".gguf").removesuffix("-gguf")


def _changes(before: Any, now: Any) -> dict[str, Any]:
    """Return the fields of a dataclass that differ, with the values that they have now."""
    names = [field.name for field in fields(now)]
    return {name: getattr(now, name) for name in names if getattr(now, name) != getattr(before, name)}


def _merge_drafts(before: tuple[Draft, ...], now: tuple[Draft, ...], at_first: tuple[Draft, ...]) -> tuple[Draft, ...]:
    if now == before:
        return at_first
    if [draft.method for draft in now] != [draft.method for draft in before]:
        return now
    changes = {draft.method: (old, draft) for old, draft in zip(before, now, strict=True)}
    return tuple(
        _merge_draft(*changes[first.method], first) if first.method in changes else first for first in at_first
    )


def _merge_draft(before: Draft, now: Draft, at_first: Draft) -> Draft:
    changed = _changes(before, now)
    changed["model"] = _merge_model(before.model, now.model, at_first.model)
    changed["options"] = _merge_mapping(before.options, now.options, at_first.options)
    return replace(at_first, **changed)


def _differences(back: Deployment, found: Deployment) -> list[str]:
    """Return the names of what only the origin knew."""
    subjects = []
    for field in fields(Deployment):
        before, now = getattr(back, field.name), getattr(found, field.name)
        if before == now or now is None:  # what was said for the other engine's sake is left unsaid again
            continue
        if isinstance(now, Mapping):
            subjects += [f"{key} {now[key]}" for key in now if before.get(key) != now[key]]
        else:
            subjects.append(f"{field.name} {now}" if isinstance(now, str | int | float) else field.name)
    return subjects
