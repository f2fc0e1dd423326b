"""Texts to be continued, what became of them, and how the next token of each is chosen, whatever computes them."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from blockdraft.core.random import Draw, PositionalRandom
from blockdraft.core.sampling import SamplingParams, greedy_ids, sample_rows, shape_probs
from blockdraft.errors import UnsupportedModelError


@dataclass(frozen=True, kw_only=True)
class Job:
    """One text to be continued."""

    key: Hashable
    """Tells the caller which one it was."""
    prompt_ids: Sequence[int]
    max_tokens: int
    sampling: SamplingParams
    sample_index: int
    """With the seed of `sampling`, fixes every draw."""
    stop_ids: frozenset[int]


@dataclass(frozen=True, kw_only=True)
class Completion:
    """What became of a job."""

    key: Hashable
    token_ids: tuple[int, ...]
    """Without the token that ended it."""
    finish: Literal["stop", "length"]


@dataclass(eq=False)
class Running:
    """One text so far; a cache holds all its tokens but the last."""

    job: Job
    random: PositionalRandom
    last_id: int = -1
    answer: list[int] = field(default_factory=list)

    @classmethod
    def of(cls, job: Job) -> Running:
        """Begin a job."""
        return cls(job, PositionalRandom(job.sampling.seed, job.sample_index))

    @property
    def num_stored(self) -> int:
        return len(self.job.prompt_ids) + len(self.answer) - 1

    def push(self, token_id: int) -> Completion | None:
        """Take one token; return the completion if it was the last."""
        if token_id in self.job.stop_ids:
            return Completion(key=self.job.key, token_ids=tuple(self.answer), finish="stop")
        self.answer.append(token_id)
        self.last_id = token_id
        if len(self.answer) == self.job.max_tokens:
            return Completion(key=self.job.key, token_ids=tuple(self.answer), finish="length")
        return None


def refuse_history(jobs: Sequence[Job]) -> None:
    """Check that no job's choices depend on earlier tokens.

    Raises:
        UnsupportedModelError: one's do.
    """
    if any(job.sampling.has_penalties or job.sampling.logit_bias for job in jobs):
        raise UnsupportedModelError("batched generation has no penalties and no logit bias; leave them at 0")


def choose(sequences: Sequence[Running], logits: Tensor, greedy: Sequence[int] | None = None) -> list[int]:
    """Return the next token of each sequence, as the engine chooses it.

    Shapes: logits [B, V]; greedy B, where they are largest, if that is known.
    """
    chosen = greedy_ids(logits) if greedy is None else torch.tensor(greedy, device=logits.device)
    sampled: dict[tuple[float, ...], list[int]] = {}
    for row, sequence in enumerate(sequences):
        sampling = sequence.job.sampling
        if not sampling.is_greedy:
            shape = (sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p)
            sampled.setdefault(shape, []).append(row)
    for rows in sampled.values():
        uniforms = [sequences[row].random.uniform(sequences[row].num_stored + 1, Draw.TARGET) for row in rows]
        index = torch.tensor(rows, device=logits.device)
        probs = shape_probs(logits[index], sequences[rows[0]].job.sampling)
        chosen[index] = sample_rows(probs, torch.tensor(uniforms, dtype=torch.float64, device=logits.device))
    ids: list[int] = chosen.tolist()
    return ids
