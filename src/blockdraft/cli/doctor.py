"""`blockdraft doctor`: why drafting does not pay, from the files of a pair and from a running server."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.text import Text

from blockdraft.bench.findings import Finding, by_severity
from blockdraft.cli.options import ARGUMENTS_KEY, SectionedCommand, debug_option, number_list, section
from blockdraft.cli.record import print_json
from blockdraft.cli.server_options import ServerOptions, need_httpx, server_options
from blockdraft.cli.terminal import note, stdout_console, working
from blockdraft.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from blockdraft.bench.endpoint.connection import Connection
    from blockdraft.bench.endpoint.probe import ProbeReport, ProbeSettings
    from blockdraft.bench.pair.measure import Reading

_pair = section("Pair")
_endpoint = section("Running server")
_output = section("Output")

_COLOURS = {"error": "bold red", "warning": "yellow", "note": "dim"}
_INDENT = "    "
_BLOCK_KINDS = ("draft-dflash", "draft-dspark")


@click.command("doctor", cls=SectionedCommand)
@click.argument("target", required=False)
@click.argument("drafter", required=False)
@_pair("--num-draft-tokens", type=click.IntRange(min=1), metavar="N", help="What a server is told to draft at once.")
@_pair("--measure", is_flag=True, help="Load the pair, and try whether more is accepted if it is read another way.")
@_pair("--num-prompts", type=click.IntRange(min=1), default=6, show_default=True, help="Of --measure.")
@_pair("--max-tokens", type=click.IntRange(min=32), default=64, show_default=True, help="Of its answers.")
@_pair("--device", metavar="NAME", default="auto", show_default=True, help="Where --measure computes.")
@_pair("--offline", is_flag=True, help="Use only what is cached.")
@_endpoint("--url", metavar="URL", help="Probe this OpenAI-compatible server.")
@_endpoint(
    "--lengths",
    metavar="N,...",
    default="100,200,400",
    show_default=True,
    callback=number_list,
    help="Answers of so many tokens, rising.",
)
@_endpoint(
    "--depths",
    metavar="N,...",
    default="1000,3000",
    show_default=True,
    callback=number_list,
    help="Prompts of about so many tokens.",
)
@_endpoint("--expect", type=float, metavar="X", help="Tokens a round that the drafter's card promises.")
@server_options
@_output("--json", "as_json", is_flag=True, help="Print one JSON object.")
@debug_option
def command(
    *,
    target: str | None,
    drafter: str | None,
    num_draft_tokens: int | None,
    measure: bool,
    num_prompts: int,
    max_tokens: int,
    device: str,
    offline: bool,
    url: str | None,
    lengths: tuple[int, ...],
    depths: tuple[int, ...],
    expect: float | None,
    server: ServerOptions,
    as_json: bool,
) -> None:
    """Find out why TARGET and DRAFTER, or the server at --url, draft badly.

    A pair is looked at on paper: vocabulary, sizes, layer ids and the width of `fc`, mask and anchor, windows, rope,
    types, block and draft length, thinking mode; with --measure also by drafting in every way that the files could be
    read. A server is asked at several lengths and depths while its counters are read, to find where drafting ends
    without a word. Leave the server alone meanwhile. TARGET may be `default`. The exit code is 1 if there is an error.

    \b
    blockdraft doctor Qwen/Qwen3-8B z-lab/Qwen3-8B-DFlash-b16
    blockdraft doctor default builtin:smollm2-dspark --measure
    blockdraft doctor --url http://localhost:8000 --expect 4.5
    """  # noqa: D301 - click wants the character itself
    if target and not drafter:
        raise click.UsageError("name a target and a drafter")
    if not target and not url:
        raise click.UsageError("name a target and a drafter, or a server with --url")
    if measure and not target:
        raise click.UsageError("--measure needs a target and a drafter")
    # What is wrong with the second half is told before the first one is done.
    probing = (server.connect(url), _probe_settings(lengths, depths, expect)) if url else None
    checkup = None
    if target and drafter:
        checkup = _look(target, drafter, num_draft_tokens, offline)
        if measure:
            _measure(checkup, _Effort(num_prompts=num_prompts, max_tokens=max_tokens, device=device))
    report = _probe(*probing) if probing else None
    if as_json:
        found = {"pair": checkup.to_dict() if checkup else None, "server": report.to_dict() if report else None}
        print_json({"command": click.get_current_context().meta.get(ARGUMENTS_KEY), **found})
    else:
        _show(checkup, report)
    findings = [*(checkup.findings if checkup else ()), *(report.findings if report else ())]
    if any(finding.severity == "error" for finding in findings):
        click.get_current_context().exit(1)


@dataclass(kw_only=True)
class _Checkup:
    """What was found about a pair."""

    target: str
    drafter: str
    target_path: Path
    drafter_path: Path
    num_rules: int
    findings: list[Finding]
    readings: Sequence[Reading] = ()

    def to_dict(self) -> dict[str, Any]:
        return {
            "target": self.target,
            "drafter": self.drafter,
            "num_rules": self.num_rules,
            "findings": [finding.to_dict() for finding in self.findings],
            "readings": [reading.to_dict() for reading in self.readings],
        }


@dataclass(frozen=True, kw_only=True)
class _Effort:
    num_prompts: int
    max_tokens: int
    device: str


def _look(target: str, drafter: str, num_draft_tokens: int | None, offline: bool) -> _Checkup:
    """Examine a pair on paper, after fetching what is missing.

    Raises:
        BlockdraftError: a model is not there, or damaged beyond reading.
    """
    from blockdraft.bench.pair.examine import RULES, examine  # noqa: PLC0415 - they import torch
    from blockdraft.bench.pair.facts import drafter_facts, target_facts  # noqa: PLC0415
    from blockdraft.models.references import DEFAULT_MODEL, resolve  # noqa: PLC0415

    target = DEFAULT_MODEL if target == "default" else target
    paths = [resolve(one, offline=offline or None, notify=note).path for one in (target, drafter)]
    _check_kind(drafter, paths[1])
    with working("reading both"):
        facts = drafter_facts(drafter, paths[1])
        findings = examine(target_facts(target, paths[0]), facts, num_draft_tokens)
    return _Checkup(
        target=target,
        drafter=drafter,
        target_path=paths[0],
        drafter_path=paths[1],
        num_rules=len(RULES),
        findings=findings,
    )


def _check_kind(drafter: str, path: Path) -> None:
    """Refuse what is no block drafter.

    Raises:
        ConfigError: it is something else.
    """
    from blockdraft.drafters.detect import detect_kind  # noqa: PLC0415 - imports torch

    kind = detect_kind(path)
    if kind not in _BLOCK_KINDS:
        what = "a language model" if kind == "draft-simple" else f"a {kind} drafter"
        raise ConfigError(
            f"{drafter} is {what}; looked at are DFlash and DSpark drafters, named after their target. Whether others "
            "fit a target is told by: blockdraft inspect TARGET DRAFTER"
        )


def _measure(checkup: _Checkup, effort: _Effort) -> None:
    """Draft in every way that the files could be read, and add what that shows."""
    import blockdraft  # noqa: PLC0415 - imports torch
    from blockdraft.bench.pair.measure import findings_of, measure  # noqa: PLC0415
    from blockdraft.drafters.draft_checkpoint import load_draft_checkpoint  # noqa: PLC0415
    from blockdraft.engine.workloads import pick, read_workloads  # noqa: PLC0415
    from blockdraft.errors import ModelError  # noqa: PLC0415

    with working("loading the target") as tell:
        # In torch, whose targets hand out the features of any layers.
        engine = blockdraft.load(checkup.target, "none", device=effort.device, runtime="torch", offline=True)
        try:
            checkpoint = load_draft_checkpoint(checkup.drafter_path, engine.target.info)
        except ModelError as error:
            checkup.findings = by_severity([*checkup.findings, _not_measured(str(error))])
            return
        requests = [
            engine.request([{"role": "user", "content": workload.turns[0]}], max_tokens=effort.max_tokens)
            for workload in pick(read_workloads(None), effort.num_prompts)
        ]
        checkup.readings = measure(engine, checkpoint, requests, tell)
    checkup.findings = by_severity([*checkup.findings, *findings_of(checkup.readings)])


def _not_measured(why: str) -> Finding:
    return Finding(
        severity="error",
        name="not-measured",
        what=f"nothing was measured: {why}",
        reason="it was asked for, and our engine cannot load the drafter",
        fix="mend what the message names, or leave --measure out",
        source="loading the drafter",
    )


def _probe_settings(lengths: tuple[int, ...], depths: tuple[int, ...], expect: float | None) -> ProbeSettings:
    need_httpx()
    from blockdraft.bench.endpoint.probe import ProbeSettings  # noqa: PLC0415 - httpx is an extra

    return ProbeSettings(lengths=lengths, depths=tuple(depth for depth in depths if depth), expected_length=expect)


def _probe(connection: Connection, settings: ProbeSettings) -> ProbeReport:
    from blockdraft.bench.endpoint.probe import PROMPTS, probe  # noqa: PLC0415 - httpx is an extra
    from blockdraft.bench.endpoint.served_model import ServedModel  # noqa: PLC0415

    async def run() -> ProbeReport:
        async with connection:
            return await probe(await ServedModel.connect(connection), PROMPTS, settings, tell)

    with working("looking at the server") as tell:
        return asyncio.run(run())


def _show(checkup: _Checkup | None, report: ProbeReport | None) -> None:
    console = stdout_console()
    if checkup:
        console.print(Text(f"{checkup.drafter} for {checkup.target}", style="bold"))
        for reading in checkup.readings:
            console.print(Text(f"{_INDENT}{reading.accepted_per_round:.2f} drafts kept at a place: {reading.what}"))
        _show_findings(console, checkup.findings, f"on paper nothing is wrong ({checkup.num_rules} rules)")
    if checkup and report:
        console.print()
    if report:
        _show_report(console, report)


def _show_report(console: Console, report: ProbeReport) -> None:
    engine = report.measured.engine
    console.print(Text(f"{engine.model}, {engine.engine} {engine.version or ''}".rstrip(), style="bold"))
    if total := report.measured.total:
        console.print(Text(f"{_INDENT}{total.describe()}  [{total.source}]"))
    for title, windows in (("tokens of an answer", report.measured.by_length), ("", report.measured.by_depth)):
        for window in windows:
            where = f"{title} {window.start} to {window.end}" if title else f"behind {window.end} tokens of prompt"
            console.print(Text(f"{_INDENT}{where}: {window.counters.describe()}"))
    _show_findings(console, report.findings, "drafting holds wherever it was probed")


def _show_findings(console: Console, findings: Sequence[Finding], all_well: str) -> None:
    if not any(finding.severity != "note" for finding in findings):
        console.print(Text(all_well, style="green"))
    for finding in findings:
        text = Text(f"{finding.severity:8}", _COLOURS[finding.severity])
        text.append(f"{finding.name}: {finding.what}", "not bold default")
        console.print(text)
        for line in (finding.reason, f"fix: {finding.fix}", f"[{finding.source}]"):
            console.print(Text(_INDENT + line, style="dim"))
