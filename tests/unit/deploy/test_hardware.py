"""Profiles, own files, and what this machine says of itself."""

from __future__ import annotations

import json

import pytest

from blockdraft.deploy.hardware import GIB, detect, from_file, profile, profile_names, resolve_hardware
from blockdraft.errors import ConfigError

MEMINFO = "MemTotal:       24659812 kB\nMemFree:         1 kB\n"


@pytest.fixture
def meminfo(tmp_path):
    path = tmp_path / "meminfo"
    path.write_text(MEMINFO, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("name", "accelerator", "num_devices", "gib"),
    [
        ("rtx3090", "sm_86", 1, 24),
        ("rtx4090", "sm_89", 1, 24),
        ("rtx5090", "sm_120", 1, 32),
        ("dgx-spark", "sm_121", 1, 119),
        ("strix-halo", "gfx1151", 1, 120),
        ("arc-b70x4", "SYCL", 4, 32),
        ("h100x8", "sm_90", 8, 80),
        ("h200", "sm_90", 1, 139),
        ("cpu", "cpu", 1, 32),
    ],
)
def test_a_profile(name, accelerator, num_devices, gib) -> None:
    found = profile(name)
    assert (found.accelerator, found.num_devices, found.memory_bytes) == (accelerator, num_devices, gib * GIB)
    assert found.name == name


@pytest.mark.parametrize("name", profile_names())
def test_every_profile_can_be_read_and_described(name) -> None:
    assert profile(name).title in profile(name).describe()
    assert profile(f"{name}x2").num_devices == 2


def test_machines_with_one_device_each_become_several() -> None:
    assert profile("dgx-sparkx2").num_nodes == 2
    assert profile("h100x8").num_nodes == 1
    assert profile("h100x16").num_nodes == 2


@pytest.mark.parametrize(
    ("name", "words"), [("rtx3900", "did you mean 'rtx3090'"), ("h100x0", "0 devices"), ("h100x900", "900 devices")]
)
def test_an_unknown_name_gets_the_nearest_one(name, words) -> None:
    with pytest.raises(ConfigError, match=words):
        profile(name)


def test_own_hardware_from_a_file(tmp_path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(
        'vendor = "nvidia"\nmemory_gib = 48\ncompute_capability = "8.6"\nnum_devices = 2\n', encoding="utf-8"
    )
    found = resolve_hardware(str(path))
    assert (found.num_devices, found.compute_capability, found.memory_bytes) == (2, (8, 6), 48 * GIB)
    assert found.origin == str(path)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"vendor": "nvidia", "memory_gb": 48}, "did you mean 'memory_gib'"),
        ({"vendor": "nvidia"}, "does not say memory_gib"),
        ({"vendor": "nvidea", "memory_gib": 48}, "one of nvidia"),
        ({"vendor": "nvidia", "memory_gib": "48"}, "not of the right kind"),
        ({"vendor": "nvidia", "memory_gib": True}, "not of the right kind"),
        ({"vendor": "nvidia", "memory_gib": 48, "compute_capability": "sm_86"}, "write it like"),
        ([], "one table"),
    ],
)
def test_a_wrong_file_says_what_is_wrong(tmp_path, data, words) -> None:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(data), encoding="utf-8")
    with pytest.raises(ConfigError, match=words):
        from_file(path)


def test_nvidia_devices_are_counted_and_named(meminfo) -> None:
    printed = "NVIDIA GeForce RTX 3090, 24576, 8.6\n" * 2
    found = detect(lambda words: printed if words[0] == "nvidia-smi" else None, meminfo)
    assert (found.num_devices, found.compute_capability, found.memory_bytes) == (2, (8, 6), 24 * GIB)
    assert found.bandwidth_gb_s == 936


def test_a_like_named_device_is_not_taken_for_a_profile(meminfo) -> None:
    found = detect(lambda words: "NVIDIA GeForce RTX 3090 Ti, 24564, 8.6\n" if "nvidia" in words[0] else None, meminfo)
    assert found.bandwidth_gb_s is None


def test_a_gb10_has_the_memory_of_the_machine(meminfo) -> None:
    found = detect(lambda words: "NVIDIA GB10, [N/A], 12.1\n" if words[0] == "nvidia-smi" else None, meminfo)
    assert found.unified_memory
    assert found.memory_bytes == 24659812 * 1024


def test_an_amd_device(meminfo) -> None:
    card = {"card0": {"Card Series": "Radeon 8060S", "GFX Version": "gfx1151", "VRAM Total Memory (B)": "536870912"}}
    found = detect(lambda words: json.dumps(card) if words[0] == "rocm-smi" else None, meminfo)
    assert (found.gfx, found.unified_memory, found.memory_bytes) == ("gfx1151", True, 24659812 * 1024)


@pytest.mark.parametrize("printed", [None, "", "no devices were found", "{broken"])
def test_without_an_accelerator_it_is_the_processor(meminfo, printed) -> None:
    found = detect(lambda _: printed, meminfo)
    assert (found.vendor, found.memory_bytes) == ("cpu", 24659812 * 1024)


def test_without_anything_to_read_it_is_an_error(tmp_path) -> None:
    with pytest.raises(ConfigError, match="name a profile"):
        detect(lambda _: None, tmp_path / "nothing")
