"""From runs to a recommendation: draft, do not draft, draft for some work only; with the evidence, and where it ends.

A verdict rests on the interval of the decode ratio. Clearly above 1 by at least `LEAST_GAIN`, drafting pays; clearly
below 1, or certainly not above `LEAST_GAIN`, it does not; anything else is open. Runs that cannot bear a ratio (no
baseline, a baseline that drafts) are named and not used.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from blockdraft.bench.speed.caveats import Caveat, claims_hold, find_caveats, first_answers
from blockdraft.bench.speed.drafts import DraftCounts
from blockdraft.bench.speed.records import Pass, Run
from blockdraft.bench.speed.statistics import Ratio, ratio_of
from blockdraft.bench.speed.summary import Summary, decode_s, pairs_of, ratio_in, request_s, summarise
from blockdraft.bench.speed.workload import words_of

LEAST_GAIN = 1.02
ALL = "all categories"
FEW_PROMPTS = 5
"""Fewer prompts in all, and a verdict is of these prompts rather than of their kind."""

Verdict = Literal["speculate", "do not speculate", "open"]


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """A ratio, under what it was measured, and what follows from it."""

    run: str
    scope: str
    """Like "all categories" or "code"."""
    depth: int
    concurrency: int
    ratio: Ratio
    verdict: Verdict
    acceptance_length: float | None = None

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "conditions": self.conditions}

    @property
    def conditions(self) -> str:
        """In words."""
        return words_of(self.depth, self.concurrency)


@dataclass(frozen=True, kw_only=True)
class Advice:
    """A recommendation."""

    verdict: Verdict | Literal["it depends", "no evidence"]
    sentences: tuple[str, ...]
    """What to do, in words."""
    evidence: tuple[Evidence, ...]
    limits: tuple[str, ...]
    """Where the evidence does not reach."""
    best_run: str | None = None
    """The run with the best ratio, if several ways to draft were measured."""

    def to_dict(self) -> dict[str, Any]:
        """Return the recommendation as plain data."""
        return {**asdict(self), "evidence": [one.to_dict() for one in self.evidence]}


def judge(ratio: Ratio) -> Verdict:
    """Return what a ratio says."""
    if ratio.low is None or ratio.high is None:
        return "open"
    if ratio.low > 1 and ratio.value >= LEAST_GAIN:
        return "speculate"
    if ratio.high < LEAST_GAIN:
        return "do not speculate"
    return "open"


def advise(runs: Sequence[tuple[str, Run]]) -> Advice:
    """Turn named runs into a recommendation."""
    evidence: list[Evidence] = []
    limits: list[str] = []
    sentences: list[str] = []
    for name, run in runs:
        summary = summarise(run)
        caveats = find_caveats(run, summary)
        limits += _limits(name, run, caveats)
        if run.has_baseline and claims_hold(caveats) and not _never_drafted(caveats):
            evidence += _evidence(name, run, caveats)
            sentences += _crossings(name, summary)
            sentences += _prefills(name, run)
    if not evidence:
        return Advice(
            verdict="no evidence",
            sentences=(
                "No run compares drafting with a baseline that can be believed, so nothing can be recommended.",
            ),
            evidence=(),
            limits=tuple(limits),
        )
    best, used = _best_run(evidence), {one.run for one in evidence}
    own = [one for one in evidence if one.run == best]
    verdict, reasons = _decide(own)
    if len(used) > 1:
        reasons = [*_ranking(evidence, best), *reasons]
    return Advice(
        verdict=verdict,
        sentences=(*reasons, *sentences),
        evidence=tuple(evidence),
        limits=(
            *limits,
            *_reach(own, [run for name, run in runs if name == best]),
            *_unlike([run for name, run in runs if name in used]),
        ),
        best_run=best,
    )


def _evidence(name: str, run: Run, caveats: Sequence[Caveat]) -> list[Evidence]:
    passes: Sequence[Pass] = run.passes
    if any(caveat.code == "remembers" for caveat in caveats):
        passes = first_answers(run)
    found = []
    for depth, concurrency in dict.fromkeys((one.cell.depth, one.cell.concurrency) for one in passes):
        here = [one for one in passes if (one.cell.depth, one.cell.concurrency) == (depth, concurrency)]
        groups = pairs_of(here, decode_s)
        scopes = {ALL: groups, **{category: {category: pairs} for category, pairs in groups.items()}}
        for scope, chosen in scopes.items():
            if ratio := ratio_of(chosen):
                found.append(
                    Evidence(
                        run=name,
                        scope=scope,
                        depth=depth,
                        concurrency=concurrency,
                        ratio=ratio,
                        verdict=judge(ratio),
                        acceptance_length=_acceptance_length(here, chosen),
                    )
                )
    return found


def _acceptance_length(passes: Sequence[Pass], categories: dict[str, Any]) -> float | None:
    passes = [one for one in passes if one.role == "speculative" and one.cell.category in categories]
    merged = DraftCounts.merge([one.drafts for one in passes])
    samples = [sample for one in passes for sample in one.samples]
    num_tokens = sum(max(sample.num_tokens - 1, 0) for sample in samples)
    return merged.round_length(num_tokens) if merged else None


def _overall(evidence: Sequence[Evidence]) -> list[Evidence]:
    return [one for one in evidence if one.scope == ALL]


def _best_run(evidence: Sequence[Evidence]) -> str:
    """Return the run with the highest ratio where everybody was measured; in its own first condition otherwise."""
    overall = _overall(evidence)
    names = list(dict.fromkeys(one.run for one in overall))
    where = [{(one.depth, one.concurrency) for one in overall if one.run == name} for name in names]
    common = set.intersection(*where)

    def height(name: str) -> float:
        own = [one for one in overall if one.run == name]
        shared = [one for one in own if (one.depth, one.concurrency) in common]
        return (shared or own)[0].ratio.value

    return max(names, key=height)


def _decide(evidence: Sequence[Evidence]) -> tuple[Verdict | Literal["it depends"], list[str]]:
    """Return the verdict over all conditions of one run, and its reasons."""
    overall = _overall(evidence)
    verdicts = {one.verdict for one in overall}
    by_category = [one for one in evidence if one.scope != ALL and one.verdict != "open"]
    split = {one.verdict for one in by_category}
    sentences = [
        f"{_capital(one.verdict)} with {one.conditions}: {one.ratio} times as fast as plain decoding over "
        f"{one.ratio.num_prompts} prompts."
        if one.verdict != "open"
        else f"Open with {one.conditions}: {one.ratio} times as fast, which does not tell gain from loss."
        for one in overall
    ]
    if len(split) > 1:
        for verdict in ("speculate", "do not speculate"):
            sentences.append(f"By kind of prompt, {verdict} for {_kinds(by_category, verdict)}.")
        return "it depends", sentences
    if verdicts == {"speculate"}:
        return "speculate", sentences
    if verdicts == {"do not speculate"}:
        return "do not speculate", sentences
    return ("open" if verdicts == {"open"} else "it depends"), sentences


def _kinds(evidence: Sequence[Evidence], verdict: Verdict) -> str:
    """List the kinds of prompts with a verdict: where it is so, and with which ratios."""
    found: dict[str, list[Evidence]] = {}
    for one in evidence:
        if one.verdict == verdict:
            found.setdefault(one.scope, []).append(one)
    listed = []
    for scope, own in found.items():
        values = [one.ratio.value for one in own]
        several = f"{len(own)} conditions: {min(values):.2f} to {max(values):.2f}"
        listed.append(f"{scope} ({f'{own[0].conditions}: {own[0].ratio}' if len(own) == 1 else several})")
    return "; ".join(listed)


def _ranking(evidence: Sequence[Evidence], best: str) -> list[str]:
    firsts: dict[str, Evidence] = {}
    for one in _overall(evidence):
        firsts.setdefault(one.run, one)
    rows = sorted(firsts.values(), key=lambda one: -one.ratio.value)
    listed = "; ".join(f"{one.run}: {one.ratio} ({one.conditions})" for one in rows)
    rivals = [one for one in rows if one.run != best and not one.ratio.is_apart_from(firsts[best].ratio)]
    close = f" It is not clearly ahead of {', '.join(one.run for one in rivals)}." if rivals else ""
    return [f"Of {len(rows)} runs {best} gains most over its own baseline: {listed}.{close}"]


def _crossings(name: str, summary: Summary) -> Iterator[str]:
    for cross in summary.crossovers:
        fixed = f"depth {cross.fixed:,}" if cross.axis == "concurrency" else f"{cross.fixed} at once"
        if cross.first_below is None:
            yield f"{name}: with {fixed}, no {cross.axis} up to {cross.points[-1][0]:,} was slower than plain decoding."
            continue
        ratio = dict(cross.points)[cross.first_below]
        clear = cross.first_clearly_below
        reach = "the interval leaves gain or loss open there" if clear is None else f"clearly from {clear:,} on"
        above = cross.last_clearly_above
        gain = "" if above is None else f"; up to {above:,} it clearly pays"
        start = f"{cross.axis} {cross.first_below:,}"
        yield f"{name}: with {fixed}, drafting is slower from {start} on: {ratio} ({reach}){gain}."


def _prefills(name: str, run: Run) -> Iterator[str]:
    decode, request = ratio_in(run.passes, decode_s), ratio_in(run.passes, request_s)
    if decode and request and decode.is_clearly_faster and request.value < 1 + (decode.value - 1) / 2:
        yield (
            f"{name}: whole requests, prefill included, are {request} times as fast: the time to the first token eats "
            "half of the gain or more."
        )


def _limits(name: str, run: Run, caveats: Sequence[Caveat]) -> list[str]:
    # That it is slower is the verdict itself.
    grave = [one for one in caveats if one.severity in ("error", "warning") and one.code != "slower"]
    found = [f"{name}: {caveat.text}." for caveat in grave]
    if not run.has_baseline:
        found.append(f"{name} has no baseline and was not used.")
    if _never_drafted(caveats):
        found.append(f"{name} drafted nothing, so it says nothing about drafting, and was not used.")
    return found


def _never_drafted(caveats: Sequence[Caveat]) -> bool:
    return any(caveat.code == "never-drafted" for caveat in caveats)


def _reach(evidence: Sequence[Evidence], runs: Sequence[Run]) -> Iterator[str]:
    overall = _overall(evidence)
    depths, counts = {one.depth for one in overall}, {one.concurrency for one in overall}
    if len(depths) == 1:
        yield f"Only depth {max(depths):,} was measured: what longer contexts do is unknown (--depth)."
    else:
        yield f"Nothing was measured behind more than {max(depths):,} tokens."
    if len(counts) == 1:
        yield f"Only {max(counts)} at once was measured: what more load does is unknown (--concurrency)."
    else:
        yield f"Nothing was measured with more than {max(counts)} at once."
    longest = max(sample.num_tokens for run in runs for one in run.passes for sample in one.samples)
    yield f"No answer had more than {longest:,} tokens: whether drafts are kept later on is unknown (--max-tokens)."
    few = [one for one in overall if one.ratio.num_prompts < FEW_PROMPTS]
    if few:
        yield f"Verdicts rest on {min(one.ratio.num_prompts for one in few)} prompts: they may not hold for others."
    if single := [one.scope for one in evidence if one.scope != ALL and one.ratio.num_prompts == 1]:
        kinds = ", ".join(dict.fromkeys(single))
        yield f"Of {kinds} there was one prompt each: what is said of the kind is said of that prompt."
    if unclear := [one for one in overall if one.ratio.low is None]:
        yield f"{len(unclear)} ratios have too few pairs for an interval; raise --repeats or --num-prompts."


def _unlike(runs: Sequence[Run]) -> Iterator[str]:
    """Say so if the runs did different work, or their baselines are different things."""
    work = [(run.settings.get("plan", {}).get("prompts"), run.settings.get("answers")) for run in runs]
    if any(one != work[0] for one in work):
        yield "The runs asked different prompts or for different answers: their ratios are not of the same work."
    baselines = [(side.engine, side.model) for run in runs for side in run.sides if side.role == "baseline"]
    if len(set(baselines)) > 1:
        yield "The baselines are different engines or models: a higher ratio need not mean more tokens per second."
    if len({run.machine.get("cpu") for run in runs}) > 1:
        yield "The runs were measured on different machines."


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
