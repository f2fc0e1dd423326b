"""The round and what drives it."""

from blockdraft.engine.engine import DEFAULT_MAX_TOKENS, Engine, Prompt
from blockdraft.engine.request import Request
from blockdraft.engine.results import Chunk, Generation, Round, Timings, Token

__all__ = ["DEFAULT_MAX_TOKENS", "Chunk", "Engine", "Generation", "Prompt", "Request", "Round", "Timings", "Token"]
