"""What the benchmarks of drafters share: drafters named on the command line, and prompts in named groups."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from blockdraft.drafters.config import NGRAM_TYPES, NgramMod, SpecConfig
from blockdraft.engine import Engine
from blockdraft.engine.load import DEFAULT_SPEC, default_spec_for, make_engine
from blockdraft.engine.workloads import Workload, pick, read_workloads
from blockdraft.errors import ConfigError
from blockdraft.models.load import LoadedModel
from common import make_parser, say, workloads

SHORT_MOD = NgramMod(n_match=3, n_min=1, n_max=15)
"""llama.cpp's defaults (24 tokens must match, drafts under 48 are dropped) hardly ever draft on short answers."""


_OPTIONS = {"n_max", "p_min", "size_m", "policy"}


def make_drafter_parser(description: str | None, *, num_prompts: int, max_tokens: int) -> argparse.ArgumentParser:
    """Return a parser with the options of all benchmarks, and those that name drafters and groups of prompts."""
    parser = make_parser(description, num_prompts=num_prompts, max_tokens=max_tokens)
    parser.add_argument(
        "--drafter",
        action="append",
        required=True,
        metavar="NAME=WHO",
        help="a drafter and what to call it, repeatable; WHO is a draft model's reference, an n-gram kind, or both "
        "with a comma between them, which makes a chain; ';n_max=3;p_min=0.4;size_m=7;policy=fixed' behind it sets "
        "options; 'default' is what drafts when nothing is asked for",
    )
    parser.add_argument("--n-max", type=int, default=7, help="most tokens of a model's draft (default: %(default)s)")
    parser.add_argument(
        "--group",
        action="append",
        metavar="NAME=FILE",
        help="prompts that count as one group, repeatable; instead of --prompts, whose categories are the groups",
    )
    parser.set_defaults(runtime="auto")
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.0, 0.7])
    return parser


def named_engines(args: argparse.Namespace, loaded: LoadedModel) -> dict[str, Engine]:
    """Return an engine for each named drafter."""
    engines = {}
    for name, who in (_named(item, "--drafter") for item in args.drafter):
        say(f"loading {name}: {who}")
        members, *options = who.split(";")
        if members == "default":
            spec = default_spec_for(args.model)
        else:
            spec = _spec_of(members.split(","), dict(_named(option, "an option") for option in options), args.n_max)
        engines[name] = make_engine(loaded, spec, notify=say)
    return engines


def grouped_workloads(args: argparse.Namespace) -> list[Workload]:
    """Return the prompts, the group of each in its category; as many from each group."""
    if not args.group:
        return workloads(args)
    share = -(-args.num_prompts // len(args.group))
    return [
        replace(workload, category=name)
        for name, file in (_named(item, "--group") for item in args.group)
        for workload in pick(read_workloads(Path(file)), share)
    ]


def _spec_of(members: Sequence[str], options: dict[str, str], n_max: int) -> SpecConfig:
    kinds = [member for member in members if member in NGRAM_TYPES]
    models = [member for member in members if member not in NGRAM_TYPES]
    if len(models) > 1:
        raise ConfigError(f"there is one draft model in a chain, not {len(models)}: {', '.join(models)}")
    if unknown := options.keys() - _OPTIONS:
        known = ", ".join(sorted(_OPTIONS))
        raise ConfigError(f"unknown option of a drafter: {', '.join(sorted(unknown))}; there are {known}")
    ngram_simple = DEFAULT_SPEC.ngram_simple
    return SpecConfig(
        types=(*kinds, *(["auto"] if models else [])),
        draft_model=models[0] if models else None,
        n_max=int(options.get("n_max", n_max)) if models and options.get("policy", "fixed") == "fixed" else None,
        p_min=float(options.get("p_min", 0)) if models else 0.0,
        policy=options.get("policy", "fixed"),  # type: ignore[arg-type]
        ngram_mod=SHORT_MOD,
        ngram_simple=replace(ngram_simple, size_m=int(options.get("size_m", ngram_simple.size_m))),
    )


def _named(item: str, option: str) -> tuple[str, str]:
    name, _, value = item.partition("=")
    if not name or not value:
        raise ConfigError(f"{option} takes NAME=VALUE, not {item!r}")
    return name, value
