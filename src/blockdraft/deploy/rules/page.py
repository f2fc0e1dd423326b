"""The rules as a page of the documentation: `python -m blockdraft.deploy.rules.page > docs/preflight-rules.md`."""

from __future__ import annotations

from collections.abc import Iterable

from blockdraft.deploy.rules import RULES
from blockdraft.deploy.rules.rule import Rule

_HEAD = """# Preflight rules

What `blockdraft plan` looks for before an engine is started. Written by `python -m blockdraft.deploy.rules.page`; the
rules themselves are data in `src/blockdraft/deploy/rules/`, one file for each topic.

An *error* ends the launch, or spoils answers or acceptance; a *warning* costs speed or memory; a *note* is worth
knowing. Sources are issues, or `read in VERSION` for what was read in the engine's code; *dated by wheels* means that
releases were compared. What only threads say is marked **reported**: nobody here reproduced it. A rule that needs
something nobody said is not applied, and the check says what was missing.

P rules are about vLLM and SGLang, L rules about llama.cpp, M rules come from the memory account. **mends** marks rules
whose fault `plan` mends by itself.
"""


def rules_page(rules: Iterable[Rule] = RULES) -> str:
    """Return the page in Markdown: a table for each topic."""
    topics: dict[str, list[Rule]] = {}
    for rule in rules:
        topics.setdefault(rule.topic, []).append(rule)
    parts = [_HEAD]
    for topic, members in topics.items():
        parts.append(f"\n## {topic[0].upper()}{topic[1:]}\n")
        parts.append("| rule | setting | what happens | what to do | source |")
        parts.append("|---|---|---|---|---|")
        parts += [_row(rule) for rule in members]
    return "\n".join(parts) + "\n"


def _row(rule: Rule) -> str:
    marks = "".join((", **reported**" if rule.is_reported else "", ", **mends**" if rule.repair else ""))
    cells = (
        f"{rule.id}, {rule.severity}{marks}; {rule.versions}",
        ", ".join(f"`{flag}`" if _is_setting(flag) else flag for flag in rule.flag.split("; ")),
        rule.effect,
        rule.fix,
        rule.source,
    )
    return "| " + " | ".join(cell.replace("|", "\\|").replace("<", "&lt;") for cell in cells) + " |"


def _is_setting(flag: str) -> bool:
    return " " not in flag


if __name__ == "__main__":
    print(rules_page(), end="")
