"""The round and what drives it."""
