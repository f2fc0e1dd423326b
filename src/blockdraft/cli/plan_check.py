"""`blockdraft plan --check`: the rules applied to a command that somebody wrote."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.text import Text

from blockdraft.cli.plan_facts import known_draft, known_target
from blockdraft.cli.plan_view import console, findings_to_dict, memory_to_dict, show_findings, show_memory
from blockdraft.cli.record import print_json
from blockdraft.deploy.deployment import Deployment
from blockdraft.deploy.dialects import write_command
from blockdraft.deploy.dialects.words import split_command
from blockdraft.deploy.forms import command_words, shell_text
from blockdraft.deploy.memory import account
from blockdraft.deploy.planning import mend
from blockdraft.deploy.rules import Situation, Workload, examine
from blockdraft.deploy.versions import known_version
from blockdraft.errors import ConfigError

if TYPE_CHECKING:
    from blockdraft.cli.command_source import FoundCommand
    from blockdraft.cli.plan import UseOptions
    from blockdraft.deploy.hardware import Hardware


def situation_of(found: FoundCommand, hardware: Hardware, use: UseOptions) -> Situation:
    """Return the situation that a command describes: what it says, the models it names, and how it will be used."""
    deployment = found.reading.deployment
    network = next((draft for draft in deployment.drafts if draft.model), None)
    given = use.engine_version or deployment.engine_version
    return Situation(
        deployment=deployment,
        version=known_version(deployment.engine, given),
        target_facts=known_target(deployment.target).facts,
        draft_facts=known_draft(network.model) if network and network.model else None,
        hardware=hardware,
        words=split_command(found.text).words if found.form == "command" else (),
        workload=Workload(thinking=use.thinking, num_concurrent=use.sequences),
    )


def show_check(found: FoundCommand, hardware: Hardware, use: UseOptions, head: dict[str, Any] | None) -> bool:
    """Print what the rules find, as JSON if there is a `head` for it; return whether one is an error."""
    situation = situation_of(found, hardware, use)
    seen = examine(situation)
    memory = account(situation.deployment, situation.target_facts, situation.draft_facts, hardware)
    mended, repairs = mend(situation)
    is_outdated = any(note.kind == "outdated" for note in found.reading.notes)
    fixed = shell_text(command_words(mended.deployment)) if repairs or is_outdated else None
    has_error = bool(seen.of("error"))
    if head is not None:
        print_json(
            {
                **head,
                "engine": situation.deployment.engine,
                "version": asdict(situation.version),
                "deployment": asdict(situation.deployment),
                "read": [asdict(note) for note in found.reading.notes],
                "memory": memory_to_dict(memory),
                **findings_to_dict(seen),
                "mended": list(write_command(mended.deployment)) if fixed else None,
            }
        )
        return has_error
    out = console()
    out.print(f"{situation.version.describe()} on {hardware.describe()}")
    for note in found.reading.notes:
        out.print(Text(f"{note.kind.replace('-', ' ')}: {note}"))
    show_findings(out, seen)
    if situation.target_facts is not None:
        show_memory(out, memory)
    if fixed:
        out.print(Text("\nmended", style="bold"))
        for repair in repairs:
            out.print(Text(f"# {repair.setting}: {repair.value}", style="dim"))
        out.print(Text(fixed))
    return has_error


def show_unreadable(text: str, error: ConfigError, use: UseOptions, head: dict[str, Any] | None) -> bool:
    """Print what the words of a command tell that cannot be read as a whole; return that there is an error.

    Raises:
        ConfigError: the words tell nothing; it is the error of reading.
    """
    try:
        line = split_command(text)
    except ConfigError:
        raise error from None
    situation = Situation(
        deployment=Deployment(engine=line.engine, target="", environment=line.environment),
        version=known_version(line.engine, use.engine_version or line.engine_version),
        words=line.words,
    )
    seen = examine(situation)
    if not seen.of("error"):
        raise error
    if head is not None:
        print_json({**head, "engine": line.engine, "unreadable": str(error), **findings_to_dict(seen)})
        return True
    out = console()
    out.print(situation.version.describe())
    out.print(Text(f"it cannot be read as a whole: {error}"))
    show_findings(out, seen)
    return True
