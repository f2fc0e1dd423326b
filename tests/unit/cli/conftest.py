"""Tiny models as files, made once, and a runner that speaks like a shell."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from blockdraft.cli.main import main
from blockdraft.models.load import load_target
from blockdraft.testing.tiny_drafters import TinyDrafter, write_tiny_drafter
from blockdraft.testing.tiny_gguf import write_tiny_gguf

Run = Callable[..., Result]


@dataclass(frozen=True)
class Checkpoints:
    """Paths of a target, drafters for it, and a target that none of them fits."""

    target: str
    dflash: str
    dspark: str
    other: str


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Checkpoints:
    folder = tmp_path_factory.mktemp("checkpoints")
    target = write_tiny_gguf(folder / "target.gguf", quant="F32")
    other = write_tiny_gguf(folder / "other.gguf", quant="F32", hidden_size=32, num_hidden_layers=2)
    info = load_target(target, dtype="float32").info
    dflash = write_tiny_drafter(folder / "dflash", info, TinyDrafter(method="dflash"))
    dspark = write_tiny_drafter(folder / "dspark", info, TinyDrafter(method="dspark", packaging="deepspec"))
    return Checkpoints(str(target), str(dflash), str(dspark), str(other))


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "BLOCKDRAFT_DEBUG", "LLAMA_ARG_SPEC_TYPE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def run() -> Run:
    """Return a function that runs a command line; what it raises besides exit codes is a failure of the test."""

    def run(*arguments: str, input: str | None = None, env: dict[str, str] | None = None) -> Result:
        result = CliRunner().invoke(main, [*map(str, arguments)], input=input, env=env)
        if result.exception and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return run


@pytest.fixture
def generate(run: Run, checkpoints: Checkpoints) -> Run:
    """Return a function that runs `generate` on the tiny target in float32."""

    def generate(*arguments: str, **options: Any) -> Result:
        return run("generate", "-m", checkpoints.target, "--dtype", "float32", *arguments, **options)

    return generate


@pytest.fixture
def generate_json(generate: Run) -> Callable[..., dict[str, Any]]:
    """Return a function that runs `generate --json` and parses all of standard output."""

    def generate_json(*arguments: str, **options: Any) -> dict[str, Any]:
        result = generate(*arguments, "--json", **options)
        assert result.exit_code == 0, result.stderr
        record: dict[str, Any] = json.loads(result.stdout)
        return record

    return generate_json


@pytest.fixture
def text_file(tmp_path: Path) -> Path:
    file = tmp_path / "text.txt"
    file.write_text("the world in the world\n", encoding="utf-8")
    return file
