r"""How many tokens does a round give with each drafter, by kind of prompt and by slot?

Counts only, so a busy machine disturbs nothing. The table is printed as Markdown. An example, with everything that
a comparison of methods needs:

    python benchmarks/drafter_acceptance.py --group chat=chat.jsonl --group code=code.jsonl --num-prompts 80 \
        --drafter ngram-mod=ngram-mod --drafter DFlash=./dflash --drafter DSpark=./dspark \
        --drafter "DSpark, n-gram first=ngram-simple,./dspark"
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from blockdraft.core.acceptance import AcceptanceStats
from blockdraft.core.sampling import SamplingParams
from blockdraft.train.evaluate import AcceptanceReport, measure_acceptance
from common import emit, idle_check, load, say
from named_drafters import grouped_workloads, make_drafter_parser, named_engines


def markdown(reports: Sequence[tuple[str, AcceptanceReport]], num_slots: int) -> str:
    """Return the table: mean acceptance length by group and overall, acceptance rate, conditional by slot."""
    groups = list(reports[0][1].by_category)
    columns = ["temperature", "drafter", *groups, "all", "rate", *(f"slot {slot + 1}" for slot in range(num_slots))]
    lines = [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
    for name, report in reports:
        cells = [f"{report.temperature:g}", name]
        cells += [f"{report.by_category[group].mean_acceptance_length:.2f}" for group in groups]
        cells += [f"{report.mean_acceptance_length:.2f}", f"{report.acceptance_rate:.2f}"]
        cells += [conditional(report.overall, slot) for slot in range(num_slots)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def conditional(stats: AcceptanceStats, slot: int) -> str:
    """Return the conditional acceptance of a slot; a dash if no round came so far."""
    is_reached = slot < len(stats.reached_at) and stats.reached_at[slot]
    return f"{stats.conditional_acceptance_at(slot):.2f}" if is_reached else "-"


def main() -> int:
    parser = make_drafter_parser(__doc__, num_prompts=48, max_tokens=128)
    parser.add_argument("--batch", type=int, default=8, help="answers that run together (default: %(default)s)")
    args = parser.parse_args()
    idle = idle_check()
    loaded = load(args)
    engines = named_engines(args, loaded)
    prompts = grouped_workloads(args)
    reports: list[tuple[str, AcceptanceReport]] = []
    for temperature in args.temperatures:
        for name, engine in engines.items():
            assert engine.drafter is not None
            report = measure_acceptance(
                loaded.target,
                loaded.tokenizer,
                engine.drafter,
                prompts,
                max_tokens=args.max_tokens,
                sampling=SamplingParams(temperature=temperature),
                batch=args.batch,
            )
            say(f"temperature {temperature:g}, {name}: {report.mean_acceptance_length:.3f} tokens a round")
            reports.append((name, report))
    print(markdown(reports, args.n_max))
    rows = [{"name": name, **report.to_dict()} for name, report in reports]
    emit("drafter_acceptance", args, idle, {"num_prompts": len(prompts), "rows": rows})
    return 0


if __name__ == "__main__":
    sys.exit(main())
