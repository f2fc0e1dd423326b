"""Options of `blockdraft data`: what is asked, how it is answered, and by whom."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from blockdraft.cli.options import gather, section

if TYPE_CHECKING:
    from blockdraft.train.generate.dialogue import GenerationSettings
    from blockdraft.train.generate.make import DataPlan

_source = section("Prompts")
_answer = section("Answers")
_endpoint = section("Endpoint")

EXISTING_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


def _parse_mix(_ctx: click.Context, _parameter: click.Parameter, text: str) -> tuple[tuple[float, float], ...]:
    try:
        pairs = [part.partition(":") for part in text.split(",")]
        return tuple((float(temperature), float(share) if share else 1.0) for temperature, _, share in pairs)
    except ValueError as error:
        raise click.BadParameter(f"{text!r} is no mix of temperatures and shares, like 0:0.75,0.7:0.25") from error


@dataclass(frozen=True, kw_only=True)
class SourceOptions:
    """What is asked."""

    imports: tuple[Path, ...]
    self_written: int
    limit: int | None
    exclude: tuple[Path, ...]
    held_out: float

    def plan(self, prompt_files: tuple[Path, ...]) -> DataPlan:
        """Return what the folder is to hold.

        Raises:
            DataError: that is nothing, or the held-out share is no share.
        """
        from blockdraft.train.generate.make import DataPlan  # noqa: PLC0415 - it imports torch

        return DataPlan(
            prompt_files=prompt_files,
            answer_files=self.imports,
            num_self_written=self.self_written,
            limit=self.limit,
            exclude=self.exclude,
            held_out=self.held_out,
        )


@dataclass(frozen=True, kw_only=True)
class AnswerOptions:
    """How it is answered."""

    max_tokens: int
    temperatures: tuple[tuple[float, float], ...]
    top_p: float
    top_k: int
    seed: int
    system: str | None
    thinking: bool | None
    batch_size: int

    def settings(self) -> GenerationSettings:
        """Return the settings.

        Raises:
            ConfigError: a value is outside its range.
        """
        from blockdraft.train.generate.dialogue import GenerationSettings  # noqa: PLC0415 - it imports torch

        return GenerationSettings(
            max_tokens=self.max_tokens,
            temperatures=self.temperatures,
            top_p=self.top_p,
            top_k=self.top_k,
            seed=self.seed,
            system=self.system,
            thinking=self.thinking,
        )


@dataclass(frozen=True, kw_only=True)
class EndpointOptions:
    """Who answers, if not this process."""

    endpoint: str | None
    endpoint_model: str | None
    api_key_env: str


source_options = gather(
    SourceOptions,
    "source",
    [
        _source(
            "--import",
            "imports",
            metavar="PATH",
            type=EXISTING_FILE,
            multiple=True,
            help="Take over these answered prompts. Repeatable.",
        ),
        _source(
            "--self-written",
            type=click.IntRange(min=0),
            metavar="N",
            default=0,
            help="Let the model write N user messages itself.",
        ),
        _source("--limit", type=click.IntRange(min=1), metavar="N", help="Most prompts taken from the files."),
        _source(
            "--exclude",
            metavar="PATH",
            type=EXISTING_FILE,
            multiple=True,
            help="Leave out the ids in this JSON Lines file. Repeatable.",
        ),
        _source(
            "--held-out",
            type=float,
            metavar="SHARE",
            default=0.0,
            show_default=True,
            help="Set aside, never to be trained on.",
        ),
    ],
)

answer_options = gather(
    AnswerOptions,
    "answer",
    [
        _answer("-n", "--max-tokens", type=int, metavar="N", default=512, show_default=True, help="Longest answer."),
        _answer(
            "--temperatures",
            metavar="MIX",
            default="0:0.75,0.7:0.25",
            show_default=True,
            callback=_parse_mix,
            help="Temperatures and their shares; 0 is greedy.",
        ),
        _answer("--top-p", type=float, metavar="X", default=0.95, show_default=True, help="Probability mass kept."),
        _answer(
            "--top-k", type=int, metavar="N", default=50, show_default=True, help="Most likely tokens kept; 0 for all."
        ),
        _answer("--seed", type=int, metavar="N", default=0, show_default=True, help="Same seed, same answers."),
        _answer("-s", "--system", metavar="TEXT", help="System message for prompts without one."),
        _answer("--thinking/--no-thinking", default=None, help="Set the chat template's switch for thinking."),
        _answer(
            "--batch-size",
            type=click.IntRange(min=1),
            metavar="N",
            default=256,
            show_default=True,
            help="Conversations answered at once.",
        ),
    ],
)

endpoint_options = gather(
    EndpointOptions,
    "server",
    [
        _endpoint(
            "--endpoint", metavar="URL", help="Ask an OpenAI-compatible server, like http://localhost:8000/v1, instead."
        ),
        _endpoint("--endpoint-model", metavar="NAME", help="What the server calls the model.  [default: its only one]"),
        _endpoint(
            "--api-key-env",
            metavar="NAME",
            default="OPENAI_API_KEY",
            show_default=True,
            help="Environment variable that holds the key.",
        ),
    ],
)
