"""DSpark's walk through a block on the native kernels, where every request is greedy.

The walk is a chain of small products, in which torch spends more time on calls than on arithmetic.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from blockdraft.drafters.block_config import BlockDraftConfig
from blockdraft.drafters.block_runner import BlockRunner, Blocks, PackedRunner, packed_floats, round_for_drafts
from blockdraft.drafters.markov import MarkovHead
from blockdraft.runtime.native_core import Walk
from blockdraft.runtime.quantized import GROUP


class PackedWalk:
    """The plain Markov head with weights rounded to four bits, behind the network it belongs to."""

    def __init__(self, head: MarkovHead, runner: PackedRunner, target_ids: Tensor | None) -> None:
        self._runner = runner
        kept = runner.open_kept("walk")
        self._w1 = torch.from_numpy(packed_floats(head.w1))
        self._w2 = kept.matrix("w2", lambda: round_for_drafts(head.w2))
        kept.keep()
        ids = torch.arange(len(head.w2)) if target_ids is None else target_ids
        self._target_ids = ids.to(torch.int32)

    def choose(self, blocks: Blocks, counts: Sequence[int], anchors: Sequence[int]) -> tuple[Tensor, list[list[int]]]:
        """Run the blocks and choose each sequence's draft tokens, in one call.

        `counts` are the draft tokens of each sequence, `anchors` their last tokens.

        Shapes: returns a buffer whose first rows are the hidden states [T, D] of all slots until the next call, and the
        target's ids.
        """
        walk = Walk(w1=self._w1, w2=self._w2, target_ids=self._target_ids, counts=counts, previous_ids=anchors)
        return self._runner.choose(blocks, walk)


def make_packed_walk(
    config: BlockDraftConfig, head: MarkovHead | None, runner: BlockRunner, target_ids: Tensor | None
) -> PackedWalk | None:
    """Return the walk on the kernels that run the network; None where torch runs it, or has to walk."""
    is_plain = type(head) is MarkovHead and head.w1.shape[1] % GROUP == 0
    is_plain = is_plain and config.output_multiplier == 1.0 and not config.logit_softcap
    if not is_plain or not isinstance(runner, PackedRunner):
        return None
    assert head is not None
    return PackedWalk(head, runner, target_ids)
