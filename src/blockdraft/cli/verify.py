"""`blockdraft verify`: does a server say with drafts what it would say without?"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.text import Text

from blockdraft.cli.options import ARGUMENTS_KEY, SectionedCommand, debug_option, section
from blockdraft.cli.record import print_json
from blockdraft.cli.server_options import ServerOptions, need_httpx, server_options
from blockdraft.cli.terminal import Notify, note, stdout_console, working

if TYPE_CHECKING:
    from blockdraft.bench.endpoint.verify import VerifyReport, VerifySettings

_baseline = section("Baseline")
_greedy = section("Greedy answers")
_sampling = section("Samples")
_output = section("Output")

_COLOURS = {"pass": "green", "fail": "red", "inconclusive": "yellow"}
_MOST_SHOWN = 8


@click.command("verify", cls=SectionedCommand)
@click.argument("url")
@server_options
@section("Server")(
    "--concurrency", type=click.IntRange(min=1), default=4, show_default=True, help="Requests in flight at once."
)
@_baseline("--baseline", metavar="URL", help="A server of the same target without drafts.  [default: URL itself]")
@_baseline("--baseline-model", metavar="NAME", help="The model to ask the baseline for.")
@_greedy(
    "--prompts",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="JSON Lines with `id`, `category` and `turns`.  [default: blockdraft's own]",
)
@_greedy("--num-prompts", type=click.IntRange(min=1), default=12, show_default=True, help="How many.")
@_greedy("--max-tokens", type=int, default=64, show_default=True, help="Of each greedy answer.")
@_greedy(
    "--near-tie", metavar="NAT", type=float, default=0.25, show_default=True, help="Closer choices may tip by rounding."
)
@_sampling("--sampling/--no-sampling", default=True, show_default=True, help="Test samples at temperature 1 too.")
@_sampling("--bias", type=float, default=0.03, show_default=True, help="The change of a probability to be found.")
@_sampling("--power", type=float, default=0.9, show_default=True, help="How likely it must be found.")
@_sampling("--false-alarm", type=float, default=0.001, show_default=True, help="How likely a sound server may fail.")
@_sampling("--sample-tokens", type=int, default=4, show_default=True, help="Of each sample.")
@_sampling("--max-samples", type=click.IntRange(min=1), default=12_000, show_default=True, help="Draw no more.")
@_sampling("--seed", type=int, default=0, show_default=True, help="Of the first sample.")
@_output("--json", "as_json", is_flag=True, help="Print one JSON object.")
@debug_option
def command(
    *,
    url: str,
    server: ServerOptions,
    concurrency: int,
    baseline: str | None,
    baseline_model: str | None,
    prompts: Path | None,
    num_prompts: int,
    as_json: bool,
    **figures: Any,
) -> None:
    """Check that the server at URL is lossless: that drafts change its speed and not what it says.

    Its greedy answers are compared, token by token, with what its target says where nothing is drafted, and its samples
    with the target's probabilities; the baseline is first compared with itself. The exit code is 0 if it passes, 1 if
    it fails, 3 if that cannot be told; the report says why.

    \b
    blockdraft verify http://localhost:8000
    blockdraft verify http://localhost:8000 --baseline http://localhost:8001
    """  # noqa: D301 - click wants the character itself
    settings = _settings(**figures)
    connection = server.connect(url, num_in_flight=concurrency)  # a wrong URL is told before anything is loaded
    from blockdraft.bench.endpoint.verdict import EXIT_CODES  # noqa: PLC0415
    from blockdraft.engine.workloads import pick, read_workloads  # noqa: PLC0415 - imports torch

    messages = {workload.id: workload.turns[0] for workload in pick(read_workloads(prompts), num_prompts)}

    async def run(tell: Notify) -> VerifyReport:
        from blockdraft.bench.endpoint.served_model import ServedModel  # noqa: PLC0415 - httpx is an extra
        from blockdraft.bench.endpoint.verify import verify  # noqa: PLC0415

        async with AsyncExitStack() as stack:
            model = await ServedModel.connect(await stack.enter_async_context(connection))
            other = None
            if baseline:
                second = server.connect(baseline, model=baseline_model, num_in_flight=concurrency)
                other = await ServedModel.connect(await stack.enter_async_context(second))
            return await verify(model, other, messages, settings, tell)

    with working("looking at the server") as tell:
        report = asyncio.run(run(tell))
    if as_json:
        print_json({"command": click.get_current_context().meta.get(ARGUMENTS_KEY), "url": url, **report.to_dict()})
    else:
        _show(report)
    click.get_current_context().exit(EXIT_CODES[report.verdict])


def _settings(
    *,
    max_tokens: int,
    near_tie: float,
    sampling: bool,
    bias: float,
    power: float,
    false_alarm: float,
    sample_tokens: int,
    max_samples: int,
    seed: int,
) -> VerifySettings:
    need_httpx()
    from blockdraft.bench.endpoint.sampling import SamplingPlan  # noqa: PLC0415 - httpx is an extra
    from blockdraft.bench.endpoint.verify import VerifySettings  # noqa: PLC0415

    plan = SamplingPlan(
        bias=bias,
        power=power,
        false_alarm=false_alarm,
        num_tokens=sample_tokens,
        max_samples=max_samples,
        seed=seed,
    )
    return VerifySettings(max_tokens=max_tokens, near_tie=near_tie, sampling=plan if sampling else None)


def _show(report: VerifyReport) -> None:
    console = stdout_console()
    served = report.endpoint
    console.print(
        Text(
            f"{served['model']}, {served['engine']} {served['version'] or ''}".rstrip() + f", {served['asked_through']}"
        )
    )
    console.print(Text(f"baseline: {report.baseline}", style="dim"))
    for check in report.checks:
        verdict = Text(f"{check.verdict:12}  ", _COLOURS[check.verdict])
        console.print(verdict + Text(f"{check.name}: {check.reason}", ""))
    deviations = report.greedy.deviations if report.greedy else ()
    for deviation in deviations[:_MOST_SHOWN]:
        gap = "gap not told" if deviation.gap is None else f"{deviation.gap:.3f} nat"
        console.print(
            Text(
                f"  {deviation.kind}: {deviation.prompt}, token {deviation.position}: {deviation.said!r} instead of "
                f"{deviation.baseline!r} ({gap})",
                style="dim",
            )
        )
    if len(deviations) > _MOST_SHOWN:
        console.print(Text(f"  and {len(deviations) - _MOST_SHOWN} more (--json has all)", style="dim"))
    for text in report.notes:
        note(text)
    console.print(Text(f"verdict: {report.verdict}", style=f"bold {_COLOURS[report.verdict]}"))
