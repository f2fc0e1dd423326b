"""Who runs next: first come, first served, up to a number of sequences at once (continuous batching)."""

from __future__ import annotations

from collections import deque

from blockdraft.engine.request import SequenceState


class Scheduler:
    """Waiting and running sequences."""

    def __init__(self, max_running: int) -> None:
        self._max_running = max_running
        self._waiting: deque[SequenceState] = deque()
        self.running: list[SequenceState] = []

    @property
    def has_work(self) -> bool:
        return bool(self._waiting or self.running)

    def add(self, sequence: SequenceState) -> None:
        """Put a sequence at the end of the queue."""
        self._waiting.append(sequence)

    def admit_next(self) -> SequenceState | None:
        """Move the first waiting sequence into a free place and return it; it still needs its prefill."""
        if not self._waiting or len(self.running) >= self._max_running:
            return None
        self.running.append(self._waiting.popleft())
        return self.running[-1]

    def remove_finished(self) -> list[SequenceState]:
        """Take finished sequences out and return them."""
        finished = [sequence for sequence in self.running if sequence.is_finished]
        if finished:
            self.running = [sequence for sequence in self.running if not sequence.is_finished]
        return finished

    def cancel(self, sequence: SequenceState) -> None:
        """Forget a sequence, wherever it is."""
        self.running = [other for other in self.running if other is not sequence]
        if sequence in self._waiting:
            self._waiting.remove(sequence)
