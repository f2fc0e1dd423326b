"""What drafts when nothing is asked for depends on the model, and is said."""

from dataclasses import replace
from pathlib import Path

import pytest

from blockdraft.engine import load
from blockdraft.models.references import DEFAULT_MODEL, builtin


def test_a_model_without_a_shipped_drafter_drafts_from_ngrams_and_says_nothing() -> None:
    assert load.default_spec_for("Qwen/Qwen3-8B") == load.DEFAULT_SPEC


@pytest.mark.parametrize("is_installed", [True, False])
def test_a_shipped_drafter_is_asked_after_the_ngrams(
    is_installed: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(builtin, "folder", lambda: tmp_path)
    if is_installed:
        (tmp_path / "smollm2-dspark.gguf").touch()
    spec = load.default_spec_for(DEFAULT_MODEL)
    expected = load.SHIPPED_SPECS[DEFAULT_MODEL] if is_installed else load.DEFAULT_SPEC
    assert spec == replace(expected, notes=spec.notes)
    assert spec.types == (("ngram-simple", "draft-dspark") if is_installed else ("ngram-simple",))
    (note,) = spec.notes
    assert ("came without builtin:smollm2-dspark" in note) != is_installed
