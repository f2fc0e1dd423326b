"""How many tokens to draft in a round, by goal and hardware; a start, to be measured."""

from __future__ import annotations

from dataclasses import dataclass

from blockdraft.deploy.choosing import ChosenDrafter
from blockdraft.deploy.hardware import Hardware

_BUSY = 4
_CONCURRENT = 7
_WEAK = 8
_HEADS = 2
_UNKNOWN = 3


@dataclass(frozen=True, kw_only=True)
class Length:
    """A number of draft tokens, and why."""

    number: int
    why: str
    source: str = ""


def choose_length(goal: str, hardware: Hardware, drafter: ChosenDrafter, num_sequences: int | None) -> Length:
    """Return how many tokens to draft."""
    most = drafter.facts.max_draft_tokens if drafter.facts else None
    if drafter.method == "mtp":
        why = "one MTP layer is run again for each further token, and each is accepted less"
        return Length(number=_HEADS, why=why, source="published configuration 12")
    if most is None:
        why = "the drafter's block size is not known; a small number is safe for every block"
        return Length(number=_UNKNOWN, why=why)
    if drafter.method == "dspark":
        why = f"the whole block of {most}: a DSpark drafter was best at its own block size"
        return Length(number=most, why=why, source="vllm-project/vllm#41834")
    if goal == "throughput" or (num_sequences or 1) > _BUSY:
        number = min(most, _CONCURRENT)
        why = "a block of 8 with its anchor: rows of many sequences share one pass, and long drafts are dropped"
        return Length(number=number, why=why, source="published page; z-lab model cards")
    if hardware.unified_memory or hardware.vendor == "intel":
        number = min(most, _WEAK)
        why = f"devices with little arithmetic for their memory verify long drafts slowly; {most} fit the block"
        return Length(number=number, why=why, source="published configuration 14; ggml-org/llama.cpp#27210")
    why = f"the block of {most + 1} less its anchor, for few users; owners found 2 to 13 best on some pairs, so measure"
    return Length(number=most, why=why, source="Z Lab's README; vllm-project/vllm#52816")
