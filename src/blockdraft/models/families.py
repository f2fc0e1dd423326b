"""Which architecture families have an own implementation, and how one is found by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from blockdraft.errors import UnsupportedModelError, nearest_name
from blockdraft.models import llama, qwen2, qwen3, qwen3_moe
from blockdraft.models.config import Family

FAMILIES: Mapping[str, Family] = {module.FAMILY.name: module.FAMILY for module in (llama, qwen2, qwen3, qwen3_moe)}


def find_hf_family(config: Mapping[str, Any]) -> Family | None:
    """Return the family that a config.json names, or None if it is none of ours."""
    names = config.get("architectures") or ()
    return next((family for family in FAMILIES.values() if set(names) & set(family.hf_architectures)), None)


def find_gguf_family(architecture: str) -> Family:
    """Return the family of a GGUF `general.architecture`.

    Raises:
        UnsupportedModelError: it is none of ours.
    """
    supported = {name: family for family in FAMILIES.values() for name in family.gguf_architectures}
    if architecture not in supported:
        raise UnsupportedModelError(
            f"GGUF architecture {architecture!r} is not supported{nearest_name(architecture, supported)}; supported "
            f"are {', '.join(sorted(supported))}. Other architectures can be loaded from a Hugging Face folder."
        )
    return supported[architecture]
