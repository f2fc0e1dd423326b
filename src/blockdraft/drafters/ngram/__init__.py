"""Drafters without a network: they copy what followed when the newest tokens occurred before.

Names, parameters and defaults are llama.cpp's; docs/ngram.md lists every rule and where it differs.
"""

from blockdraft.drafters.ngram.base import NgramDrafter
from blockdraft.drafters.ngram.keys import NgramMapK4vDrafter, NgramMapKDrafter
from blockdraft.drafters.ngram.mod import NgramModDrafter
from blockdraft.drafters.ngram.simple import NgramSimpleDrafter

__all__ = ["NgramDrafter", "NgramMapK4vDrafter", "NgramMapKDrafter", "NgramModDrafter", "NgramSimpleDrafter"]
