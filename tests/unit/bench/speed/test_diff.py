"""Two rigs side by side."""

from __future__ import annotations

from dataclasses import replace

import pytest
from made_runs import cells, made_run

from blockdraft.bench.speed.diff import compare_runs
from blockdraft.bench.speed.workload import Cell

CODE, CHAT, DEEP = Cell(category="code"), Cell(category="chat"), Cell(category="code", depth=9)


def test_rigs_and_settings_that_differ_are_listed_and_others_are_not() -> None:
    before = made_run({CODE: 1.5})
    after = replace(
        before,
        machine={**before.machine, "cpu": "another"},
        settings={"answers": {"temperature": 0.0, "max_tokens": 128}},
        sides=tuple(replace(side, details={"spec": {"n": 3}}) for side in before.sides),
    )
    found = {one.name: (one.before, one.after) for one in compare_runs(before, after).settings}
    assert found == {
        "machine.cpu": ("A <processor>", "another"),
        "settings.answers.max_tokens": (64, 128),
        "sides.speculative.spec": (None, {"n": 3}),
        "sides.baseline.spec": (None, {"n": 3}),
    }
    assert compare_runs(before, before).settings == ()


def test_ratios_are_judged_and_speeds_are_not() -> None:
    difference = compare_runs(made_run({CODE: 1.5, DEEP: 1.5}), made_run({CODE: 2.0, DEEP: 1.505}))
    found = {(one.cell, one.figure): one for one in difference.changes}
    shallow, deep = found[CODE, "decode_ratio"], found[DEEP, "decode_ratio"]
    assert shallow.factor == pytest.approx(2.0 / 1.5)
    assert (shallow.is_clear, deep.is_clear) == (True, False)
    speed = found[CODE, "speculative: tok/s"]
    assert speed.factor == pytest.approx(2.0 / 1.5, rel=1e-3)
    assert speed.is_clear is None
    assert found[CODE, "baseline: tok/s"].factor == pytest.approx(1)


def test_cells_that_only_one_has_are_named() -> None:
    difference = compare_runs(made_run({CODE: 1.5, CHAT: 1.5}), made_run({CODE: 1.5, DEEP: 1.5}))
    assert (difference.only_before, difference.only_after) == ((CHAT,), (DEEP,))
    assert {one.cell for one in difference.changes} == {CODE}


def test_a_run_without_a_baseline_has_speeds_to_compare() -> None:
    alone = made_run(dict.fromkeys(cells("code"), 1.5), has_baseline=False)
    figures = {one.figure for one in compare_runs(alone, alone).changes}
    assert "speculative: tok/s" in figures
    assert not any("ratio" in figure for figure in figures)
