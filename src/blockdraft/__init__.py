"""Lossless speculative decoding: the same answers, sooner."""

__version__ = "0.1.0"
