"""Pages with a recipe: their `sh` blocks run in order in one folder, beside it."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from markdown_pages import PAGES, blocks_of, name_of

from blockdraft.cli.main import main
from blockdraft.models.references import pypi
from blockdraft.models.references.grammar import ModelReference, ResolvedModel
from blockdraft.testing.tiny_gguf import write_tiny_gguf

STORIES = [page for page in PAGES if blocks_of(page, "sh") and blocks_of(page, "toml")]


@pytest.mark.parametrize("page", STORIES, ids=name_of)
def test_the_commands_of_a_page_run_one_after_another(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = write_tiny_gguf(tmp_path / "default.gguf", "qwen3", "F32", num_hidden_layers=4)

    def resolve(reference: ModelReference, **_options: Any) -> ResolvedModel:
        return ResolvedModel(reference=reference, path=model, kind="gguf")

    monkeypatch.setattr(pypi, "resolve", resolve)
    monkeypatch.chdir(tmp_path)
    for block in blocks_of(page, "toml"):
        Path("recipe.toml").write_text(block.text, encoding="utf-8")
    rows = [f'{{"id": "{number}", "prompt": "Question {number}?"}}\n' for number in range(12)]
    Path("prompts.jsonl").write_text("".join(rows), encoding="utf-8")
    for line in "".join(block.text for block in blocks_of(page, "sh")).replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if words:
            assert words[0] == "blockdraft"
            result = CliRunner().invoke(main, words[1:], catch_exceptions=False)
            assert result.exit_code == 0, f"{line}\n{result.output}"
