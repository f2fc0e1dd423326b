"""`blockdraft plan`: a checked command for an engine, or what is wrong with one that exists. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import click

from blockdraft.cli.options import ARGUMENTS_KEY, SectionedCommand, debug_option, gather, section
from blockdraft.errors import ConfigError

if TYPE_CHECKING:
    from blockdraft.deploy.deployment import Deployment, EngineName
    from blockdraft.deploy.hardware import Hardware
    from blockdraft.deploy.model_facts import Thinking
    from blockdraft.deploy.planning import Goal, Plan

_ENGINES: tuple[EngineName, ...] = ("vllm", "sglang", "llamacpp")
_FORMS = ("command", "docker", "compose", "systemd", "kubernetes")
_NODE = "node{}"

_what = section("What to run")
_where = section("Where and for whom")
_output = section("Output")


@dataclass(frozen=True, kw_only=True)
class UseOptions:
    """Where it runs, and who uses it."""

    engine: str
    engine_version: str | None
    hardware: str
    goal: Goal
    context: int | None
    sequences: int | None
    thinking: Thinking | None


def use_options(function: Any) -> Any:
    """Add the options about engine, hardware and use."""
    return gather(
        UseOptions,
        "use",
        [
            _where(
                "--engine", type=click.Choice([*_ENGINES, "all"]), default="all", show_default=True, help="Plan for it."
            ),
            _where(
                "--engine-version",
                metavar="VERSION",
                help="Release of the engine, like 0.33.0; a build of llama.cpp, like b10430.  [default: the installed "
                "one, else the newest that the rules know]",
            ),
            _where(
                "--hardware",
                default="auto",
                show_default=True,
                metavar="NAME|auto|FILE",
                help="rtx3090, h100x8, strix-halo ...; auto looks at this machine; a TOML or JSON file describes one.",
            ),
            _where(
                "--goal",
                type=click.Choice(["latency", "throughput", "context"]),
                default="latency",
                show_default=True,
                help="Few users and fast answers, many users, or texts as long as possible.",
            ),
            _where("--context", type=click.IntRange(min=1), help="Tokens of one sequence.  [default: what fits]"),
            _where("--sequences", type=click.IntRange(min=1), help="Sequences at once.  [default: by goal]"),
            _where("--thinking", type=click.Choice(["on", "off"]), help="Whether the target will think."),
        ],
    )(function)


@click.command("plan", cls=SectionedCommand)
@click.argument("target", required=False)
@_what(
    "--drafter",
    metavar="WHO",
    help="A model, `ngram-mod` or another search, a chain (ngram-mod,MODEL), or `none`.  [default: a registered one]",
)
@_what("--check", metavar="COMMAND", help="Look at this command, a file with one or `-` instead of planning.")
@use_options
@_output(
    "--form",
    type=click.Choice([*_FORMS, "all"]),
    default="command",
    show_default=True,
    help="How the engine is run.",
)
@_output("--json", "as_json", is_flag=True, help="Print one JSON object.")
@debug_option
def command(
    *, target: str | None, drafter: str | None, check: str | None, use: UseOptions, form: str, as_json: bool
) -> None:
    """Plan how TARGET runs on vLLM, SGLang or llama.cpp, with a drafter if that pays; or check a command.

    Chooses a drafter and settings and says why, accounts for the memory, and applies the preflight rules. Nothing is
    downloaded or started. The exit code is 1 if no plan can start, or if what was checked has an error.

    \b
    blockdraft plan Qwen/Qwen3.6-27B --hardware rtx5090 --engine vllm
    blockdraft plan cyankiwi/Qwen3.6-35B-A3B-AWQ-4bit --hardware rtx3090 --goal context
    blockdraft plan --check "llama-server -m model.gguf -md drafter.gguf --draft-max 16" --hardware strix-halo
    """  # noqa: D301 - click wants the character itself
    from blockdraft.deploy.hardware import resolve_hardware  # noqa: PLC0415 - --help does not need it

    if (target is None) == (check is None):
        raise click.UsageError("name a TARGET to plan for, or a command after --check")
    if check is not None:
        if drafter is not None:
            raise click.UsageError("--drafter is for plans; the command after --check names its own")
        _check(check, use, as_json)
        return
    assert target is not None
    engines = _ENGINES if use.engine == "all" else tuple(name for name in _ENGINES if name == use.engine)
    if use.engine_version and len(engines) > 1:
        raise click.UsageError("--engine-version is of one engine; name it with --engine")
    hardware = resolve_hardware(use.hardware)
    plans, refused = make_plans(target, drafter, engines, hardware, use)
    _print_plans(plans, refused, hardware, form, as_json)
    if not any(plan.can_start for plan in plans):
        click.get_current_context().exit(1)


def make_plans(
    target: str, drafter: str | None, engines: Sequence[EngineName], hardware: Hardware, use: UseOptions
) -> tuple[list[Plan], dict[str, str]]:
    """Return the plans, and why an engine got none.

    Raises:
        ConfigError: the only engine asked for cannot run the target.
    """
    from blockdraft.cli.plan_facts import known_draft, known_target, unpacked  # noqa: PLC0415
    from blockdraft.deploy.choosing import split_searches  # noqa: PLC0415
    from blockdraft.deploy.dialects import write_command  # noqa: PLC0415
    from blockdraft.deploy.planning import Wish, plan, refusal  # noqa: PLC0415
    from blockdraft.deploy.rules import Workload  # noqa: PLC0415
    from blockdraft.deploy.versions import known_version  # noqa: PLC0415

    known = known_target(target)
    searches, drafter = split_searches(drafter)
    drafter = unpacked(drafter) if drafter else None
    draft_facts = known_draft(drafter) if drafter else None
    plans: list[Plan] = []
    refused: dict[str, str] = {}
    for engine in engines:
        if reason := refusal(engine, known.reference, known.facts, hardware):
            if len(engines) == 1:
                raise ConfigError(f"{engine} cannot run {target} on {hardware.title}: {reason}")
            refused[engine] = reason
            continue
        wish = Wish(
            target=known.reference,
            engine=engine,
            version=known_version(engine, use.engine_version),
            hardware=hardware,
            goal=use.goal,
            drafter=drafter,
            searches=searches,
            context_length=use.context,
            num_sequences=use.sequences,
            target_facts=known.facts,
            draft_facts=draft_facts,
            base=known.base,
            workload=Workload(thinking=use.thinking),
        )
        made = plan(wish)
        try:
            write_command(made.deployment)
        except ConfigError as error:  # an engine that cannot say it: another way to draft, or a chain
            if len(engines) == 1:
                raise
            refused[engine] = str(error)
            continue
        plans.append(made)
    return plans, refused


def _print_plans(plans: Sequence[Plan], refused: dict[str, str], hardware: Hardware, form: str, as_json: bool) -> None:
    from blockdraft.cli.plan_view import console, plan_to_dict, show_plan  # noqa: PLC0415
    from blockdraft.deploy.dialects import write_command  # noqa: PLC0415

    wanted = _FORMS if form == "all" else (form,)
    if as_json:
        from blockdraft.cli.record import print_json  # noqa: PLC0415

        written = [
            plan_to_dict(plan, write_command(plan.deployment), _forms(plan.deployment, wanted)) for plan in plans
        ]
        print_json({**_head(hardware), "plans": written, "refused": refused})
        return
    out = console()
    out.print(f"hardware  {hardware.describe()} ({hardware.origin})")
    for plan in plans:
        show_plan(out, plan, _forms(plan.deployment, wanted))
    for engine, reason in refused.items():
        out.print(f"\n[bold]{engine}[/bold]\nno plan: {reason}")


def _forms(deployment: Deployment, wanted: Sequence[str]) -> list[tuple[str, str]]:
    """Return a deployment in the forms that are wanted; over several machines, the command of each."""
    from blockdraft.deploy.forms import FORMS, node_commands, shell_text  # noqa: PLC0415

    written = []
    for form in wanted:
        try:
            written.append((form, FORMS[form](deployment)))
        except ConfigError as error:
            if len(wanted) == 1:
                raise
            written.append((form, f"# not in this form: {error}"))
    count = deployment.num_nodes or 1
    if count > 1 and "command" in wanted:
        names = [_NODE.format(number) for number in range(1, count + 1)]
        commands = "\n".join(f"# on {one.node}\n{shell_text(one.words)}" for one in node_commands(deployment, names))
        written = [(form, commands if form == "command" else text) for form, text in written]
    return written


def _head(hardware: Hardware) -> dict[str, Any]:
    from blockdraft import __version__  # noqa: PLC0415

    arguments = click.get_current_context().meta.get(ARGUMENTS_KEY)
    return {"blockdraft": __version__, "command": arguments, "hardware": asdict(hardware)}


def _check(source: str, use: UseOptions, as_json: bool) -> None:
    """Print what is wrong with a command, and the command without it."""
    from blockdraft.cli.command_source import read_source, source_text  # noqa: PLC0415
    from blockdraft.cli.plan_check import show_check, show_unreadable  # noqa: PLC0415
    from blockdraft.deploy.hardware import resolve_hardware  # noqa: PLC0415

    hardware = resolve_hardware(use.hardware)
    head = _head(hardware) if as_json else None
    try:
        found = read_source([source], None)
    except ConfigError as error:
        has_error = show_unreadable(source_text(source), error, use, head)
    else:
        has_error = show_check(found, hardware, use, head)
    if has_error:
        click.get_current_context().exit(1)
