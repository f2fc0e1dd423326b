"""Readers of stored weights: safetensors and GGUF."""
