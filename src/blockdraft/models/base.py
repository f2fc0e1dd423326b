"""The face a target shows to the engine and to drafters.

A target runs packed rows: the tokens of several sequences, one after another, without padding. The same
pass yields logits for the rows that need them and, if asked for, the hidden states of some decoder layers.

Shape legend: T packed rows of a pass, R rows with logits, V vocabulary, D width, M tapped layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from blockdraft.cache import SequenceCache


@dataclass(frozen=True, kw_only=True)
class TargetInfo:
    """What the engine, drafters and users need to know about a target."""

    family: str
    num_layers: int
    hidden_size: int
    vocab_size: int
    context_length: int
    num_parameters: int
    weight_bytes: int
    dtype: torch.dtype
    device: torch.device
    quantization: str
    """What the stored weights were ("bf16", "Q4_1", ...); they are computed in `dtype`."""
    max_rollback: int | None = None
    """How many trailing tokens a cache can forget; None for any number."""


@dataclass(frozen=True, kw_only=True)
class Segment:
    """The rows that one sequence contributes to a pass."""

    token_ids: Sequence[int]
    cache: Any  # the SequenceCache that `new_cache` of the same target returned
    num_logits: int
    """Logits are wanted for this many of the last rows."""
    only_greedy: bool = False
    """Only the most likely token of those rows will be looked at."""


def logit_rows(segments: Sequence[Segment]) -> list[int]:
    """Return which packed rows of a pass need logits."""
    wanted: list[int] = []
    end = 0
    for segment in segments:
        end += len(segment.token_ids)
        wanted.extend(range(end - segment.num_logits, end))
    return wanted


@dataclass(frozen=True, kw_only=True)
class TargetOutput:
    """What a pass returns, packed in the order of its segments.

    Shapes: logits [R, V] with R the sum of num_logits, or [0, V] where greedy_ids are all that is wanted; target_hidden
    [T, M*D] or None; greedy_ids R numbers or None.
    """

    logits: Tensor
    target_hidden: Tensor | None
    greedy_ids: Sequence[int] | None = None
    """The most likely token of each row, the first of equals, where the pass found it on its way."""


class Target(Protocol):
    """A causal language model whose distribution is preserved."""

    @property
    def info(self) -> TargetInfo: ...

    @property
    def embedding_weight(self) -> Tensor:
        """Input embedding [V, D], shared with drafters that have none of their own."""
        ...

    @property
    def head_weight(self) -> Tensor:
        """Output head [V, D], shared with drafters that have none of their own."""
        ...

    def new_cache(self, capacity: int = 0) -> SequenceCache:
        """Return an empty state for one sequence, with room for `capacity` tokens."""
        ...

    def forward(self, segments: Sequence[Segment], target_layer_ids: Sequence[int] = ()) -> TargetOutput:
        """Run the rows of all segments in one pass and append them to their caches.

        `target_layer_ids` are 0-based decoder layers; their outputs (the residual stream after the layer,
        before any final norm) are concatenated along the width in the order given.
        """
        ...
