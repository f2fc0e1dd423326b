"""A run as one HTML page that needs no other file: verdict, caveats, pictures, figures, and how they came about."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from blockdraft.bench.speed.caveats import Caveat, claims_hold, find_caveats
from blockdraft.bench.speed.plots import draw
from blockdraft.bench.speed.records import Run, drafting_of
from blockdraft.bench.speed.statistics import Ratio, Spread
from blockdraft.bench.speed.summary import Condition, Summary, summarise
from blockdraft.errors import ConfigError

_TEMPLATE = "report.html.j2"


def write_report(run: Run, path: Path) -> None:
    """Write the page.

    Raises:
        ConfigError: it cannot be written.
    """
    page = render_report(run)
    try:
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"the report {path} cannot be written: {error}") from error


def render_report(run: Run) -> str:
    """Return the page."""
    from jinja2 import Environment, StrictUndefined  # noqa: PLC0415 - a page is rarely asked for

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"spread": _spread, "ratio": _ratio, "number": _number, "share": _share}
    template = environment.from_string(resources.files(__package__).joinpath(_TEMPLATE).read_text(encoding="utf-8"))
    summary = summarise(run)
    caveats = find_caveats(run, summary)
    return template.render(
        run=run,
        summary=summary,
        caveats=caveats,
        headline=headline(run, summary, caveats),
        lead=_lead(summary) if claims_hold(caveats) else "",
        facts=_facts(run),
        grid=_grid(summary),
        loads=sorted({one.concurrency for one in summary.conditions}),
        pictures=draw(run, summary),
        has_drafts=any(one.drafts for cell in summary.cells for one in cell.sides.values()),
        command=shlex.join(run.command),
        details=json.dumps(
            {"settings": run.settings, "versions": run.versions, "sides": [vars(side) for side in run.sides]},
            indent=2,
            ensure_ascii=False,
            default=str,
        ),
    )


def headline(run: Run, summary: Summary, caveats: Sequence[Caveat]) -> str:
    """Return what the run says in one sentence, and not more than it can bear."""
    if not run.has_baseline:
        return "Measured without a baseline: speeds, and no speed-up."
    if not claims_hold(caveats):
        return "No speed-up can be claimed from this run."
    ratios: list[tuple[Condition, Ratio]] = [
        (one, one.decode_ratio) for one in summary.conditions if one.decode_ratio is not None
    ]
    if not ratios:
        return "No message was answered on both sides, so there is nothing to compare."
    condition, ratio = ratios[0]
    where = f"{_place(condition)}, {condition.concurrency} at once"
    if ratio.low is None:
        return f"Too few pairs to tell gain from loss: {ratio} times as fast as the baseline ({where})"
    if ratio.is_clearly_faster:
        return f"{ratio} times as fast as the baseline ({where})"
    if ratio.is_clearly_slower:
        return f"Slower than the baseline: {ratio} times as fast ({where})"
    return f"Neither clearly faster nor clearly slower than the baseline: {ratio} times as fast ({where})"


def _lead(summary: Summary) -> str:
    """Return what stands under the headline: the other ratios, and other conditions."""
    known = [(one, one.decode_ratio, one.request_ratio) for one in summary.conditions]
    ratios = [(one, decode, request) for one, decode, request in known if decode and request]
    if not ratios:
        return ""
    _, decode, request = ratios[0]
    sentences = [
        f"That is after the first token; whole requests are {request} times as fast. It rests on "
        f"{decode.num_prompts} prompts and {decode.num_pairs} pairs."
    ]
    if len(ratios) > 1:
        ends = [pick(ratios, key=lambda row: row[1].value) for pick in (min, max)]
        low, high = (f"{decode.value:.2f} with {_place(one)}, {one.concurrency} at once" for one, decode, _ in ends)
        sentences.append(f"Over {len(ratios)} depths and loads it goes from {low}, to {high}.")
    first = ratios[0][0]
    slower = [
        f"{one.cell.category} ({one.decode_ratio.value:.2f})"
        for one in summary.cells
        if (one.cell.depth, one.cell.concurrency) == (first.depth, first.concurrency)
        and one.decode_ratio
        and one.decode_ratio.is_clearly_slower
    ]
    if slower and len(slower) < len({one.cell.category for one in summary.cells}):
        sentences.append(f"Not everything gains there; slower with drafts: {', '.join(slower)}.")
    return " ".join(sentences)


def _grid(summary: Summary) -> list[tuple[int, list[Ratio | None]]]:
    """Return the decode ratios by depth and concurrency; nothing if there is one condition only."""
    found = {(one.depth, one.concurrency): one.decode_ratio for one in summary.conditions}
    if len(found) < 2 or not any(found.values()):
        return []
    loads = sorted({load for _, load in found})
    return [(depth, [found.get((depth, load)) for load in loads]) for depth in sorted({depth for depth, _ in found})]


def _place(condition: Condition) -> str:
    return f"a prefix of {condition.depth:,} tokens" if condition.depth else "no prefix"


def _facts(run: Run) -> list[tuple[str, str]]:
    """Return what stands on top of the page."""
    machine = run.machine
    cards = ", ".join(card["name"] for card in machine.get("gpus") or ()) or "no card"
    facts = [("date", run.date.replace("T", " ").replace("+00:00", " UTC"))]
    for side in run.sides:
        name = "baseline" if side.role == "baseline" else "in question"
        where = "in this process" if side.where == "native" else side.where
        facts.append((name, f"{side.engine or 'unknown engine'}, {side.model_name} ({where})"))
    if drafting := next((how for side in run.sides if (how := drafting_of(side))), None):
        facts.append(("drafts", drafting))
    answers = run.settings.get("answers", {})
    facts += [
        ("measured on", f"{machine.get('cpu')}, {machine.get('num_cores')} cores, {cards}"),
        ("asked", _asked(run)),
        ("answers", f"up to {answers.get('max_tokens')} tokens, temperature {answers.get('temperature')}"),
        ("energy", run.energy_source or "not reported by this machine"),
    ]
    return facts


def _asked(run: Run) -> str:
    plan = run.settings.get("plan", {})
    prompts = plan.get("prompts", {})
    if not prompts:
        return "-"
    kinds = ", ".join(f"{name} {len(ids)}" for name, ids in prompts.items())
    times = "once" if plan["repeats"] == 1 else f"{plan['repeats']} times"
    return f"{kinds}; {times} by each side"


def _spread(value: Spread | None, digits: int = 1) -> str:
    if value is None:
        return "-"
    digits = 0 if value.median >= 100 else digits
    return _with_range(f"{value.median:.{digits}f}", f"{value.low:.{digits}f} to {value.high:.{digits}f}")


def _ratio(value: Ratio | None) -> str:
    if value is None:
        return "-"
    interval = "" if value.low is None or value.high is None else f"{value.low:.2f} to {value.high:.2f}"
    return _with_range(f"{value.value:.2f}", interval)


def _with_range(middle: str, ends: str) -> str:
    from markupsafe import Markup  # noqa: PLC0415 - comes with jinja2

    return Markup("{}<small>{}</small>").format(middle, ends)


def _number(value: Any, digits: int = 2) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"
