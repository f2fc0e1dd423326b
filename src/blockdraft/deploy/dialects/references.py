"""Which flag of llama.cpp names a model: a file, a repository, an address or a repository of Docker Hub."""

from __future__ import annotations

from collections.abc import Sequence

from blockdraft.deploy.dialects.flags import Given
from blockdraft.errors import ConfigError

MODEL_FLAGS = {"path": "model", "hf": "hf-repo", "url": "model-url", "docker": "docker-repo"}
DRAFT_FLAGS = {"path": "spec-draft-model", "hf": "spec-draft-hf"}

_DOCKER = "docker:"


def read_reference(given: Sequence[Given], flags: dict[str, str], written: str) -> tuple[str | None, list[Given]]:
    """Return the model that one of the flags names, or None; and the flags that are left.

    A repository is written as it is, a file so that it can be told from one: `./` goes before a bare name.

    Raises:
        ConfigError: two flags name one each.
    """
    named = {kind: str(one.value) for one in given for kind, key in flags.items() if one.key == key}
    rest = [one for one in given if one.key not in flags.values()]
    if not named:
        return None, rest
    if len(named) > 1:
        both = " and ".join(f"--{flags[kind]} {value}" for kind, value in named.items())
        raise ConfigError(f"{written} names two models, {both}; keep one")
    ((kind, value),) = named.items()
    if kind == "docker":
        return _DOCKER + value, rest
    if kind == "hf" and _kind(value) != "hf":
        return f"hf:{value}", rest
    if kind == "path" and _kind(value) != "path":
        return f"./{value}", rest
    return value, rest


def write_reference(reference: str, flags: dict[str, str]) -> list[str]:
    """Return the words that name a model.

    Raises:
        ConfigError: there is no flag for that kind of reference.
    """
    kind = _kind(reference)
    if kind not in flags:
        raise ConfigError(f"llama.cpp cannot load a draft model from {reference}; give a file or a repository")
    return [f"--{flags[kind]}", reference.removeprefix("hf:").removeprefix(_DOCKER)]


def _kind(reference: str) -> str:
    if reference.startswith("hf:"):
        return "hf"
    if reference.startswith(_DOCKER):
        return "docker"
    if reference.startswith(("http://", "https://")):
        return "url"
    is_path = reference.endswith(".gguf") or reference.startswith(("/", "./", "../", "~", "$"))
    return "path" if is_path or reference.count("/") > 1 or "\\" in reference else "hf"
