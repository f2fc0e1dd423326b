"""DSpark's walk through a block on the native kernels, where every request is greedy.

The walk is a chain of small products, in which torch spends more time on calls than on arithmetic.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from blockdraft.drafters.block_runner import BlockRunner, PackedRunner, packed_floats, round_for_drafts
from blockdraft.drafters.markov import MarkovHead
from blockdraft.runtime.quantized import GROUP


class PackedWalk:
    """The plain Markov head with weights rounded to four bits."""

    def __init__(self, head: MarkovHead, runner: PackedRunner, target_ids: Tensor | None) -> None:
        self._core = runner.core
        kept = runner.open_kept("walk")
        self._w1 = torch.from_numpy(packed_floats(head.w1))
        self._w2 = kept.matrix("w2", lambda: round_for_drafts(head.w2))
        kept.keep()
        ids = torch.arange(len(head.w2)) if target_ids is None else target_ids
        self._target_ids = ids.to(torch.int32)

    def choose(self, logits: Tensor, counts: Sequence[int], anchors: Sequence[int]) -> list[list[int]]:
        """Return the target's ids of each sequence's draft tokens.

        Shapes: logits [T, U] with T the sum of counts; anchors, the last token of each sequence.
        """
        return self._core.walk(
            self._w1,
            self._w2,
            logits=logits,
            counts=counts,
            previous_ids=anchors,
            target_ids=self._target_ids,
        )


def make_packed_walk(head: MarkovHead | None, runner: BlockRunner, target_ids: Tensor | None) -> PackedWalk | None:
    """Return the walk on the kernels that run the network; None where torch runs it, or has to walk."""
    is_plain = type(head) is MarkovHead and head.w1.shape[1] % GROUP == 0
    if not is_plain or not isinstance(runner, PackedRunner):
        return None
    assert head is not None
    return PackedWalk(head, runner, target_ids)
