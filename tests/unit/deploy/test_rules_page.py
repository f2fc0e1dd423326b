"""docs/preflight-rules.md is what the rules are."""

from pathlib import Path

from blockdraft.deploy.rules import RULES
from blockdraft.deploy.rules.page import rules_page

PAGE = Path(__file__).parents[3] / "docs" / "preflight-rules.md"


def test_the_page_is_in_step_with_the_rules() -> None:
    again = "write it again: python -m blockdraft.deploy.rules.page > docs/preflight-rules.md"
    assert PAGE.read_text(encoding="utf-8") == rules_page(), again


def test_every_rule_has_a_row_of_five_cells() -> None:
    rows = [line for line in rules_page().splitlines() if line.startswith("| ") and not line.startswith("| rule ")]
    assert len(rows) == len(RULES)
    assert {row.replace("\\|", "").count("|") for row in rows} == {6}
