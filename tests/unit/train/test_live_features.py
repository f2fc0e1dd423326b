"""Features made while training are those that would have been stored."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from trained import assert_equal_weights, losses

from blockdraft.errors import ConfigError
from blockdraft.models.load import LoadedModel
from blockdraft.train.features import FeatureFolder
from blockdraft.train.recipe import Recipe
from blockdraft.train.run import train
from blockdraft.train.texts import prepare_features

MakeRecipe = Callable[..., Recipe]
LIVE = {"capture": "live", "features": ""}


def test_a_live_text_is_the_stored_one(
    make_recipe: MakeRecipe, tiny_loaded: LoadedModel, feature_folder: FeatureFolder, tmp_path: Path
) -> None:
    manifest = feature_folder.manifest
    section = make_recipe(data={**LIVE, "num_candidates": manifest.num_candidates}).data
    live = prepare_features(section, tiny_loaded, manifest.target_layer_ids, tmp_path)
    assert not list(tmp_path.iterdir())
    assert len(live) == len(feature_folder)
    assert live.lengths == feature_folder.lengths
    assert live.num_anchors == feature_folder.num_anchors
    assert (live.token_counts() == feature_folder.token_counts()).all()
    indices = [3, 0, 7]
    for index, text in zip(indices, live.read(indices), strict=True):
        stored = feature_folder[index]
        for name, tensor in vars(stored).items():
            found = getattr(text, name)
            assert found.dtype == tensor.dtype, name
            # Who shares a pass changes how float32 rounds, and now and then the bfloat16 that is kept of it.
            torch.testing.assert_close(found, tensor, rtol=1e-2, atol=1e-3, msg=name)


def test_a_run_on_live_features_learns_the_same_and_repeats(make_recipe: MakeRecipe, tmp_path: Path) -> None:
    for name in "ab":
        train(make_recipe(data=LIVE, run={"out": str(tmp_path / name)}))
    train(make_recipe(run={"out": str(tmp_path / "stored")}))
    assert losses(tmp_path / "a") == losses(tmp_path / "b")
    assert_equal_weights(tmp_path / "a", tmp_path / "b")
    assert losses(tmp_path / "a") == pytest.approx(losses(tmp_path / "stored"), rel=1e-2)
    assert not (tmp_path / "a" / "features").exists()


@pytest.mark.parametrize("changes", [{"features": "somewhere"}, {"features": "", "folders": []}])
def test_live_features_need_conversations_and_no_folder_of_their_own(
    make_recipe: MakeRecipe, changes: dict[str, object]
) -> None:
    with pytest.raises(ConfigError, match="stores nothing: name those"):
        train(make_recipe(data={"capture": "live", **changes}))
