"""How a plan and a check are shown: the drafter, the command, the memory, and what the rules found."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from blockdraft.deploy.hardware import GIB

if TYPE_CHECKING:
    from blockdraft.deploy.memory import MemoryAccount
    from blockdraft.deploy.model_facts import DraftFacts, TargetFacts
    from blockdraft.deploy.planning import Choice, Plan
    from blockdraft.deploy.rules import Examination
    from blockdraft.deploy.rules.rule import Finding

_COLOURS = {"error": "bold red", "warning": "yellow", "note": "dim"}
_INDENT = "    "


def console() -> Console:
    """Return where plans are printed: commands are never broken, so that they can be copied."""
    return Console(highlight=False, soft_wrap=True)


def show_plan(out: Console, plan: Plan, forms: Iterable[tuple[str, str]]) -> None:
    """Print one plan."""
    wish, drafter = plan.wish, plan.drafter
    out.print(Text(f"\n{wish.version.describe()}", style="bold"))
    target = f"target    {wish.target}"
    if plan.target_facts:
        target += f" ({plan.target_facts.origin})"
    out.print(Text(target))
    if wish.base:
        out.print(Text(f"base      {wish.base.name}: {wish.base.how}"))
    out.print(Text(f"drafter   {plan.choices[0].value}: {drafter.why}"))
    if drafter.method and drafter.registered:
        if needed := drafter.registered.first_version(wish.engine):
            out.print(Text(f"{_INDENT}runs from {wish.engine} {needed} on"))
        for fault in drafter.registered.faults:
            out.print(Text(f"{_INDENT}known: {fault.what} [{fault.source}]"))
    for other in drafter.others:
        out.print(Text(f"{_INDENT}not taken: {other}", style="dim"))
    for name, text in forms:
        out.print(Text(f"\n{name}", style="bold"))
        out.print(Text(text.rstrip("\n")))
    out.print(_choices(plan.choices))
    show_memory(out, plan.memory)
    for advice in plan.advice:
        out.print(Text(f"it does not fit: {advice}", style="bold"))
    show_findings(out, plan.examination)


def _choices(choices: Iterable[Choice]) -> Table:
    table = Table(title="\nwhy", title_justify="left", title_style="bold", box=None, padding=(0, 2, 0, 0))
    table.show_header = False
    for choice in choices:
        source = f" [{choice.source}]" if choice.source else ""
        table.add_row(*map(Text, (choice.setting, choice.value, choice.why + source)))
    return table


def show_memory(out: Console, memory: MemoryAccount) -> None:
    """Print the memory account."""
    table = Table(
        title="\nmemory of one device",
        title_style="bold",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    table.add_column("")
    table.add_column("GiB", justify="right")
    table.add_column("how")
    for item in memory.items:
        how = item.how + (" (estimate)" if item.is_estimate else "")
        table.add_row(item.name, f"{item.num_bytes / GIB:.2f}", Text(how))
    verdict = {True: "fits", False: "does not fit", None: "fits, as far as it is known"}[memory.fits]
    table.add_section()
    table.add_row("together", f"{memory.total_bytes / GIB:.2f}", f"of {memory.budget_bytes / GIB:.2f}: {verdict}")
    out.print(table)
    if memory.context_with_drafts is not None:
        drafting, plain = memory.context_with_drafts, memory.context_without_drafts
        each = f"for each of {memory.num_sequences}" if memory.num_sequences > 1 else "for one sequence"
        without = f", {plain} without drafts" if plain != drafting else ""
        out.print(Text(f"context that fits {each}: {drafting} tokens{without}"))
    for what in memory.unknown:
        out.print(Text(f"not counted: {what}", style="dim"))


def show_findings(out: Console, examination: Examination) -> None:
    """Print what the rules found, the worst first, and what they could not look at."""
    if not examination.findings:
        out.print(Text("\nno rule found anything"))
    for finding in examination.findings:
        out.print(_finding(finding))
    if missing := examination.missing:
        spoken = ", ".join(f"{what} ({count} rules)" if count > 1 else what for what, count in missing.items())
        out.print(Text(f"\nnot checked, because nobody said: {spoken}", style="dim"))


def _finding(finding: Finding) -> Text:
    text = Text()
    text.append(f"\n{finding.severity:8}", style=_COLOURS[finding.severity])
    text.append(f"{finding.rule:5}{finding.flag}")
    if finding.seen:
        text.append(f": {finding.seen}")
    text.append(f"\n{_INDENT}{finding.effect}")
    text.append(f"\n{_INDENT}fix: {finding.fix}")
    how = "reported, not reproduced: " if finding.is_reported else ""
    text.append(f"\n{_INDENT}[{how}{finding.source}]", style="dim")
    return text


def findings_to_dict(examination: Examination) -> dict[str, Any]:
    """Return findings and what was not checked as plain data."""
    return {
        "findings": [
            {**vars(finding), "repaired": asdict(finding.repaired) if finding.repaired else None}
            for finding in examination.findings
        ],
        "not_checked": [asdict(each) for each in examination.not_checked],
    }


def memory_to_dict(memory: MemoryAccount) -> dict[str, Any]:
    """Return the memory account as plain data."""
    return {**asdict(memory), "total_bytes": memory.total_bytes, "fits": memory.fits}


def _facts(facts: TargetFacts | DraftFacts) -> dict[str, Any]:
    """Return facts without the names of all tensors and files."""
    return {name: value for name, value in asdict(facts).items() if name not in ("tensor_names", "file_names")}


def plan_to_dict(plan: Plan, command: Iterable[str], forms: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """Return a plan as plain data."""
    drafter = plan.drafter
    return {
        "engine": plan.wish.engine,
        "version": asdict(plan.wish.version),
        "can_start": plan.can_start,
        "target": _facts(plan.target_facts) if plan.target_facts else None,
        "base": asdict(plan.wish.base) if plan.wish.base else None,
        "drafter": {
            "method": drafter.method,
            "model": drafter.model,
            "why": drafter.why,
            "source": drafter.source,
            "facts": _facts(drafter.facts) if drafter.facts else None,
            "first_version": drafter.registered.first_version(plan.wish.engine) if drafter.registered else None,
            "faults": [asdict(fault) for fault in drafter.registered.faults] if drafter.registered else [],
            "others": list(drafter.others),
        },
        "command": list(command),
        "forms": dict(forms),
        "deployment": asdict(plan.deployment),
        "choices": [asdict(choice) for choice in plan.choices],
        "memory": memory_to_dict(plan.memory),
        "advice": list(plan.advice),
        **findings_to_dict(plan.examination),
    }
