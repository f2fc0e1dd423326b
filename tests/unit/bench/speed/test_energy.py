"""Counters that run over, zones that are none, and power summed over time."""

from __future__ import annotations

from pathlib import Path

import pytest

from blockdraft.bench.speed import energy
from blockdraft.bench.speed.energy import PowerMeter, RaplMeter, find_meter, joules


def zone(folder: Path, name: str, kind: str, microjoules: int, limit: int = 10_000_000) -> Path:
    path = folder / name
    path.mkdir()
    for file, value in (("name", kind), ("energy_uj", microjoules), ("max_energy_range_uj", limit)):
        (path / file).write_text(f"{value}\n", encoding="ascii")
    return path


def test_packages_are_summed_parts_of_them_are_not_and_counters_may_run_over(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(energy, "read_card_watts", lambda: None)
    first = zone(tmp_path, "intel-rapl:0", "package-0", 1_000_000)
    second = zone(tmp_path, "intel-rapl:1", "package-1", 9_000_000)
    zone(tmp_path, "intel-rapl:0:0", "core", 500)
    zone(tmp_path, "intel-rapl-mmio:0", "psys", 500)
    meter = find_meter(tmp_path)
    assert isinstance(meter, RaplMeter)
    assert "2 processor packages" in meter.source
    meter.start()
    (first / "energy_uj").write_text("3500000", encoding="ascii")
    (second / "energy_uj").write_text("1000000", encoding="ascii")
    assert meter.stop() == pytest.approx(2.5 + 2.0)
    (first / "energy_uj").unlink()
    assert meter.stop() is None


def test_a_machine_that_tells_nothing_has_no_meter(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(energy, "read_card_watts", lambda: None)
    assert find_meter(tmp_path / "nothing") is None
    zone(tmp_path, "intel-rapl:0", "package-0", 1).joinpath("energy_uj").unlink()
    assert find_meter(tmp_path) is None


def test_power_is_summed_over_time() -> None:
    assert joules([(0, 100), (1, 100), (3, 200)]) == pytest.approx(100 + 300)


def test_cards_are_read_while_the_pass_runs(monkeypatch) -> None:
    monkeypatch.setattr(energy, "read_card_watts", lambda: 50.0)
    meter = find_meter()
    assert isinstance(meter, PowerMeter)
    clock = iter(range(100))
    monkeypatch.setattr(energy, "perf_counter", lambda: next(clock))
    meter = PowerMeter(lambda: 50.0, "cards", every_s=60)
    meter.start()
    assert meter.stop() == pytest.approx(50.0)
    assert PowerMeter(lambda: None, "gone", every_s=60).stop() is None


def test_nvidia_smi_tells_one_number_for_each_card(tmp_path: Path, monkeypatch) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\nprintf '70.50\\n29.50\\n'\n", encoding="ascii")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert energy.read_card_watts() == pytest.approx(100)
    tool.write_text("#!/bin/sh\necho '[N/A]'\n", encoding="ascii")
    assert energy.read_card_watts() is None
    monkeypatch.setenv("PATH", "")
    assert energy.read_card_watts() is None
