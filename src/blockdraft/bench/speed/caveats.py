"""What a reader must know before believing the figures of a run, found in the run itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any, Literal

from blockdraft.bench.speed.drafts import DraftCounts
from blockdraft.bench.speed.records import Pass, Role, Run
from blockdraft.bench.speed.summary import Summary, decode_s, pairs_of, ratio_in, speed_inside_answers, summarise
from blockdraft.bench.speed.workload import Cell, prompt_of, words_of
from blockdraft.models.processor import BUSY_LOAD

Severity = Literal["error", "warning", "note"]

_SHORT_ANSWER = 24
_CACHED = 0.2
_REMEMBERS = 1.2
"""Later repeats so much faster than the first, and a drafter seems to remember answers."""
_GOOD_START = 1.1
_COLLAPSED = 0.75
_MOST_LOSSES = 6


@dataclass(frozen=True, kw_only=True)
class Caveat:
    """One thing that was found."""

    severity: Severity
    """error: ratios of this run mean nothing; warning: they may mislead; note: good to know."""
    code: str
    text: str

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def find_caveats(run: Run, summary: Summary | None = None) -> list[Caveat]:
    """Return what was found, the worst first."""
    summary = summary or summarise(run)
    found = [
        *_completeness(run),
        *_sides(run),
        *_failures(run),
        *_memory(run),
        *_inside_answers(run),
        *_losses(run, summary),
        *_prompts(run),
        *_order(run),
        *_texts(run),
        *_conditions(run, summary),
    ]
    order: list[Severity] = ["error", "warning", "note"]
    return sorted(found, key=lambda caveat: order.index(caveat.severity))


def claims_hold(caveats: Sequence[Caveat]) -> bool:
    """Whether ratios of the run may be quoted at all."""
    return not any(caveat.severity == "error" for caveat in caveats)


def first_answers(run: Run) -> list[Pass]:
    """Return the passes in which nobody had answered the prompts before: the first repeat of the first condition."""
    if not run.passes:
        return []
    first = run.passes[0].cell
    where = (first.depth, first.concurrency)
    return [one for one in run.passes if one.repeat == 0 and (one.cell.depth, one.cell.concurrency) == where]


def _completeness(run: Run) -> Iterator[Caveat]:
    if not run.is_complete:
        yield Caveat(severity="warning", code="incomplete", text="the run was stopped: cells are missing or cut short")
    if not run.has_baseline:
        yield Caveat(
            severity="note",
            code="no-baseline",
            text="nothing was measured beside it, so no speed-up is claimed; give --baseline URL of a server "
            "without drafts",
        )
    models = {side.model for side in run.sides}
    if len(models) > 1:
        names = " and ".join(sorted(str(model) for model in models))
        yield Caveat(severity="warning", code="models-differ", text=f"the sides name different models: {names}")


def _sides(run: Run) -> Iterator[Caveat]:
    baseline, speculative = _drafts(run, "baseline"), _drafts(run, "speculative")
    if baseline and (baseline.num_drafted or (baseline.num_drafted is None and baseline.num_accepted)):
        yield Caveat(
            severity="error",
            code="baseline-drafts",
            text=f"the baseline drafted {baseline.num_drafted or 'tokens'} as well ({baseline.source}), so the ratio "
            "is not to plain decoding",
        )
    if speculative is None:
        yield Caveat(
            severity="note",
            code="no-counters",
            text="the engine does not tell what it drafts: whether it speculates at all is unknown "
            "(llama.cpp: --metrics, SGLang: --enable-metrics)",
        )
    elif speculative.never_drafted:
        yield Caveat(
            severity="warning",
            code="never-drafted",
            text=f"not one token was drafted in the whole run ({speculative.source}): this server does not speculate "
            "on these prompts, whatever its flags say",
        )
    elif speculative.num_accepted == 0:
        yield Caveat(
            severity="warning",
            code="never-accepted",
            text=f"{speculative.num_drafted} tokens were drafted and none was accepted: draft model and target hardly "
            "belong together",
        )


def _failures(run: Run) -> Iterator[Caveat]:
    # What was cancelled is the run that was stopped, which is told already.
    failures = [(one.role, sample.failure) for one in run.passes for sample in one.samples if sample.failure]
    failed = [(role, failure) for role, failure in failures if failure.kind != "cancelled"]
    if failed:
        num_requests = sum(len(one.samples) for one in run.passes)
        kinds = sorted({f"{failure.kind} ({role})" for role, failure in failed})
        yield Caveat(
            severity="warning",
            code="failures",
            text=f"{len(failed)} of {num_requests} requests failed: {', '.join(kinds)}; first: {failed[0][1].message}",
        )


def _memory(run: Run) -> Iterator[Caveat]:
    first = first_answers(run)
    if not first:
        return
    cells, beginners = {one.cell for one in first}, _beginners(run)
    later = [one for one in run.passes if one.repeat and one.cell in cells]
    # Where there are such: repeats that the same side began, so that an order effect is not taken for memory.
    alike = [one for one in later if beginners[one.cell, one.repeat] == beginners[one.cell, 0]]
    before, after = _by_prompt(first), _by_prompt(alike or later)
    both = [(before[key], after[key]) for key in before.keys() & after.keys()]
    growth = [late / early for early, late in both]
    # One lucky prompt is no memory: four of five have to agree.
    if len(growth) >= 3 and median(growth) > _REMEMBERS and sum(one > 1 for one in growth) >= 0.8 * len(growth):
        yield Caveat(
            severity="warning",
            code="remembers",
            text=f"repeats of a prompt gain {median(growth):.2f} times as much as its first answer: the drafter "
            "remembers answers, so only first answers tell what new prompts gain; restart the server between runs, use "
            "more prompts and --repeats 1",
        )


def _inside_answers(run: Run) -> Iterator[Caveat]:
    lowest = min((one.cell.concurrency for one in run.passes), default=1)
    points = speed_inside_answers([one for one in run.passes if one.cell.concurrency == lowest])
    if len(points) < 2:
        return
    (_, start), (position, end) = points[0], points[-1]
    if start >= _GOOD_START and end <= _COLLAPSED * start:
        yield Caveat(
            severity="warning",
            code="late-collapse",
            text=f"answers begin {start:.2f} times as fast as the baseline's and are {end:.2f} times as fast from "
            f"token {position} on: drafts stop being kept inside long answers",
        )


def _losses(run: Run, summary: Summary) -> Iterator[Caveat]:
    """Name conditions that are slower with drafts, and kinds of prompts that are so under faster conditions."""
    places = {(one.depth, one.concurrency): one.decode_ratio for one in summary.conditions}
    slow = {where for where, ratio in places.items() if ratio and ratio.is_clearly_slower}
    found = [f"{words_of(*where)}: {places[where]}" for where in places if where in slow]
    if len(places) < len(summary.cells):
        found += [
            f"{one.cell.category}, {words_of(one.cell.depth, one.cell.concurrency)}: {one.decode_ratio}"
            for one in summary.cells
            if (one.cell.depth, one.cell.concurrency) not in slow
            and one.decode_ratio
            and one.decode_ratio.is_clearly_slower
        ]
    if found:
        more = f"; and {len(found) - _MOST_LOSSES} more" if len(found) > _MOST_LOSSES else ""
        yield Caveat(
            severity="warning",
            code="slower",
            text="decoding with drafts is slower than the baseline; times as fast: "
            f"{'; '.join(found[:_MOST_LOSSES])}{more}",
        )


def _prompts(run: Run) -> Iterator[Caveat]:
    """Name kinds of prompts of which there is one, so that its interval says nothing about other prompts."""
    prompts: dict[str, set[str]] = {}
    for one in run.passes:
        prompts.setdefault(one.cell.category, set()).update(prompt_of(sample.prompt_id) for sample in one.samples)
    single = [category for category, known in prompts.items() if len(known) == 1]
    if single and run.has_baseline:
        yield Caveat(
            severity="note",
            code="one-prompt",
            text=f"one prompt each of {', '.join(single)}: their intervals tell how steady the timing is, not what "
            "other prompts would gain; raise --num-prompts",
        )


def _order(run: Run) -> Iterator[Caveat]:
    """Compare turns that the baseline began with those that the other side began."""
    beginners = _beginners(run)
    if max((repeat for _, repeat in beginners), default=0) < 2:
        return
    # The first repeat is left out: a drafter that remembers answers would look like an order effect.
    ratios = [
        ratio_in([one for one in run.passes if one.repeat and beginners[one.cell, one.repeat] == role])
        for role in ("baseline", "speculative")
    ]
    left, right = ratios
    if left and right and left.is_apart_from(right):
        yield Caveat(
            severity="warning",
            code="order",
            text=f"the ratio depends on who goes first: {left} if the baseline does, {right} if not; the machine warms "
            "up or slows down",
        )


def _texts(run: Run) -> Iterator[Caveat]:
    if run.settings.get("answers", {}).get("temperature") != 0:
        return
    texts: dict[tuple[Any, ...], dict[Role, str]] = {}
    for one in run.passes:
        for sample in one.samples:
            # A following turn quotes its own side's answer, so only first turns are asked the same.
            if not sample.failure and sample.turn == 0:
                texts.setdefault((one.cell, *sample.key), {})[one.role] = sample.text_sha256
    both = [pair for pair in texts.values() if len(pair) == 2]
    if num_different := sum(pair["baseline"] != pair["speculative"] for pair in both):
        yield Caveat(
            severity="note",
            code="texts-differ",
            text=f"{num_different} of {len(both)} greedy answers differ between the sides; that can be rounding or a "
            "fault, which a speed run does not tell apart",
        )


def _conditions(run: Run, summary: Summary) -> Iterator[Caveat]:
    if run.load_before is not None and run.load_before > BUSY_LOAD:
        is_full = run.load_before > run.machine.get("num_cores", 1)
        yield Caveat(
            severity="warning" if is_full else "note",
            code="not-idle",
            text=f"{run.load_before:g} processes were running on this machine before the start; timings are noisy"
            + (", and there were fewer cores than that" if is_full else ""),
        )
    lengths = [one.answer_tokens.median for cell in summary.cells for one in cell.sides.values() if one.answer_tokens]
    if lengths and median(lengths) < _SHORT_ANSWER:
        yield Caveat(
            severity="warning",
            code="short-answers",
            text=f"answers have {median(lengths):g} tokens: too few for a steady speed",
        )
    cached = [one.cached_share for cell in summary.cells for one in cell.sides.values() if one.cached_share]
    if cached and max(cached) > _CACHED:
        yield Caveat(
            severity="note",
            code="cached-prompts",
            text=f"a prefix cache knew up to {max(cached):.0%} of the tokens of first messages; the time to the first "
            "token is not that of fresh prompts",
        )
    if any(not sample.is_counted for one in run.passes for sample in one.samples if not sample.failure):
        yield Caveat(
            severity="warning",
            code="not-counted",
            text="the server does not count tokens (`usage`): pieces are taken for tokens, and each may hold several",
        )


def _beginners(run: Run) -> dict[tuple[Cell, int], Role]:
    """Return which side went first, by cell and repeat."""
    found: dict[tuple[Cell, int], Role] = {}
    for one in sorted(run.passes, key=lambda one: one.order):
        found.setdefault((one.cell, one.repeat), one.role)
    return found


def _drafts(run: Run, role: Role) -> DraftCounts | None:
    return DraftCounts.merge([one.drafts for one in run.passes if one.role == role])


def _by_prompt(passes: Sequence[Pass]) -> dict[tuple[str, str], float]:
    groups = pairs_of(passes, decode_s)
    return {(name, prompt): median(pairs) for name, prompts in groups.items() for prompt, pairs in prompts.items()}
