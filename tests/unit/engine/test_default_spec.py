"""What drafts when nothing is asked for depends on the model, and is said."""

from dataclasses import replace
from pathlib import Path

import pytest

from blockdraft.engine import load
from blockdraft.engine.pass_costs import DraftCost, PassCosts
from blockdraft.models.load import load_model
from blockdraft.models.references import DEFAULT_MODEL, builtin
from blockdraft.testing.tiny_drafters import TinyDrafter, write_tiny_drafter
from blockdraft.testing.tiny_gguf import write_tiny_gguf


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


@pytest.mark.parametrize(("draft_s", "is_used"), [(0.1, True), (5.0, False)])
def test_a_shipped_drafter_is_left_out_where_it_could_not_pay(
    draft_s: float, is_used: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = str(write_tiny_gguf(tmp_path / "target.gguf", quant="F32"))
    loaded = load_model(path, dtype="float32")
    folder = write_tiny_drafter(
        tmp_path / "dspark", loaded.target.info, TinyDrafter(method="dspark", packaging="deepspec")
    )
    shipped = replace(load.DEFAULT_SPEC, types=("ngram-simple", "draft-dspark"), draft_model=str(folder))
    monkeypatch.setattr(load, "SHIPPED_SPECS", {path: shipped})
    costs = PassCosts(
        num_rows=(1, 11), depths=(0,), target_s=((1.0, 2.0),), draft_s={"draft-dspark": DraftCost(first_s=draft_s)}
    )
    monkeypatch.setattr(load, "kept_pass_costs", lambda *args, **options: costs)
    told: list[str] = []
    asked_for = replace(shipped, n_max=2)
    engines = [load.make_engine(loaded, spec, notify=told.append) for spec in (shipped, asked_for)]
    expected = "ngram-simple,draft-dspark" if is_used else "ngram-simple"
    assert [engine.drafter_name for engine in engines] == [expected, "ngram-simple,draft-dspark"]
    assert [text for text in told if "hardly any would pay" in text] == told
    assert len(told) == (not is_used)
