"""Lossless speculative decoding: the same answers, sooner.

    import blockdraft

    engine = blockdraft.load()
    print(engine.generate("Why is the sky blue?").text)

The names below are imported when they are first used, so that `import blockdraft` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from blockdraft.core.sampling import SamplingParams
    from blockdraft.drafters.config import SpecConfig
    from blockdraft.engine import Chunk, Engine, Generation, Request, Token
    from blockdraft.engine.load import load
    from blockdraft.errors import BlockdraftError

__version__ = "0.1.0"

__all__ = [
    "BlockdraftError",
    "Chunk",
    "Engine",
    "Generation",
    "Request",
    "SamplingParams",
    "SpecConfig",
    "Token",
    "__version__",
    "load",
]

_HOMES = {
    "BlockdraftError": "blockdraft.errors",
    "Chunk": "blockdraft.engine",
    "Engine": "blockdraft.engine",
    "Generation": "blockdraft.engine",
    "Request": "blockdraft.engine",
    "SamplingParams": "blockdraft.core.sampling",
    "SpecConfig": "blockdraft.drafters.config",
    "Token": "blockdraft.engine",
    "load": "blockdraft.engine.load",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
