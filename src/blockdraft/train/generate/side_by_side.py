"""Several batch decoders at once on a CPU, behind the face of one. See `train.lanes` for why."""

from __future__ import annotations

from collections.abc import Sequence

from blockdraft.models.decoder import Decoder
from blockdraft.train.generate.batched import BatchDecoder
from blockdraft.train.generate.jobs import Completion, Job
from blockdraft.train.lanes import open_lanes


class SideBySideDecoder:
    """As many `BatchDecoder`s as there are lanes."""

    def __init__(self, target: Decoder, group_size: int, num_decoders: int) -> None:
        self._lanes = [_Lane(BatchDecoder(target, group_size)) for _ in range(num_decoders)]
        self._pool = open_lanes(num_decoders)

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

    def step(self) -> list[Completion]:
        completions: list[Completion] = []
        for jobs in self.waiting:
            completions += self.decoder.add(jobs)
        self.waiting.clear()
        return completions + self.decoder.step()
