"""Several batch decoders at once on a CPU, each on one thread of its own.

A step over a hundred sequences is mostly attention and small operations, which gain little from a second torch
thread; two decoders with half of the sequences each gain nearly all of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import torch

from blockdraft.models.decoder import Decoder
from blockdraft.train.generate.batched import BatchDecoder, Completion, Job


class SideBySideDecoder:
    """As many `BatchDecoder`s as torch has threads, behind the face of one."""

    def __init__(self, target: Decoder, group_size: int, num_decoders: int) -> None:
        self._lanes = [_Lane(BatchDecoder(target, group_size)) for _ in range(num_decoders)]
        num_threads = torch.get_num_threads()
        self._pool = ThreadPoolExecutor(num_decoders, initializer=torch.set_num_threads, initargs=(1,))
        list(self._pool.map(_Lane.touch, self._lanes))
        torch.set_num_threads(num_threads)

    @property
    def num_running(self) -> int:
        """How many sequences are not finished."""
        return sum(lane.num_running for lane in self._lanes)

    def add(self, jobs: Sequence[Job]) -> list[Completion]:
        """Give the jobs to whoever has the fewest; their prompts run in the next step."""
        min(self._lanes, key=lambda lane: lane.num_running).waiting.append(jobs)
        return []

    def step(self) -> list[Completion]:
        """Add one token to every sequence; return those that are finished by it."""
        return [completion for found in self._pool.map(_Lane.step, self._lanes) for completion in found]


class _Lane:
    """One decoder, and what it will add before its next step."""

    def __init__(self, decoder: BatchDecoder) -> None:
        self.decoder = decoder
        self.waiting: list[Sequence[Job]] = []

    @property
    def num_running(self) -> int:
        return self.decoder.num_running + sum(map(len, self.waiting))

    def touch(self) -> None:
        """Do nothing: a pool starts a thread with its first task."""

    def step(self) -> list[Completion]:
        completions: list[Completion] = []
        for jobs in self.waiting:
            completions += self.decoder.add(jobs)
        self.waiting.clear()
        return completions + self.decoder.step()
