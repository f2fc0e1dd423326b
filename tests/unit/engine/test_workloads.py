import json

import pytest

from blockdraft.engine.workloads import pick, read_workloads
from blockdraft.errors import ConfigError


def write(path, *lines: str):
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def prompt(identity: str, category: str) -> str:
    return json.dumps({"id": identity, "category": category, "turns": ["Hello"], "source": "a test"})


def test_the_own_set_covers_six_categories_evenly():
    workloads = read_workloads()
    assert len(workloads) == 24
    categories = [workload.category for workload in workloads]
    assert {categories.count(name) for name in categories} == {4}
    assert set(categories) == {"chat", "code", "math", "summarise", "edit", "extract"}
    assert len({workload.id for workload in workloads}) == 24


def test_a_file_of_the_same_form_is_read_in_order_and_more_keys_are_left_alone(tmp_path):
    path = write(tmp_path / "p.jsonl", prompt("b", "chat"), "", prompt("a", "code"))
    found = [(workload.id, workload.turns) for workload in read_workloads(path)]
    assert found == [("b", ("Hello",)), ("a", ("Hello",))]


@pytest.mark.parametrize(
    "line",
    [
        "not json",
        "[]",
        '{"id": "a", "category": "chat"}',
        '{"id": "a", "category": "chat", "turns": []}',
        '{"id": "a", "category": "chat", "turns": [""]}',
        '{"id": "a", "category": "chat", "turns": "one message"}',
        '{"id": "a", "category": "chat", "turns": [1]}',
    ],
)
def test_a_line_that_is_no_prompt_is_named(tmp_path, line):
    path = write(tmp_path / "p.jsonl", prompt("a", "chat"), line)
    with pytest.raises(ConfigError, match=r"p\.jsonl, line 2"):
        read_workloads(path)


def test_a_missing_or_empty_file_is_an_error(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read"):
        read_workloads(tmp_path / "absent.jsonl")
    with pytest.raises(ConfigError, match="no prompts"):
        read_workloads(write(tmp_path / "empty.jsonl", ""))


def test_a_pick_takes_the_categories_in_turn(tmp_path):
    lines = [prompt(name, name[0]) for name in ("a1", "a2", "a3", "b1", "c1", "c2")]
    workloads = read_workloads(write(tmp_path / "p.jsonl", *lines))
    assert [workload.id for workload in pick(workloads, 5)] == ["a1", "b1", "c1", "a2", "c2"]
    assert len(pick(workloads, 99)) == 6
