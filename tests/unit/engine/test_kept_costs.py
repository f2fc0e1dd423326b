"""Costs are measured once and read ever after."""

from __future__ import annotations

from pathlib import Path

import pytest

from blockdraft.engine import kept_costs
from blockdraft.engine.pass_costs import DraftCost, PassCosts
from blockdraft.testing.scripted import ScriptedDrafter
from blockdraft.testing.tiny_models import tiny_target

COSTS = PassCosts(num_rows=(1, 2), depths=(0,), target_s=((1.0, 1.5),), draft_s={"d": DraftCost(first_s=0.1)})


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """Return the names of the drafters that were measured with."""
    names: list[str] = []

    def measure(target, drafter):  # type: ignore[no-untyped-def]
        names.append(drafter.traits.name if drafter else "")
        return COSTS

    monkeypatch.setattr(kept_costs, "measure_pass_costs", measure)
    monkeypatch.setattr(kept_costs, "cache_folder", lambda: tmp_path)
    set_load(monkeypatch, 0.1)
    return names


def set_load(monkeypatch: pytest.MonkeyPatch, load: float) -> None:
    monkeypatch.setattr("os.getloadavg", lambda: (load, 0.0, 0.0))


def test_a_table_is_measured_once_for_each_drafter(measured: list[str]) -> None:
    told: list[str] = []
    target = tiny_target()
    drafter = ScriptedDrafter({}, vocab_size=target.info.vocab_size)
    for _ in range(3):
        assert kept_costs.kept_pass_costs(target, drafter, notify=told.append) == COSTS
        assert kept_costs.kept_pass_costs(target, None, notify=told.append) == COSTS
    assert measured == ["scripted", ""]
    assert len(told) == 2
    assert all("kept in" in text for text in told)


def test_another_number_of_threads_or_another_target_is_measured_anew(
    measured: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    kept_costs.kept_pass_costs(tiny_target(), None, notify=lambda _: None)
    kept_costs.kept_pass_costs(tiny_target(hidden_size=32), None, notify=lambda _: None)
    monkeypatch.setattr("torch.get_num_threads", lambda: 77)
    kept_costs.kept_pass_costs(tiny_target(), None, notify=lambda _: None)
    assert len(measured) == 3


def test_it_can_be_measured_anew(measured: list[str]) -> None:
    for _ in range(2):
        kept_costs.kept_pass_costs(tiny_target(), None, notify=lambda _: None, anew=True)
    assert len(measured) == 2


def test_what_a_busy_machine_gave_is_used_until_it_is_less_busy(
    measured: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    for load, count in ((8.0, 1), (9.0, 1), (4.1, 1), (3.9, 2), (3.0, 2), (0.2, 3), (0.2, 3), (2.0, 3)):
        set_load(monkeypatch, load)
        kept_costs.kept_pass_costs(tiny_target(), None, notify=told.append)
        assert len(measured) == count
    measuring, doubt, still, again = "measured in", "until then drafts may be left out", "as it still is", "busier than"
    expected = [measuring, doubt, still, still, again, measuring, doubt, still, again, measuring]
    assert all(part in text for part, text in zip(expected, told, strict=True)), told


@pytest.mark.parametrize("content", ["", "{}", '{"costs": 3}', '{"costs": {"num_rows": [1]}}'])
def test_a_broken_table_is_told_and_measured_again(measured: list[str], tmp_path: Path, content: str) -> None:
    kept_costs.kept_pass_costs(tiny_target(), None, notify=lambda _: None)
    [path] = (tmp_path / "pass_costs").glob("*.json")
    path.write_text(content)
    told: list[str] = []
    assert kept_costs.kept_pass_costs(tiny_target(), None, notify=told.append) == COSTS
    assert "holds no pass costs" in told[0]
    assert len(measured) == 2


def test_a_folder_that_cannot_be_written_is_told(measured: list[str], tmp_path: Path) -> None:
    (tmp_path / "pass_costs").write_text("in the way")
    told: list[str] = []
    assert kept_costs.kept_pass_costs(tiny_target(), None, notify=told.append) == COSTS
    assert "measured again" in told[0]
