"""How much faster is each drafter than plain decoding, one request at a time, by kind of prompt?

All take turns on every prompt, and who goes first changes from turn to turn, so that a machine that slows down
or warms up does so for everybody. A ratio is that of two runs of the same turn. Answers that have to be the plain
ones are compared with them.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median, quantiles

from blockdraft.bench.compare import why_not_comparable
from blockdraft.core.sampling import SamplingParams
from blockdraft.engine import Engine, Generation, Request
from common import emit, first_turn, idle_check, load, print_table, say
from named_drafters import grouped_workloads, make_drafter_parser, named_engines

PLAIN = "plain"
ALL = "all"


@dataclass
class Speeds:
    """What was seen of one drafter in one group of prompts."""

    ratios: list[float] = field(default_factory=list)
    tokens_per_second: list[float] = field(default_factory=list)
    lengths: list[float] = field(default_factory=list)
    """Mean acceptance lengths of the answers."""
    num_identical: int | None = None
    """Answers equal to the plain one of their turn; None where equal ones cannot be expected."""

    def add(self, answer: Generation, plain: Generation, is_comparable: bool) -> None:
        """Count one answer beside the plain one of the same turn."""
        self.ratios.append(answer.tokens_per_second / plain.tokens_per_second)
        self.tokens_per_second.append(answer.tokens_per_second)
        self.lengths.append(answer.stats.mean_acceptance_length)
        if is_comparable:
            self.num_identical = (self.num_identical or 0) + (answer.token_ids == plain.token_ids)

    def to_dict(self) -> dict[str, object]:
        """Return the figures as plain data."""
        low, _, high = self.quartiles
        return {
            "ratio": median(self.ratios),
            "ratio_quartiles": [low, high],
            "ratio_range": [min(self.ratios), max(self.ratios)],
            "tokens_per_second": median(self.tokens_per_second),
            "mean_acceptance_length": median(self.lengths),
            "num_turns": len(self.ratios),
            "num_identical": self.num_identical,
        }

    @property
    def quartiles(self) -> Sequence[float]:
        return quantiles(self.ratios, n=4, method="inclusive") if len(self.ratios) > 1 else self.ratios * 3


Table = dict[tuple[str, str], Speeds]
"""By drafter and group."""


def take_turns(engines: Mapping[str, Engine], requests: Sequence[tuple[str, Request]], repeats: int) -> Table:
    """Run everybody on every request; each turn begins with another one."""
    names = list(engines)
    table: Table = defaultdict(Speeds)
    turn = 0
    for _ in range(repeats):
        for group, request in requests:
            start = turn % len(names)
            answers = {name: engines[name].run([request])[0] for name in (*names[start:], *names[:start])}
            turn += 1
            if min(answer.tokens_per_second for answer in answers.values()) <= 0:
                continue  # an answer of one token has no speed
            for name in names:
                is_comparable = why_not_comparable(engines[name], request) is None
                for place in (group, ALL):
                    table[name, place].add(answers[name], answers[PLAIN], is_comparable)
    return table


def show(title: str, table: Table) -> None:
    rows = []
    for (name, group), speeds in sorted(table.items()):
        low, _, high = speeds.quartiles
        rows.append(
            (
                name,
                group,
                median(speeds.tokens_per_second),
                median(speeds.ratios),
                f"{low:.2f} to {high:.2f}",
                median(speeds.lengths),
                "-" if speeds.num_identical is None else f"{speeds.num_identical} of {len(speeds.ratios)}",
            )
        )
    columns = ("drafter", "prompts", "tokens/s", "ratio", "middle half", "tokens/round", "identical")
    print_table(title, columns, rows)


def main() -> int:
    parser = make_drafter_parser(__doc__, num_prompts=24, max_tokens=128)
    parser.add_argument("--repeats", type=int, default=3, help="turns of each prompt (default: %(default)s)")
    args = parser.parse_args()
    idle = idle_check()
    loaded = load(args)
    plain = Engine(loaded.target, loaded.tokenizer)
    engines = {PLAIN: plain, **named_engines(args, loaded)}
    prompts = grouped_workloads(args)
    results: dict[str, list[dict[str, object]]] = {}
    for temperature in args.temperatures:
        sampling = SamplingParams(temperature=temperature)
        requests = [
            (prompt.category, first_turn(plain, prompt, max_tokens=args.max_tokens, sampling=sampling))
            for prompt in prompts
        ]
        say(f"temperature {temperature:g}: {len(requests)} prompts, {args.repeats} turns of {len(engines)}")
        take_turns(engines, requests[:1], 1)  # a warm-up that nobody counts
        table = take_turns(engines, requests, args.repeats)
        show(f"temperature {temperature:g}", table)
        results[f"{temperature:g}"] = [
            {"drafter": name, "prompts": group, **speeds.to_dict()} for (name, group), speeds in table.items()
        ]
    emit("drafter_speed", args, idle, {"by_temperature": results})
    return 0


if __name__ == "__main__":
    sys.exit(main())
