"""The round and what drives it.

The names below are imported when they are first used: whoever reads prompts (`workloads`) need not wait for torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from blockdraft.engine.engine import DEFAULT_MAX_TOKENS, Engine, Prompt
    from blockdraft.engine.request import Request
    from blockdraft.engine.results import Chunk, Generation, Round, Timings, Token

__all__ = ["DEFAULT_MAX_TOKENS", "Chunk", "Engine", "Generation", "Prompt", "Request", "Round", "Timings", "Token"]

_HOMES = {
    "DEFAULT_MAX_TOKENS": "blockdraft.engine.engine",
    "Chunk": "blockdraft.engine.results",
    "Engine": "blockdraft.engine.engine",
    "Generation": "blockdraft.engine.results",
    "Prompt": "blockdraft.engine.engine",
    "Request": "blockdraft.engine.request",
    "Round": "blockdraft.engine.results",
    "Timings": "blockdraft.engine.results",
    "Token": "blockdraft.engine.results",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
