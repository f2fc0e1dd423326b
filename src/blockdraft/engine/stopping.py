"""Where an answer ends: end tokens, stop strings and the length limit, checked token by token.

A block can hold a stop anywhere. Each token is therefore looked at on its own, in order, and the first that
completes a stop ends the answer; what was accepted behind it is never seen. Text that could still turn out to
be the beginning of a stop string is held back from streams.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Literal, Protocol

FinishReason = Literal["stop", "length"]


class TextSource(Protocol):
    """Turns tokens into text one at a time; `blockdraft.models.tokenizer.TextStream` is one."""

    def push(self, token_id: int) -> str: ...

    def flush(self) -> str: ...


class AnswerText:
    """The visible text of one answer and the decision that it is over."""

    def __init__(
        self, source: TextSource | None, stop: Sequence[str], stop_ids: Collection[int], max_tokens: int
    ) -> None:
        self._source = source
        self._stop = stop
        self._stop_ids = stop_ids
        self._max_tokens = max_tokens
        self._held = ""
        self._num_tokens = 0
        self.finish_reason: FinishReason | None = None
        self.stopped_by: str | int | None = None
        """The stop string or the token id that ended the answer."""

    def push(self, token_id: int) -> str:
        """Take one token; return the text that is now certain to be part of the answer.

        The token that ends the answer is counted as part of it; the text of a stop is not.
        """
        assert self.finish_reason is None, "the answer is over"
        self._num_tokens += 1
        if token_id in self._stop_ids:
            return self._finish("stop", token_id, self._release(self._flush()))
        self._held += self._source.push(token_id) if self._source else ""
        if found := self._find_stop(self._held):
            start, text = found
            return self._finish("stop", text, self._held[:start])
        if self._num_tokens == self._max_tokens:
            return self._finish("length", None, self._release(self._flush()))
        return self._release()

    def _finish(self, reason: FinishReason, by: str | int | None, text: str) -> str:
        self.finish_reason, self.stopped_by = reason, by
        return text

    def _flush(self) -> str:
        return self._source.flush() if self._source else ""

    def _release(self, last: str | None = None) -> str:
        """Return the held text that cannot be part of a stop any more; all of it with the `last` piece."""
        if last is not None:
            text, self._held = self._held + last, ""
            return text
        if not self._stop:
            text, self._held = self._held, ""
            return text
        kept = max(_overlap(self._held, stop) for stop in self._stop)
        text, self._held = self._held[: len(self._held) - kept], self._held[len(self._held) - kept :]
        return text

    def _find_stop(self, text: str) -> tuple[int, str] | None:
        """Return where the stop string that is complete first begins, and the string; the longer one at a tie."""
        hits = [(start + len(stop), start, stop) for stop in self._stop if (start := text.find(stop)) >= 0]
        if not hits:
            return None
        _, start, stop = min(hits)
        return start, stop


def _overlap(text: str, stop: str) -> int:
    """Return the length of the longest end of `text` that is a beginning of `stop`, but not all of it."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
