"""`blockdraft chat`: a conversation."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import click

from blockdraft.cli.answer import AnswerInterrupted, stream_answer
from blockdraft.cli.loading import check_options, load_engine, model_reference
from blockdraft.cli.model_options import ModelOptions, model_options, runtime_option
from blockdraft.cli.options import SectionedCommand, debug_option, section
from blockdraft.cli.record import print_json, run_record
from blockdraft.cli.render import Figures, PlainView, RoundsView
from blockdraft.cli.sampling_options import SamplingOptions, sampling_options
from blockdraft.cli.speculation_options import SpeculationOptions, speculation_options
from blockdraft.cli.terminal import last_line, stderr_console
from blockdraft.errors import ContextLengthError, RequestError, nearest_name

if TYPE_CHECKING:
    from blockdraft.engine import Engine
    from blockdraft.models.load import Runtime

_PROMPT = "> "
_HELP = """\
/system TEXT  set the system message (without TEXT: remove it) and forget the conversation
/reset        forget the conversation
/stats        figures of all answers so far
/help         this list
/exit         leave (so does Ctrl-D); Ctrl-C stops an answer"""

_output = section("Output")


@click.command("chat", cls=SectionedCommand)
@_output("--json", "as_json", is_flag=True, help="Print one JSON object per answer, each on a line of its own.")
@_output("--show-rounds", is_flag=True, help="Colour every token by its round and by how it came.")
@model_options
@runtime_option
@sampling_options
@speculation_options
@debug_option
def command(
    *,
    as_json: bool,
    show_rounds: bool,
    model: ModelOptions,
    runtime: Runtime,
    sampling: SamplingOptions,
    speculation: SpeculationOptions,
) -> None:
    """Talk with the model; it remembers the conversation.

    /help lists the commands inside. From a pipe, every line is a turn.

    \b
    blockdraft chat --system "Answer in one sentence."
    """  # noqa: D301 - click wants the character itself
    if as_json and show_rounds:
        raise click.UsageError("--show-rounds is for readers; --json holds the round of every token already")
    engine = load_engine(model, check_options(model, speculation, sampling), runtime)
    chat = _Chat(
        engine=engine,
        reference=model_reference(model),
        sampling=sampling,
        as_json=as_json,
        show_rounds=show_rounds,
        is_interactive=_is_terminal(),
    )
    chat.run()


def _is_terminal() -> bool:
    return sys.stdin.isatty()


@dataclass(kw_only=True)
class _Chat:
    """A conversation and what is remembered of it."""

    engine: Engine
    reference: str
    sampling: SamplingOptions
    as_json: bool
    show_rounds: bool
    is_interactive: bool
    messages: list[dict[str, str]] = field(default_factory=list)
    figures: list[Figures] = field(default_factory=list)

    def run(self) -> None:
        """Serve turns until the input ends or somebody leaves."""
        if self.is_interactive:
            self._greet()
        for line in self._lines():
            if line == "/exit":
                return
            if line.startswith("/"):
                self._obey(line)
            elif line:
                self._answer(line)

    def _greet(self) -> None:
        info = self.engine.target.info
        name = self.engine.tokenizer.name if self.engine.tokenizer else self.reference
        drafter = self.engine.drafter_name or "nobody (plain decoding)"
        dtype = str(info.dtype).removeprefix("torch.")
        self._tell(f"{name}, {info.family}, {info.quantization}, in {dtype} on {info.device}; drafter: {drafter}")
        self._tell("/help lists the commands, Ctrl-D leaves")
        if self.show_rounds:
            stderr_console().print(RoundsView().legend())

    def _lines(self) -> Iterator[str]:
        """Yield the user's lines."""
        if not self.is_interactive:
            yield from (line.strip() for line in sys.stdin)
            return
        with suppress(ImportError):  # not on Windows, where the console edits lines itself
            import readline  # noqa: F401, PLC0415 - `input` uses it when it is imported
        while True:
            try:
                yield input(_PROMPT).strip()
            except KeyboardInterrupt:
                self._tell("\n/exit or Ctrl-D leaves")
            except EOFError:
                self._tell("")
                return

    def _obey(self, line: str) -> None:
        name, _, rest = line.partition(" ")
        if name == "/help":
            self._tell(_HELP)
        elif name == "/reset":
            self.messages.clear()
            self._tell("the conversation is forgotten")
        elif name == "/system":
            self.sampling = replace(self.sampling, system=rest.strip() or None)
            self.messages.clear()
            self._tell("the system message is set" if rest.strip() else "the system message is removed")
        elif name == "/stats":
            self._tell(self._stats())
        else:
            known = ("/system", "/reset", "/stats", "/help", "/exit")
            self._tell(f"there is no command {name}{nearest_name(name, known)}; /help lists them")

    def _answer(self, text: str) -> None:
        """Serve one turn; what cannot be served leaves the conversation as it was."""
        self.messages.append({"role": "user", "content": text})
        try:
            answer = self._generate()
        except AnswerInterrupted as interrupt:
            if not self.is_interactive:
                raise
            self._finish(interrupt.figures)
            answer = interrupt.text
        except RequestError as error:
            self.messages.pop()
            hint = "; /reset forgets the conversation" if isinstance(error, ContextLengthError) else ""
            if not self.is_interactive:
                raise
            self._tell(f"{error}{hint}")
            return
        self.messages.append({"role": "assistant", "content": answer})

    def _generate(self) -> str:
        request = self.sampling.request(self.engine, self.messages)
        if self.as_json:
            [generation] = self.engine.run([request])
            print_json(run_record(self.engine, self.reference, request, generation), indent=None)
            self.figures.append(Figures.of(generation))
        else:
            generation = stream_answer(self.engine, request, RoundsView() if self.show_rounds else PlainView())
            self._finish(Figures.of(generation))
        return generation.text

    def _finish(self, figures: Figures) -> None:
        self.figures.append(figures)
        last_line(figures.line())
        if self.is_interactive:
            self._tell("")

    def _stats(self) -> str:
        if not self.figures:
            return "there is no answer yet"
        return Figures.total(self.figures).line()

    def _tell(self, text: str) -> None:
        stderr_console().print(text, style="dim", markup=False)
