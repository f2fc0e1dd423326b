"""Does a drafter that was written and loaded back draft as the one that was given?

Both read the same features of the target, recorded once while it answered a few prompts, and are asked at the
same places. Drafts are compared, not logits: they are what a rounding error or a swapped tensor would change.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from blockdraft.core.random import PositionalRandom
from blockdraft.core.sampling import SamplingParams
from blockdraft.drafters.base import Ask, Drafter, Observation, Proposal
from blockdraft.drafters.dflash import DFlashDrafter
from blockdraft.drafters.draft_checkpoint import DraftCheckpoint
from blockdraft.drafters.dspark import DSparkDrafter
from blockdraft.engine import Engine
from blockdraft.models.base import Segment, Target
from blockdraft.models.load import LoadedModel

PROMPTS = (
    "Why is the sky blue?",
    "Write a function that reverses a list.",
    "If 3 pens cost 6 dollars, what do 7 pens cost?",
    "Name three rivers in Europe.",
)
_MAX_TOKENS = 32
_STRIDE = 3
"""Drafts are asked for at every third token, so that blocks of several lengths of context are seen."""


@dataclass(frozen=True, kw_only=True)
class Recording:
    """An answer of the target and what its tapped layers said. Shapes: target_hidden [T, M*D]."""

    token_ids: tuple[int, ...]
    num_prompt: int
    target_hidden: Tensor


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Greedy drafts of two drafters, asked at the same places."""

    num_proposals: int
    num_tokens: int
    num_equal_tokens: int
    """Tokens that agree, and all before them in their proposal."""
    is_exact: bool
    """True if every token and every confidence is the same."""

    @property
    def share_equal(self) -> float:
        return self.num_equal_tokens / self.num_tokens if self.num_tokens else 1.0

    def to_dict(self) -> dict[str, object]:
        """Return counters and the share as plain data."""
        return asdict(self) | {"share_equal": self.share_equal}


def record(target: LoadedModel, layer_ids: Sequence[int], prompts: Sequence[str] = PROMPTS) -> list[Recording]:
    """Let the target answer the prompts and keep the states of its layers.

    Answers are sampled: a target that repeats itself would ask for the same draft again and again.
    """
    engine = Engine(target.target, target.tokenizer)
    recordings = []
    sampling = SamplingParams(temperature=1.0, seed=0)
    for answer in engine.generate_batch(prompts, max_tokens=_MAX_TOKENS, ignore_eos=True, sampling=sampling):
        token_ids = (*answer.prompt_ids, *answer.token_ids)
        segment = Segment(token_ids=token_ids, cache=target.target.new_cache(len(token_ids)), num_logits=1)
        with torch.inference_mode():
            hidden = target.target.forward([segment], layer_ids).target_hidden
        assert hidden is not None
        recordings.append(Recording(token_ids=token_ids, num_prompt=len(answer.prompt_ids), target_hidden=hidden))
    return recordings


def draft(checkpoint: DraftCheckpoint, target: Target, recordings: Sequence[Recording]) -> list[Proposal]:
    """Return what a drafter proposes, greedily, along recorded answers."""
    drafter: Drafter
    if checkpoint.config.kind == "draft-dspark":
        drafter = DSparkDrafter(checkpoint, target, with_confidence=checkpoint.config.confidence_head != "none")
    else:
        drafter = DFlashDrafter(checkpoint, target)
    proposals = []
    for recording in recordings:
        token_ids, state, done = recording.token_ids, drafter.begin(recording.token_ids), 0
        for anchor in range(recording.num_prompt, len(token_ids), _STRIDE):
            seen = Observation(
                committed_ids=token_ids[done + 1 : anchor + 1], target_hidden=recording.target_hidden[done:anchor]
            )
            drafter.observe(state, seen)
            ask = Ask(
                state=state,
                token_ids=token_ids[: anchor + 1],
                num_draft_tokens=drafter.traits.max_draft_tokens,
                sampling=SamplingParams(),
                random=PositionalRandom(0),
            )
            proposals += drafter.propose([ask])
            done = anchor
    return proposals


def compare(expected: Sequence[Proposal], found: Sequence[Proposal]) -> Comparison:
    """Count the draft tokens that are the same."""
    num_equal = 0
    for ours, theirs in zip(expected, found, strict=True):
        for left, right in zip(ours.draft_ids, theirs.draft_ids, strict=True):
            if left != right:
                break
            num_equal += 1
    return Comparison(
        num_proposals=len(expected),
        num_tokens=sum(map(len, expected)),
        num_equal_tokens=num_equal,
        is_exact=all(
            (ours.draft_ids, ours.confidence) == (theirs.draft_ids, theirs.confidence)
            for ours, theirs in zip(expected, found, strict=True)
        ),
    )
