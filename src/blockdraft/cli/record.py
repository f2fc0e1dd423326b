"""What --json says about a run: everything that is needed to repeat it, and everything that came of it."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from blockdraft import __version__
from blockdraft.cli.options import ARGUMENTS_KEY

if TYPE_CHECKING:
    from blockdraft.engine import Engine, Generation, Request


def run_record(engine: Engine, reference: str, request: Request, generation: Generation) -> dict[str, Any]:
    """Return settings and result of one answer as plain data."""
    return {
        "blockdraft": __version__,
        "command": click.get_current_context().meta.get(ARGUMENTS_KEY),
        "model": {
            "reference": reference,
            "tokenizer": engine.tokenizer.name if engine.tokenizer else None,
            **asdict(engine.target.info),
        },
        "spec": engine.spec.to_dict(),
        "drafter": engine.drafter.describe() if engine.drafter else None,
        "sampling": request.sampling.to_dict(),
        "request": {
            "max_tokens": request.max_tokens,
            "stop": list(request.stop),
            "stop_ids": sorted(request.stop_ids),
            "logprobs": request.logprobs,
        },
        "generation": generation.to_dict(),
    }


def print_json(data: dict[str, Any], *, indent: int | None = 2) -> None:
    """Print one JSON object to standard output; types and devices of torch are written by their names."""
    click.echo(json.dumps(data, ensure_ascii=False, indent=indent, default=str))
