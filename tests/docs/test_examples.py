"""What the pages tell readers to run is run here, on tiny models that stand for those named."""

import re
import shlex
from itertools import pairwise
from pathlib import Path

import pytest
from click.testing import CliRunner
from markdown_pages import PAGES, ROOT, CodeBlock, blocks_of, name_of

from blockdraft.cli.main import main

WITH_PYTHON = [page for page in PAGES if blocks_of(page, "python")]
COMMANDS = [
    pytest.param(line.strip(), id=f"{name_of(block.page)}:{line.strip()[:60]}")
    for page in PAGES
    for block in blocks_of(page, "bash")
    for line in block.text.replace("\\\n", " ").splitlines()
    if line.strip() and not line.lstrip().startswith("#")
]


@pytest.mark.parametrize("page", WITH_PYTHON, ids=name_of)
@pytest.mark.usefixtures("pretended_models")
def test_the_python_of_a_page_runs_from_top_to_bottom(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    namespace: dict[str, object] = {"__name__": "page"}
    for block in blocks_of(page, "python"):
        _execute(block, namespace)
        for name in [name for name in namespace if name.startswith("test_")]:
            namespace.pop(name)()  # type: ignore[operator]
    assert "Traceback" not in capsys.readouterr().out


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.usefixtures("pretended_models")
def test_a_command_of_a_page_runs(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    before, _, piped = command.rpartition(" | ")
    words = shlex.split(piped, comments=True)
    if words[0] == "blockdraft":
        _run(words[1:], text="a text\n" if before else None)
    elif words[0] == "make":
        assert re.search(rf"^{words[1]}:.* ## ", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    elif words[0] == "python":
        assert (ROOT / words[1]).is_file()
    else:
        assert words[:2] == ["pip", "install"], f"nobody checks {command!r}"


def _execute(block: CodeBlock, namespace: dict[str, object]) -> None:
    # Blank lines in front, so that a traceback names the line of the page.
    code = compile("\n" * block.line + block.text, str(block.page), "exec")
    exec(code, namespace)


def _run(arguments: list[str], text: str | None) -> None:
    for flag, value in pairwise(arguments):
        if flag in ("--file", "-f"):
            Path(value).write_text("A file that a page speaks of.", encoding="utf-8")
    for name in {argument for argument in arguments if argument.endswith(".jsonl")}:
        Path(name).write_text(
            '{"id": "1", "turns": ["Hello"], "prompt": "Hello", "answer": "Yes?"}\n', encoding="utf-8"
        )
    result = CliRunner().invoke(main, arguments, input=text, catch_exceptions=False)
    assert result.exit_code == 0, result.output
