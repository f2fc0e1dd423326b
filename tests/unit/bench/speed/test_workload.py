"""Prompts of every kind, any file of them, filler of a length."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from blockdraft.bench.speed.workload import choose, fill_places, filler, prompt_of, read_prompts, with_prefix
from blockdraft.engine.workloads import Workload
from blockdraft.errors import ConfigError


def prompts_in(tmp_path: Path, *lines: object) -> list[Workload]:
    path = tmp_path / "prompts.jsonl"
    path.write_text("\n".join(json.dumps(line) for line in lines), encoding="utf-8")
    return read_prompts([path])


def test_the_own_set_has_every_kind() -> None:
    chosen = choose(read_prompts(), (), 9)
    assert {"chat", "code", "math", "rag", "edit", "tools"} <= set(chosen)
    ids = [one.id for group in chosen.values() for one in group]
    assert len(ids) == len(set(ids))
    assert all(len(one.turns) >= 3 for one in chosen["tools"])
    assert all(len(one.turns[0].split()) > 180 for one in chosen["rag"])


def test_speed_bench_is_read(tmp_path: Path) -> None:
    row = {
        "question_id": "q7",
        "category": "coding",
        "sub_category": "x",
        "turns": ["Write it.", "Again."],
        "source": "s",
        "src_id": "1",
        "difficulty": None,
        "multiturn": True,
    }
    [workload] = prompts_in(tmp_path, row)
    assert workload == Workload(id="q7", category="coding", turns=("Write it.", "Again."))


def test_messages_are_read_and_the_users_are_sent(tmp_path: Path) -> None:
    messages = [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "One"},
        {"role": "assistant", "content": "Old answer"},
        {"role": "user", "content": "Two"},
    ]
    assert prompts_in(tmp_path, {"messages": messages}) == [Workload(id="1", category="all", turns=("One", "Two"))]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ({"turns": []}, "a list of user messages"),
        ({"turns": ["ok", " "]}, "a list of user messages"),
        ({"turns": "text"}, "a list of user messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "a list of user messages"),
        (["text"], "a list of user messages"),
        ({"turns": ["FULL BENCHMARK DATA SHOULD BE FETCHED FROM THE SOURCE USING SPECDEC_BENCH"]}, "prepare the data"),
    ],
)
def test_what_is_no_prompt_is_refused_with_its_line(tmp_path: Path, line: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        prompts_in(tmp_path, {"turns": ["fine"]}, line)
    assert "line 2" in str(caught.value)


def test_an_empty_or_missing_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_text("\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="holds no prompts"):
        read_prompts([tmp_path / "empty.jsonl"])
    with pytest.raises(ConfigError, match="cannot be read"):
        read_prompts([tmp_path / "nothing.jsonl"])


def test_categories_are_chosen_and_misspelt_ones_corrected() -> None:
    chosen = choose(read_prompts(), ("tools", "code"), 1)
    assert {name: [one.id for one in group] for name, group in chosen.items()} == {
        "tools": ["tools/1"],
        "code": ["code/1"],
    }
    with pytest.raises(ConfigError, match="did you mean 'tools'"):
        choose(read_prompts(), ("tool",), 1)


def test_filler_is_as_long_as_asked_the_same_again_and_not_the_same_for_others() -> None:
    assert len(filler(123, "a").split()) == 123
    assert filler(50, "a") == filler(50, "a") != filler(50, "b")
    words = filler(400, "a").split()
    grams = [tuple(words[n : n + 6]) for n in range(395)]
    # Lines that repeat themselves would be easy to draft.
    assert len(set(grams)) > 0.9 * len(grams)


def test_only_the_first_message_gets_a_prefix_and_a_mark() -> None:
    workload = Workload(id="x", category="a", turns=("Hello", "More"))
    marked = with_prefix(workload, 20, 0, 7)
    assert marked.turns[1] == "More"
    assert marked.turns[0].endswith("\n\nHello")
    assert marked != with_prefix(workload, 20, 1, 7)
    assert marked == with_prefix(workload, 20, 0, 7)
    assert with_prefix(workload, 0, 0, 7, marked=False) == workload


@pytest.mark.parametrize(("places", "ids"), [(1, "a b"), (2, "a b"), (3, "a b a"), (5, "a b a b a")])
def test_places_are_filled_with_copies(places: int, ids: str) -> None:
    chosen = [Workload(id=name, category="x", turns=(name,)) for name in "ab"]
    filled = fill_places(chosen, places)
    assert [prompt_of(one.id) for one in filled] == [one.turns[0] for one in filled] == ids.split()
    assert len({one.id for one in filled}) == len(filled)
    assert fill_places([], places) == []
