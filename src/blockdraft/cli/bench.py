"""`blockdraft bench`: how fast with drafts and without, on a server or here."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from blockdraft.cli.bench_options import (
    OutputOptions,
    SideOptions,
    WorkloadOptions,
    output_options,
    side_options,
    workload_options,
)
from blockdraft.cli.loading import check_speculation, load_engine, model_reference
from blockdraft.cli.model_options import ModelOptions, model_options, runtime_option
from blockdraft.cli.options import ARGUMENTS_KEY, SectionedCommand, debug_option
from blockdraft.cli.record import print_json
from blockdraft.cli.server_options import api_key, need_httpx
from blockdraft.cli.speculation_options import SpeculationOptions, speculation_options
from blockdraft.cli.terminal import note, working
from blockdraft.errors import ConfigError

if TYPE_CHECKING:
    from blockdraft.bench.speed.records import Role, Run
    from blockdraft.bench.speed.side import AnswerSettings, Side
    from blockdraft.models.load import Runtime

NATIVE = "native"
_FAILED = 1
_INTERRUPTED = 130


@click.command("bench", cls=SectionedCommand)
@click.argument("where", metavar="URL|native|RUN")
@side_options
@workload_options
@output_options
@model_options
@runtime_option
@speculation_options
@debug_option
def command(
    *,
    where: str,
    given: SideOptions,
    workload: WorkloadOptions,
    output: OutputOptions,
    model: ModelOptions,
    runtime: Runtime,
    speculation: SpeculationOptions,
) -> None:
    """Measure how fast answers come with drafts and without them, in turns.

    URL is an OpenAI-compatible server, --baseline one without drafts; without that no speed-up is claimed. `native`
    runs blockdraft's own engine on both sides. RUN is a file that --out wrote: nothing is measured, it is shown,
    compared or reported again. On Ctrl-C what has been measured is kept and shown. Options
    of model, runtime and speculation are for `native`.

    \b
    blockdraft bench native --out native.json --report native.html
    blockdraft bench http://localhost:8080 --baseline http://localhost:8081 --concurrency 1,2,4 --out run.json
    blockdraft bench run.json --compare other.json
    """  # noqa: D301 - click wants the character itself
    kept = _kept(where)
    _check_options(where)
    _check_output(output)
    run = kept or _measure(where, given, workload, output, model, runtime, speculation)
    _write(run, output)
    _show(run, output)
    if not run.is_complete and not kept:
        click.get_current_context().exit(_INTERRUPTED)
    if not any(not sample.failure for one in run.passes for sample in one.samples):
        click.get_current_context().exit(_FAILED)


def _kept(where: str) -> Run | None:
    if where == NATIVE or where.startswith(("http://", "https://")):
        return None
    if not Path(where).is_file():
        raise ConfigError(f"{where!r} is no URL, no file and not {NATIVE!r}; write http://HOST:PORT of a server")
    from blockdraft.bench.speed.records import read_run  # noqa: PLC0415 - it imports numpy

    return read_run(Path(where))


def _check_options(where: str) -> None:
    """Refuse options that would do nothing here.

    Raises:
        ConfigError: one was given; those that the environment sets are for other commands too and are left alone.
    """
    measuring, own = (SideOptions, WorkloadOptions), (ModelOptions, SpeculationOptions)
    if where == NATIVE:
        idle, why = _names(SideOptions), f"{NATIVE!r} asks no server"
    elif where.startswith(("http://", "https://")):
        idle, why = {*_names(*own), "runtime"}, "the server was started with its own model and speculation"
    else:
        idle, why = {*_names(*measuring, *own), "runtime", "out"}, f"{where} was measured already"
    context = click.get_current_context()
    for parameter in context.command.params:
        if (
            parameter.name in idle
            and context.get_parameter_source(parameter.name) is click.core.ParameterSource.COMMANDLINE
        ):
            raise ConfigError(f"{max(parameter.opts, key=len)} has no effect: {why}")
    alone = [name for name in ("hf_id", "quantization", "hardware") if context.params[name] is not None]
    if alone and context.params["record"] is None:
        raise ConfigError(f"--{alone[0].replace('_', '-')} has no effect without --record FOLDER")
    if context.params["baseline_fields"] == {} and not context.params["baseline"]:
        raise ConfigError(
            "--baseline-fields is empty, so nothing would keep the same server from drafting; name a field"
        )
    if context.params["baseline_model"] and not (context.params["baseline"] or context.params["baseline_fields"]):
        raise ConfigError("--baseline-model has no effect without --baseline or --baseline-fields")


def _names(*groups: type[Any]) -> set[str]:
    return {item.name for group in groups for item in fields(group)}


def _check_output(output: OutputOptions) -> None:
    """Refuse before an hour of measuring what cannot be written after it."""
    if output.report:
        from blockdraft.bench.tune_plot import check_plots  # noqa: PLC0415 - it imports matplotlib

        check_plots()
    if output.record and not (output.hf_id and output.quantization):
        raise ConfigError("--record needs --hf-id and --quantization, by which the site groups runs")
    for path in (output.out, output.report):
        if path and not path.parent.is_dir():
            raise ConfigError(f"{path} cannot be written: there is no folder {path.parent}")


def _measure(  # noqa: PLR0917
    where: str,
    given: SideOptions,
    workload: WorkloadOptions,
    output: OutputOptions,
    model: ModelOptions,
    runtime: Runtime,
    speculation: SpeculationOptions,
) -> Run:
    with working("starting"):
        from blockdraft.bench.speed.energy import find_meter  # noqa: PLC0415 - they import numpy
        from blockdraft.bench.speed.runner import SpeedRun  # noqa: PLC0415

        plan, settings = workload.plan(), workload.settings()
    most = max(plan.concurrencies)
    with ExitStack() as stack:
        if where == NATIVE:
            sides = _native_sides(model, runtime, speculation, settings, most)
        else:
            sides = _endpoint_sides(where, given, settings, most, stack)
        tell = stack.enter_context(working("measuring"))
        run = SpeedRun(
            plan,
            sides,
            settings,
            command=click.get_current_context().meta.get(ARGUMENTS_KEY, ()),
            meter=find_meter() if _is_here(where) else None,
            out=output.out,
            notify=tell,
        )
        return run.run()


def _native_sides(
    model: ModelOptions,
    runtime: Runtime,
    speculation: SpeculationOptions,
    settings: AnswerSettings,
    max_running: int,
) -> Sequence[Side]:
    spec = check_speculation(model, speculation)
    engine = load_engine(model, spec, runtime, max_running=max_running)
    from blockdraft import __version__  # noqa: PLC0415
    from blockdraft.bench.speed.native_side import NativeSide  # noqa: PLC0415 - it imports torch

    reference = model_reference(model)
    plain = NativeSide(engine.without_drafter(), "baseline", settings, model=reference, version=__version__)
    if engine.drafter is None:
        raise ConfigError("there is nothing to compare: this engine decodes plainly; give it a drafter")
    return NativeSide(engine, "speculative", settings, model=reference, version=__version__), plain


def _endpoint_sides(
    url: str,
    given: SideOptions,
    settings: AnswerSettings,
    max_in_flight: int,
    stack: ExitStack,
) -> Sequence[Side]:
    need_httpx()
    from blockdraft.bench.speed.endpoint_side import EndpointSide  # noqa: PLC0415 - httpx is an extra

    def side(url: str, role: Role, served_model: str | None, extra: dict[str, object]) -> Side:
        made = EndpointSide(
            url,
            role,
            settings,
            model=served_model,
            api_key=api_key(given.api_key_env),
            extra=extra,
            timeout_s=given.timeout,
            max_in_flight=max_in_flight,
        )
        stack.callback(made.close)
        return made

    fields = given.fields or {}
    sides = [side(url, "speculative", given.served_model, fields)]
    if given.baseline or given.baseline_fields:
        name = given.baseline_model or given.served_model
        sides.append(side(given.baseline or url, "baseline", name, {**fields, **(given.baseline_fields or {})}))
    return sides


def _is_here(where: str) -> bool:
    """Tell whether this machine does the work, so that its energy is the work's."""
    from urllib.parse import urlsplit  # noqa: PLC0415

    return where == NATIVE or urlsplit(where).hostname in ("localhost", "127.0.0.1", "::1")


def _write(run: Run, output: OutputOptions) -> None:
    if output.report:
        from blockdraft.bench.speed.report import write_report  # noqa: PLC0415 - it imports matplotlib

        write_report(run, output.report)
        note(f"the report is in {output.report}")
    if output.record:
        from blockdraft.bench.speed.community import write_records  # noqa: PLC0415

        assert output.hf_id is not None
        assert output.quantization is not None
        for path in write_records(
            run, output.record, hf_id=output.hf_id, quantization=output.quantization, hardware=output.hardware
        ):
            note(f"for LocalMaxxing: {path}")


def _show(run: Run, output: OutputOptions) -> None:
    from blockdraft.bench.speed.caveats import find_caveats  # noqa: PLC0415 - they import numpy
    from blockdraft.bench.speed.diff import compare_runs  # noqa: PLC0415
    from blockdraft.bench.speed.records import read_run  # noqa: PLC0415
    from blockdraft.bench.speed.summary import summarise  # noqa: PLC0415

    summary = summarise(run)
    caveats = find_caveats(run, summary)
    difference = compare_runs(read_run(output.compare), run) if output.compare else None
    if output.as_json:
        print_json(
            {
                "command": click.get_current_context().meta.get(ARGUMENTS_KEY),
                "run": {"date": run.date, "is_complete": run.is_complete, "out": output.out and str(output.out)},
                **summary.to_dict(),
                "caveats": [caveat.to_dict() for caveat in caveats],
                "difference": difference.to_dict() if difference else None,
            }
        )
        return
    from blockdraft.cli.bench_view import show_difference, show_run  # noqa: PLC0415

    show_run(run, summary, caveats)
    if difference:
        show_difference(difference)
