"""Options that say how the answer is chosen and where it ends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

import blockdraft
from blockdraft.cli.options import gather, section

if TYPE_CHECKING:
    from blockdraft.engine import Engine, Prompt, Request

_option = section("Answer")


def _parse_biases(
    _ctx: click.Context, _parameter: click.Parameter, texts: tuple[str, ...]
) -> tuple[tuple[int, float], ...]:
    return tuple(_parse_bias(text) for text in texts)


def _parse_bias(text: str) -> tuple[int, float]:
    token_id, _, bias = text.partition("=")
    try:
        return int(token_id), float(bias)
    except ValueError as error:
        raise click.BadParameter(f"{text!r} is not a token id and a number, like 42=-1.5") from error


@dataclass(frozen=True, kw_only=True)
class SamplingOptions:
    """How the answer is chosen and where it ends."""

    system: str | None
    max_tokens: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: tuple[tuple[int, float], ...]
    seed: int
    stop: tuple[str, ...]
    ignore_eos: bool
    logprobs: bool

    def params(self) -> blockdraft.SamplingParams:
        """Return the sampling parameters.

        Raises:
            ConfigError: a value is outside its range.
        """
        return blockdraft.SamplingParams(
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
            repetition_penalty=self.repetition_penalty,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            logit_bias=dict(self.logit_bias),
            seed=self.seed,
        )

    def request(self, engine: Engine, prompt: Prompt, *, raw: bool = False) -> Request:
        """Return the request that asks `prompt` with these options.

        Raises:
            RequestError: an option cannot be honoured with this model.
        """
        return engine.request(
            prompt,
            max_tokens=self.max_tokens,
            sampling=self.params(),
            stop=self.stop,
            ignore_eos=self.ignore_eos,
            logprobs=self.logprobs,
            system=self.system,
            raw=raw,
        )


sampling_options = gather(
    SamplingOptions,
    "sampling",
    [
        _option("-s", "--system", metavar="TEXT", help="System message."),
        _option(
            "-n",
            "--max-tokens",
            type=click.IntRange(min=1),
            metavar="N",
            default=256,
            show_default=True,
            help="Longest answer.",
        ),
        _option("-t", "--temperature", type=float, metavar="X", default=0.0, show_default=True, help="0 is greedy."),
        _option(
            "--top-k", type=int, metavar="N", default=0, show_default=True, help="Most likely tokens kept; 0 for all."
        ),
        _option("--top-p", type=float, metavar="X", default=1.0, show_default=True, help="Probability mass kept."),
        _option(
            "--min-p", type=float, metavar="X", default=0.0, show_default=True, help="Least share of the best token's."
        ),
        _option(
            "--repetition-penalty", type=float, metavar="X", default=1.0, show_default=True, help="Divides; 1 for none."
        ),
        _option(
            "--presence-penalty",
            type=float,
            metavar="X",
            default=0.0,
            show_default=True,
            help="Subtracted once per token.",
        ),
        _option(
            "--frequency-penalty",
            type=float,
            metavar="X",
            default=0.0,
            show_default=True,
            help="Subtracted per occurrence.",
        ),
        _option(
            "--logit-bias",
            metavar="ID=BIAS",
            multiple=True,
            callback=_parse_biases,
            help="Add BIAS to a token's logit. Repeatable.",
        ),
        _option(
            "--seed", type=int, metavar="N", default=0, show_default=True, help="The same seed gives the same answer."
        ),
        _option("--stop", metavar="TEXT", multiple=True, help="End the answer before TEXT. Repeatable."),
        _option("--ignore-eos", is_flag=True, help="Go on after the model's own end token."),
        _option("--logprobs", is_flag=True, help="Log-probabilities: each in --json, their mean in the last line."),
    ],
)
