"""What drafts when nothing is asked for depends on the model, and is said."""

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
    monkeypatch.setattr(load, "SHIPPED_DRAFTERS", {DEFAULT_MODEL: "builtin:smollm2-dspark"})
    monkeypatch.setattr(builtin, "folder", lambda: tmp_path)
    if is_installed:
        (tmp_path / "smollm2-dspark.gguf").touch()
    spec = load.default_spec_for(DEFAULT_MODEL)
    expected = (*load.DEFAULT_SPEC.types, "draft-dspark") if is_installed else load.DEFAULT_SPEC.types
    assert spec.types == expected
    assert spec.draft_model == ("builtin:smollm2-dspark" if is_installed else None)
    assert spec.n_max == (load.SHIPPED_N_MAX if is_installed else None)
    (note,) = spec.notes
    assert ("came without builtin:smollm2-dspark" in note) != is_installed
