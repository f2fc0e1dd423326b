"""What a sequence remembers between passes, and how it returns to a committed length."""

from blockdraft.cache.kv import KVCache, KVLayout, SequenceCache

__all__ = ["KVCache", "KVLayout", "SequenceCache"]
