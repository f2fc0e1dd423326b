"""Are two answers the same, and if not, was it a near-tie?

A row of a verify pass and the same row computed alone are equal up to rounding, not bit by bit on every
device. Where the target's two best tokens are almost equally likely, that may tip the choice, and everything
after it differs. So a difference is judged by the target's own gap between the two tokens at that place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from blockdraft.bench.sequences import num_common
from blockdraft.core.sampling import SamplingParams, TokenCounts, shape_logits
from blockdraft.models.base import Segment, Target

NEAR_TIE_GAP = 0.05
"""Two tokens whose log-probabilities differ by less than this (in nat) are nearly tied."""

_CHUNK = 512


@dataclass(frozen=True, kw_only=True)
class Difference:
    """The first place where two answers part."""

    position: int
    """Index into the answers: all tokens before it are equal."""
    plain_id: int | None
    """The token of plain decoding; None if its answer ends here."""
    other_id: int | None
    """The other answer's token; None if it ends here."""
    gap: float | None
    """How far apart the target's logits of the two tokens are, in nat; None if one of the answers ends here, or
    if the answers are sampled: a draw is tipped at the edge of an interval, not where two logits meet."""

    @property
    def is_near_tie(self) -> bool:
        """True if rounding explains the difference. An answer that merely ends earlier is never a near-tie."""
        return self.gap is not None and self.gap < NEAR_TIE_GAP

    def to_dict(self) -> dict[str, object]:
        """Return the difference as plain data."""
        return asdict(self) | {"is_near_tie": self.is_near_tie}


def first_difference(
    target: Target,
    prompt_ids: Sequence[int],
    plain_ids: Sequence[int],
    other_ids: Sequence[int],
    *,
    sampling: SamplingParams | None = None,
) -> Difference | None:
    """Return where two greedy answers part and how close the target's choice was there; None if they are equal.

    The target is run once over the prompt and what the answers have in common. The gap is that of the logits
    which the choice was made from: with the bias and penalties of `sampling`, if given.
    """
    position = num_common(plain_ids, other_ids)
    if position == len(plain_ids) == len(other_ids):
        return None
    plain_id = plain_ids[position] if position < len(plain_ids) else None
    other_id = other_ids[position] if position < len(other_ids) else None
    gap = None
    if plain_id is not None and other_id is not None:
        row = teacher_forced_row(target, prompt_ids, plain_ids[:position], sampling or SamplingParams())
        gap = abs(float(row[plain_id] - row[other_id]))
    return Difference(position=position, plain_id=plain_id, other_id=other_id, gap=gap)


@torch.inference_mode()
def teacher_forced_row(
    target: Target, prompt_ids: Sequence[int], answer_ids: Sequence[int], sampling: SamplingParams
) -> Tensor:
    """Return the logits that follow prompt and answer, biased and penalised. Shapes: returns [V], at least float32."""
    token_ids = [*prompt_ids, *answer_ids]
    cache = target.new_cache(len(token_ids))
    for start in range(0, len(token_ids), _CHUNK):
        output = target.forward([Segment(token_ids=token_ids[start : start + _CHUNK], cache=cache, num_logits=1)])
    logits = output.logits if output.logits.dtype == torch.float64 else output.logits.float()
    counts = None
    if sampling.has_penalties:
        counts = TokenCounts(prompt_ids, target.info.vocab_size, logits.device)
        counts.add(answer_ids)
    return shape_logits(logits, sampling, counts)[0]
