"""Where the first weights of a run come from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from blockdraft.errors import NotFoundError, PairError
from blockdraft.models.load import LoadedModel
from blockdraft.train.batches import BatchPlan, EpochSampler
from blockdraft.train.drafter import build_objective
from blockdraft.train.export.exporter import export_drafter
from blockdraft.train.features import FeatureFolder
from blockdraft.train.recipe import Recipe
from blockdraft.train.run import Listener, train

MakeRecipe = Callable[..., Recipe]


def loss_of(recipe: Recipe, loaded: LoadedModel, features: FeatureFolder) -> float:
    objective = build_objective(recipe, loaded, features)
    sampler = EpochSampler(features, range(4), BatchPlan(blocks_per_batch=32, anchors_per_text=8, num_slots=4, seed=0))
    with torch.no_grad():
        return float(objective(sampler.load(0, range(4))).loss)


class OtherData(FeatureFolder):
    """The same texts, but other tokens are the frequent ones."""

    def token_counts(self) -> np.ndarray:
        return super().token_counts()[::-1].copy()


@pytest.mark.parametrize("method", ["dflash", "dspark"])
def test_layers_added_to_a_trained_drafter_change_nothing_at_first(
    make_recipe: MakeRecipe, tiny_loaded: LoadedModel, data_folder: Path, tmp_path: Path, method: str
) -> None:
    drafter = {"method": method, "block_size": 4, "anchor_predicts": True}
    train(make_recipe(drafter=drafter))
    features = FeatureFolder(data_folder / "features")
    start = {**drafter, "init": str(tmp_path / "run" / "drafter")}
    same = loss_of(make_recipe(drafter=start), tiny_loaded, features)
    grown = loss_of(make_recipe(drafter={**start, "num_layers": 3}), tiny_loaded, features)
    fresh = loss_of(make_recipe(drafter={**drafter, "num_layers": 3}), tiny_loaded, features)
    assert grown == pytest.approx(same, rel=1e-5)
    assert fresh != pytest.approx(same, rel=1e-2)


def test_added_layers_learn(
    make_recipe: MakeRecipe, tiny_loaded: LoadedModel, data_folder: Path, tmp_path: Path
) -> None:
    train(make_recipe())
    start = str(tmp_path / "run" / "drafter")
    grown = make_recipe(drafter={"num_layers": 2, "init": start}, run={"out": str(tmp_path / "grown"), "seed": 1})
    train(grown)
    features = FeatureFolder(data_folder / "features")
    resumed = make_recipe(drafter={"num_layers": 2, "init": str(tmp_path / "grown" / "drafter")})
    added = build_objective(resumed, tiny_loaded, features).draft_tensors()["layers.1.self_attn.o_proj.weight"]
    assert added.abs().max() > 0


def test_layers_cannot_be_taken_away(
    make_recipe: MakeRecipe, tiny_loaded: LoadedModel, data_folder: Path, tmp_path: Path
) -> None:
    train(make_recipe(drafter={"num_layers": 2}))
    fewer = make_recipe(drafter={"num_layers": 1, "init": str(tmp_path / "run" / "drafter")})
    with pytest.raises(PairError, match="added to a trained drafter, not taken away"):
        build_objective(fewer, tiny_loaded, FeatureFolder(data_folder / "features"))


def test_a_seed_that_repeats_the_anchors_of_the_run_before_is_pointed_out(
    make_recipe: MakeRecipe, tmp_path: Path
) -> None:
    train(make_recipe(run={"max_steps": 1}))
    for seed, is_told in ((0, True), (1, False)):
        notes: list[str] = []
        again = {"max_steps": 1, "seed": seed, "out": str(tmp_path / f"again-{seed}")}
        recipe = make_recipe(drafter={"init": str(tmp_path / "run" / "drafter")}, run=again)
        train(recipe, Listener(notify=notes.append))
        assert any("another seed teaches more" in note for note in notes) == is_told


def test_a_drafter_that_is_gone_on_from_keeps_its_reduced_vocabulary(
    make_recipe: MakeRecipe, tiny_loaded: LoadedModel, data_folder: Path, tmp_path: Path
) -> None:
    drafter = {"draft_vocab_size": 60}
    train(make_recipe(drafter=drafter))
    start = make_recipe(drafter={**drafter, "init": str(tmp_path / "run" / "drafter")})
    same, other = FeatureFolder(data_folder / "features"), OtherData(data_folder / "features")
    before = build_objective(make_recipe(drafter=drafter), tiny_loaded, same).draft_tensors()
    after = build_objective(start, tiny_loaded, other).draft_tensors()
    fresh = build_objective(make_recipe(drafter=drafter), tiny_loaded, other).draft_tensors()
    assert torch.equal(after["d2t"], before["d2t"])
    assert torch.equal(after["lm_head.weight"], before["lm_head.weight"])
    assert not torch.equal(fresh["d2t"], before["d2t"])
    assert loss_of(start, tiny_loaded, other) == pytest.approx(loss_of(start, tiny_loaded, same))


def test_the_head_is_this_targets_even_if_the_drafter_came_with_another(
    make_recipe: MakeRecipe, tiny_loaded: LoadedModel, data_folder: Path, tmp_path: Path
) -> None:
    drafter = {"draft_vocab_size": 60}
    train(make_recipe(drafter=drafter))
    file = tmp_path / "run" / "drafter" / "model.safetensors"
    tensors = load_file(file)
    save_file({**tensors, "lm_head.weight": torch.zeros_like(tensors["lm_head.weight"])}, file)
    start = make_recipe(drafter={**drafter, "init": str(file.parent)})
    found = build_objective(start, tiny_loaded, FeatureFolder(data_folder / "features")).draft_tensors()
    assert torch.equal(found["lm_head.weight"].to(torch.bfloat16), tensors["lm_head.weight"])


def test_what_starts_anew_is_named(make_recipe: MakeRecipe, tmp_path: Path) -> None:
    train(make_recipe())
    wider = {"init": str(tmp_path / "run" / "drafter"), "markov_rank": 12, "confidence_head": "hidden"}
    notes: list[str] = []
    train(make_recipe(drafter=wider, run={"out": str(tmp_path / "wider"), "seed": 1}), Listener(notify=notes.append))
    assert [note for note in notes if "start anew" in note] == [
        f"{tmp_path / 'run' / 'drafter'} has no weights of this shape for markov_head.markov_w1.weight, "
        "markov_head.markov_w2.weight, confidence_head.proj.weight: these start anew"
    ]


@pytest.mark.parametrize("has_bfloat16", [True, False])
@pytest.mark.parametrize("name", ["auto", "bfloat16", "float32"])
def test_numbers_are_of_a_type_that_the_device_computes(name, has_bfloat16, data_folder, tiny_loaded, make_recipe):
    notes: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("blockdraft.models.placement.cpu_has_bfloat16", lambda: has_bfloat16)
        recipe = make_recipe(run={"compute_dtype": name})
        objective = build_objective(recipe, tiny_loaded, FeatureFolder(data_folder / "features"), notes.append)
    expected = name if name != "auto" else "bfloat16" if has_bfloat16 else "float32"
    assert objective.network.compute_dtype is getattr(torch, expected)
    assert bool(notes) == (name == "auto" and not has_bfloat16)


def test_a_run_goes_on_from_a_gguf_file(
    make_recipe: MakeRecipe, tiny_loaded: LoadedModel, data_folder: Path, tmp_path: Path
) -> None:
    drafter = {"draft_vocab_size": 60}
    train(make_recipe(drafter=drafter))
    features = FeatureFolder(data_folder / "features")
    folder = tmp_path / "run" / "drafter"
    report = export_drafter(folder, tiny_loaded, "gguf", tmp_path / "gguf")
    same = loss_of(make_recipe(drafter={**drafter, "init": str(folder)}), tiny_loaded, features)
    stored = loss_of(make_recipe(drafter={**drafter, "init": str(report.path)}), tiny_loaded, features)
    fresh = loss_of(make_recipe(drafter=drafter), tiny_loaded, features)
    assert stored == pytest.approx(same, rel=1e-2)
    assert fresh != pytest.approx(same, rel=1e-2)


def test_a_builtin_drafter_that_does_not_exist_is_named(make_recipe: MakeRecipe) -> None:
    with pytest.raises(NotFoundError, match="builtin drafter 'nobody'"):
        train(make_recipe(drafter={"init": "builtin:nobody"}))
