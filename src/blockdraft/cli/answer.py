"""One request from start to end on the terminal: streamed, and stopped cleanly by Ctrl-C."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from blockdraft.cli.render import Figures

if TYPE_CHECKING:
    from collections.abc import Sequence

    from blockdraft.engine import Engine, Generation, Request, Token


class AnswerView(Protocol):
    """Shows tokens as they come."""

    def show(self, tokens: Sequence[Token]) -> None: ...

    def close(self) -> None:
        """End the answer, complete or not."""
        ...


class AnswerInterrupted(KeyboardInterrupt):
    """Ctrl-C while an answer was running; holds what came until then."""

    def __init__(self, text: str, figures: Figures) -> None:
        super().__init__()
        self.text = text
        self.figures = figures


def stream_answer(engine: Engine, request: Request, view: AnswerView) -> Generation:
    """Run a request and show what each round adds.

    Raises:
        AnswerInterrupted: Ctrl-C; the request is cancelled and the engine can be used again.
        RequestError: the engine cannot serve the request.
    """
    sequence = engine.submit(request)
    try:
        while not sequence.is_finished:
            engine.step()
            view.show(sequence.take_chunk().tokens)
    except KeyboardInterrupt:
        text = "".join(token.text for token in sequence.tokens)
        raise AnswerInterrupted(text, Figures.of_unfinished(sequence, engine.drafter_name)) from None
    finally:
        engine.cancel(sequence)
        view.close()
    return sequence.to_generation(engine.drafter_name)
