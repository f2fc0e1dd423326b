"""The group: help that does not wait, errors in one line, exit codes."""

from __future__ import annotations

import subprocess
import sys

import pytest

from blockdraft import __version__
from blockdraft.errors import BlockdraftError, ConfigError, NotFoundError, PairError


@pytest.mark.parametrize("arguments", [["--help"], ["generate", "--help"], ["chat", "-h"], ["inspect", "--help"]])
def test_help_imports_no_model_library(arguments: list[str]) -> None:
    program = (
        "import sys; from blockdraft.cli.main import main\n"
        f"main({arguments!r}, standalone_mode=False)\n"
        "print('heavy:', sorted({'torch', 'transformers', 'huggingface_hub', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "heavy: []" in done.stdout


def test_version(run) -> None:
    assert run("--version").stdout == f"blockdraft {__version__}\n"


def test_examples_in_the_help_keep_their_lines(run) -> None:
    lines = run("--help").stdout.splitlines()
    assert "  blockdraft chat" in lines
    assert not any("\\b" in line for line in lines)


def test_a_misspelt_command_is_corrected(run) -> None:
    result = run("genrate", "hi")
    assert result.exit_code == 2
    assert "did you mean 'generate'?" in result.stderr


def test_a_prompt_without_a_command_is_told_where_it_goes(run) -> None:
    assert 'blockdraft generate "Why is the sky blue?"' in run("Why is the sky blue?").stderr


def test_a_misspelt_option_is_corrected_but_never_to_a_removed_one(run) -> None:
    result = run("generate", "hi", "--drafer", "none")
    assert result.exit_code == 2
    assert "--drafter" in result.stderr
    assert "'--draft'" not in result.stderr


@pytest.mark.parametrize(
    ("error", "code"),
    [(ConfigError("bad"), 2), (NotFoundError("bad"), 2), (PairError("bad"), 1), (BlockdraftError("bad"), 1)],
)
def test_our_errors_are_one_line_and_an_exit_code(run, monkeypatch, error: BlockdraftError, code: int) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr("blockdraft.cli.generate.load_engine", fail)
    result = run("generate", "hi")
    assert (result.exit_code, result.stdout, result.stderr) == (code, "", "Error: bad\n")


def test_debug_lets_the_error_through(run) -> None:
    with pytest.raises(ConfigError):
        run("generate", "hi", "--temperature", "-1", "--debug")
    with pytest.raises(ConfigError):
        run("generate", "hi", "--temperature", "-1", env={"BLOCKDRAFT_DEBUG": "1"})


def test_an_interrupt_while_loading_is_code_130(run, monkeypatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("blockdraft.cli.generate.load_engine", interrupt)
    result = run("generate", "hi")
    assert (result.exit_code, result.stderr) == (130, "interrupted\n")


@pytest.mark.slow
def test_a_reader_that_leaves_early_causes_no_traceback(checkpoints) -> None:
    command = f"{sys.executable} -m blockdraft.cli.main generate hello -m {checkpoints.target} --ignore-eos | head -c 1"
    done = subprocess.run(command, shell=True, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True)
    assert "Traceback" not in done.stderr
