"""A run as one HTML page that needs no other file: verdict, findings, pictures, figures, and how they came about."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from blockdraft.bench.speed.findings import Finding, claims_hold, find
from blockdraft.bench.speed.plots import draw
from blockdraft.bench.speed.records import Run
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
    findings = find(run, summary)
    return template.render(
        run=run,
        summary=summary,
        findings=findings,
        headline=headline(run, summary, findings),
        facts=_facts(run),
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


def headline(run: Run, summary: Summary, findings: Sequence[Finding]) -> str:
    """Return what the run says in one sentence, and not more than it can bear."""
    if not run.has_baseline:
        return "Measured without a baseline: speeds, and no speed-up."
    if not claims_hold(findings):
        return "No speed-up can be claimed from this run."
    ratios: list[tuple[Condition, Ratio]] = [
        (one, one.decode_ratio) for one in summary.conditions if one.decode_ratio is not None
    ]
    if not ratios:
        return "No message was answered on both sides, so there is nothing to compare."
    condition, ratio = ratios[0]
    where = f"depth {condition.depth:,} and {condition.concurrency} at once"
    if ratio.is_clearly_faster:
        return f"{ratio.value:.2f} times as fast as plain decoding, at {where}."
    if ratio.is_clearly_slower:
        return f"Slower than plain decoding: {ratio.value:.2f} times as fast, at {where}."
    return f"Neither clearly faster nor slower than plain decoding: {ratio.value:.2f} times as fast, at {where}."


def _facts(run: Run) -> list[tuple[str, str]]:
    """Return what stands on top of the page."""
    machine = run.machine
    cards = ", ".join(card["name"] for card in machine.get("gpus") or ()) or "no card"
    facts = [("date", run.date)]
    for side in run.sides:
        name = "baseline" if side.role == "baseline" else "in question"
        facts.append((name, f"{side.engine or 'unknown engine'}, {side.model or 'unknown model'} ({side.where})"))
    answers = run.settings.get("answers", {})
    facts += [
        ("measured on", f"{machine.get('cpu')}, {machine.get('num_cores')} cores, {cards}"),
        ("answers", f"up to {answers.get('max_tokens')} tokens, temperature {answers.get('temperature')}"),
        ("energy", run.energy_source or "not reported by this machine"),
    ]
    return facts


def _spread(value: Spread | None, digits: int = 1) -> str:
    if value is None:
        return "-"
    return f"{value.median:.{digits}f} ({value.low:.{digits}f} to {value.high:.{digits}f})"


def _ratio(value: Ratio | None) -> str:
    if value is None:
        return "-"
    interval = "" if value.low is None or value.high is None else f" ({value.low:.2f} to {value.high:.2f})"
    return f"{value.value:.2f}{interval}"


def _number(value: Any, digits: int = 2) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"
