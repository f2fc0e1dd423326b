"""What the target keeps of a draft: greedy, `match` and `rejection`. Each is exact.

Row j of a verify pass holds the target's distribution after the first j draft tokens, so K draft tokens have
K + 1 rows. All three rules keep a prefix of the draft and add one token of the target:

- greedy keeps a draft token that is the row's argmax;
- `match` draws a token from every row and keeps the drafts that agree with the draws. What is emitted are the
  target's own draws, so nothing about the draft can bend the distribution. It keeps a token with probability
  sum(p * q);
- `rejection` keeps draft token x with probability min(1, p(x) / q(x)) and, at the first that is not kept, draws
  from the positive part of p - q. It keeps a token with probability sum(min(p, q)), the most that any rule can.

(p is the target's distribution, q the draft's; Chen et al. swap the letters.) Greedy and `match` only compare
token ids, so they share `verify_choices`.

Shape legend: K draft tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from blockdraft.core.random import Draw
from blockdraft.core.sampling import sample_rows

NextKind = Literal["bonus", "recovered", "plain"]


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The outcome of a round for one sequence."""

    num_accepted: int
    next_id: int
    """The target's own token after the accepted drafts."""
    next_kind: NextKind
    """`bonus` after full acceptance, `recovered` after a rejection, `plain` if nothing was drafted."""

    @classmethod
    def of(cls, num_drafted: int, num_accepted: int, next_id: int) -> Verdict:
        """Return the verdict; its `next_kind` follows from the two counts."""
        kind: NextKind = "plain" if num_drafted == 0 else "bonus" if num_accepted == num_drafted else "recovered"
        return cls(num_accepted=num_accepted, next_id=next_id, next_kind=kind)


def verify_choices(choice_ids: Sequence[int], draft_ids: Sequence[int]) -> Verdict:
    """Keep the drafts that equal the target's choice in their row; the first other choice comes next.

    `choice_ids` holds the argmax (greedy) or a draw (`match`) of each of the K + 1 rows.
    """
    num_accepted = 0
    while num_accepted < len(draft_ids) and choice_ids[num_accepted] == draft_ids[num_accepted]:
        num_accepted += 1
    return Verdict.of(len(draft_ids), num_accepted, choice_ids[num_accepted])


def verify_rejection(
    target_probs: Tensor, draft_probs: Tensor | None, draft_ids: Tensor, uniforms: Tensor
) -> tuple[Tensor, Tensor]:
    """Speculative sampling; the results stay on the device so that a round has one synchronisation.

    Shapes: target_probs [K+1, V]; draft_probs [K, V], the distribution each draft token was drawn from, or None
    for tokens that were chosen deterministically; draft_ids [K]; uniforms [K+1, 4] in the order of `Draw`.
    Returns (num_accepted, next_id), two 0-d integer tensors.
    Ref: arXiv:2211.17192, Alg. 1; arXiv:2302.01318, Alg. 2.
    """
    num_drafts = len(draft_ids)
    picked = draft_ids[:, None]
    p = target_probs[:num_drafts].gather(1, picked)[:, 0]
    q = torch.ones_like(p) if draft_probs is None else draft_probs.to(p).gather(1, picked)[:, 0]
    kept = uniforms[:num_drafts, Draw.ACCEPT].to(p) * q < p
    num_accepted = kept.long().cumprod(0).sum()
    # index_select, as indexing by a 0-d tensor asks the device for the number.
    row = target_probs.index_select(0, num_accepted[None])[0]
    residual = _residual(row, draft_probs, draft_ids, num_accepted)
    is_bonus = num_accepted == num_drafts
    draws = uniforms.index_select(0, num_accepted[None])[0]
    draw = torch.where(is_bonus, draws[Draw.TARGET], draws[Draw.RESIDUAL])
    next_id = sample_rows(torch.where(is_bonus, row, residual)[None], draw[None])[0]
    return num_accepted, next_id


def _residual(row: Tensor, draft_probs: Tensor | None, draft_ids: Tensor, num_accepted: Tensor) -> Tensor:
    """Return the positive part of p - q in the row of the first rejection, up to a factor; any row if there is none.

    Shapes: row [V]; returns [V].
    """
    if not len(draft_ids):
        return row
    slot = num_accepted.clamp(max=len(draft_ids) - 1)[None]
    if draft_probs is None:
        residual = row.index_fill(0, draft_ids.index_select(0, slot), 0.0)
    else:
        residual = (row - draft_probs.index_select(0, slot)[0].to(row)).clamp(min=0)
    # p = q everywhere cannot be rejected but by rounding; then the target's row is what is left to draw from.
    return torch.where(residual.sum() > 0, residual, row)
