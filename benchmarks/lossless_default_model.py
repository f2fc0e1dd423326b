"""Greedy answers of the default model with each drafter against plain decoding, token by token.

Only near-ties may differ (the target's own gap between the two tokens is below 0.05 nat); they are counted and
shown. Anything else is a failure and exit code 1. With `--bitwise`, which the native runtime promises, a near-tie
is a failure too. `--batch-sizes 1 4` runs each case with one request at a time and with four. Random drafters are
rejected nearly always, the scripted one is right for a number of slots that changes from round to round, so that
rollbacks of every length occur.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from blockdraft.bench.lossless import LosslessReport, check_lossless
from blockdraft.bench.random_drafter import RandomDrafter, write_random_drafter
from blockdraft.drafters.base import Drafter
from blockdraft.drafters.build import build_drafter
from blockdraft.drafters.config import NgramMod, SpecConfig
from blockdraft.drafters.draft_model import DraftModelDrafter
from blockdraft.engine import Engine, Generation, Request
from blockdraft.engine.load import DEFAULT_SPEC, SHIPPED_SPECS
from blockdraft.errors import ConfigError
from blockdraft.models.load import LoadedModel
from blockdraft.models.packed_decoder import PackedDecoder
from blockdraft.testing.scripted import ScriptedDrafter
from common import emit, first_turn, idle_check, load, make_parser, print_table, say, workloads

SMALL_MOD = NgramMod(n_match=3, n_min=1, n_max=16)
"""llama.cpp's defaults want 24 equal tokens, which short answers seldom have."""

MakeDrafter = Callable[[], Drafter | None]


def cases(
    loaded: LoadedModel, folder: Path, requests: Mapping[str, Request], plain: Mapping[str, Generation]
) -> Iterator[tuple[str, MakeDrafter]]:
    """Yield a name and a way to build the drafter of each case, which is built when `plain` has all answers."""
    target, tokenizer = loaded.target, loaded.tokenizer
    folders = {
        method: str(write_random_drafter(folder / method, target.info, RandomDrafter(method=method)))
        for method in ("dflash", "dspark")
    }

    def build(*types: str, **options: object) -> MakeDrafter:
        spec = SpecConfig(types=types, **options)  # type: ignore[arg-type]
        return lambda: build_drafter(spec, target, tokenizer)

    yield "ngram-simple", lambda: build_drafter(DEFAULT_SPEC, target, tokenizer)
    if loaded.reference in SHIPPED_SPECS and isinstance(target, PackedDecoder):  # in torch they take minutes more
        yield "default", lambda: build_drafter(SHIPPED_SPECS[loaded.reference], target, tokenizer)
        yield "draft-dspark", build("draft-dspark", draft_model="builtin:smollm2-dspark")
        yield "draft-dflash", build("draft-dflash", draft_model="builtin:smollm2-dflash")
    yield "ngram-mod", build("ngram-mod")
    yield "ngram-mod, n 3", build("ngram-mod", ngram_mod=SMALL_MOD)
    yield "random draft-dflash", build("draft-dflash", draft_model=folders["dflash"])
    yield "random draft-dspark", build("draft-dspark", draft_model=folders["dspark"])
    yield (
        "ngram-mod, draft-dflash",
        build("ngram-mod", "draft-dflash", ngram_mod=SMALL_MOD, draft_model=folders["dflash"]),
    )
    yield "draft-simple: itself", lambda: DraftModelDrafter(target, max_draft_tokens=4)

    def scripted() -> Drafter:
        answers = {request.prompt_ids: plain[name].token_ids for name, request in requests.items()}
        return ScriptedDrafter(
            answers, vocab_size=target.info.vocab_size, num_drafts=8, num_right=lambda number: (5 * number) % 9
        )

    yield "scripted, right 0 to 8 of 8", scripted


def run_dtype(args: argparse.Namespace, dtype: str) -> dict[str, LosslessReport]:
    """Run all cases in one dtype."""
    loaded = load(args, dtype)
    baseline = Engine(loaded.target, loaded.tokenizer)
    requests = {workload.id: first_turn(baseline, workload, max_tokens=args.max_tokens) for workload in workloads(args)}
    plain: dict[str, Generation] = {}
    reports: dict[str, LosslessReport] = {}
    with TemporaryDirectory() as folder:
        makers = dict(cases(loaded, Path(folder), requests, plain))
        if unknown := set(args.only or ()) - makers.keys():
            raise ConfigError(f"no such case: {', '.join(sorted(unknown))}; there are {', '.join(makers)}")
        say(f"{dtype}: plain decoding of {len(requests)} prompts")
        plain.update((name, baseline.run([request])[0]) for name, request in requests.items())
        for name, make in makers.items():
            if args.only and name not in args.only:
                continue
            engine = Engine(loaded.target, loaded.tokenizer, make(), prefill_chunk=512)
            for size in args.batch_sizes:
                case = name if size == 1 else f"{name}, {size} at once"
                reports[case] = check_lossless(engine, requests, plain, batch_size=size)
                show(f"{dtype}: {case}", reports[case])
    return reports


def show(name: str, report: LosslessReport) -> None:
    stats = report.stats
    say(
        f"{name}: {report.num_prompts - len(report.differences)} of {report.num_prompts} identical, "
        f"{report.num_near_ties} near-ties, {len(report.failures)} failures; "
        f"{stats.num_accepted} of {stats.num_drafted} drafts accepted in {stats.num_rounds} rounds"
    )
    for prompt, difference in report.differences.items():
        kind = "near-tie" if difference.is_near_tie else "FAILURE"
        say(
            f"    {kind} in {prompt}, token {difference.position}: {difference.plain_id} or {difference.other_id}, "
            f"gap {difference.gap}"
        )


def main() -> int:
    parser = make_parser(__doc__, num_prompts=20, max_tokens=64)
    parser.add_argument("--dtypes", nargs="+", default=["auto", "float32"])
    parser.add_argument("--only", nargs="+", metavar="NAME", help="only these cases")
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[1], help="requests at once")
    parser.add_argument("--bitwise", action="store_true", help="a near-tie is a failure too")
    args = parser.parse_args()
    idle = idle_check()
    reports = {dtype: run_dtype(args, dtype) for dtype in args.dtypes}
    print_table(
        "Greedy answers with a drafter against plain decoding",
        ("dtype, drafter", "prompts", "identical", "near-ties", "failures", "drafted", "accepted"),
        [
            (
                f"{dtype}: {name}",
                report.num_prompts,
                report.num_prompts - len(report.differences),
                report.num_near_ties,
                len(report.failures),
                report.stats.num_drafted,
                report.stats.num_accepted,
            )
            for dtype, by_name in reports.items()
            for name, report in by_name.items()
        ],
    )
    results = {
        dtype: {name: report.to_dict() for name, report in by_name.items()} for dtype, by_name in reports.items()
    }
    emit("lossless_default_model", args, idle, {"by_dtype": results})
    found = [report for by_name in reports.values() for report in by_name.values()]
    return int(any(report.differences if args.bitwise else report.failures for report in found))


if __name__ == "__main__":
    sys.exit(main())
