"""Plain decoding of many sequences at once on the native kernels.

Every sequence keeps a store of its own, since the kernels attend sequence by sequence at no extra cost. The prompts
of new ones run in the same pass as the next tokens of the others. The tokens are the engine's own on these kernels,
whatever runs beside them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from blockdraft.cache.packed import PackedKVCache
from blockdraft.models.base import Segment
from blockdraft.models.packed_decoder import PackedDecoder
from blockdraft.train.generate.jobs import Completion, Job, Running, choose, refuse_history

_MOST_PROMPT_ROWS = 512
"""Prompt rows of one pass, or one prompt: they need room for logits and hidden states until it ends."""


@dataclass(frozen=True, eq=False)
class _Place:
    """A sequence and the store of all its tokens but the last."""

    sequence: Running
    cache: PackedKVCache


class PackedBatchDecoder:
    """Continues many texts together; has the face of `BatchDecoder`.

    Raises:
        UnsupportedModelError: a job asks for a way of sampling that depends on earlier tokens.
    """

    def __init__(self, target: PackedDecoder) -> None:
        self.target = target
        self._waiting: list[Job] = []
        self._running: list[_Place] = []
        self._spare: list[PackedKVCache] = []  # of ended sequences: fresh memory costs more than a pass of its rows

    @property
    def num_running(self) -> int:
        """How many sequences are not finished."""
        return len(self._running) + len(self._waiting)

    def add(self, jobs: Sequence[Job]) -> list[Completion]:
        """Take jobs; their prompts run in the next steps."""
        refuse_history(jobs)
        self._waiting += jobs
        return []

    @torch.inference_mode()
    def step(self) -> list[Completion]:
        """Add one token to every sequence, run some prompts; return the sequences that are finished by it."""
        segments = [
            Segment(token_ids=(place.sequence.last_id,), cache=place.cache, num_logits=1) for place in self._running
        ]
        for job in self._next_prompts():
            place = _Place(Running.of(job), self._empty_cache(len(job.prompt_ids) + 1))
            segments.append(Segment(token_ids=job.prompt_ids, cache=place.cache, num_logits=1))
            self._running.append(place)
        if not segments:
            return []
        output = self.target.forward(segments)
        chosen = choose([place.sequence for place in self._running], output.logits, output.greedy_ids)
        completions = [place.sequence.push(token_id) for place, token_id in zip(self._running, chosen, strict=True)]
        places, self._running = self._running, []
        for place, completion in zip(places, completions, strict=True):
            if completion is None:
                self._running.append(place)
            else:
                self._spare.append(place.cache)
        return [completion for completion in completions if completion is not None]

    def _empty_cache(self, capacity: int) -> PackedKVCache:
        """Return a store without tokens. It grows by need, as a longest answer is rarely reached."""
        if not self._spare:
            return self.target.new_cache(capacity)
        cache = self._spare.pop()
        cache.rollback(0)
        return cache

    def _next_prompts(self) -> list[Job]:
        """Take as many jobs from those that wait as one pass runs."""
        count = num_rows = 0
        for job in self._waiting:
            num_rows += len(job.prompt_ids)
            if count and num_rows > _MOST_PROMPT_ROWS:
                break
            count += 1
        taken, self._waiting = self._waiting[:count], self._waiting[count:]
        return taken
