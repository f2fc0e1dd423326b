"""Features on disk: what the target knew, written once, read back, refused where they do not belong."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from blockdraft.errors import DataError, TrainingError
from blockdraft.models.base import Segment
from blockdraft.models.load import LoadedModel
from blockdraft.train import features as features_module
from blockdraft.train.features import (
    FeatureFolder,
    FeatureManifest,
    TrainingText,
    candidates,
    capture_features,
    check_room,
    read_manifest,
)

LAYERS = (2, 0)


def texts() -> list[TrainingText]:
    ids = [[5 + (7 * text + 3 * place) % 40 for place in range(9 + text)] for text in range(5)]
    return [TrainingText(token_ids=own, supervised=[place >= 4 for place in range(len(own))]) for own in ids]


def manifest(loaded: LoadedModel, k: int = 4) -> FeatureManifest:
    info = loaded.target.info
    return FeatureManifest(
        target=loaded.reference,
        hidden_size=info.hidden_size,
        vocab_size=info.vocab_size,
        num_target_layers=info.num_layers,
        target_layer_ids=LAYERS,
        num_candidates=k,
        max_length=64,
        num_texts=5,
        num_tokens=sum(len(text.token_ids) for text in texts()),
        data={},
    )


@pytest.mark.parametrize("width", [300, 5000])
def test_candidates_are_the_largest_logits_with_their_softmax_over_all(width: int) -> None:
    torch.manual_seed(0)
    logits = torch.randn(9, width)
    ids, probs = candidates(logits, 8)
    expected = torch.softmax(logits, dim=-1).topk(8, dim=-1)
    assert torch.equal(ids.sort(-1).values, expected.indices.sort(-1).values)
    assert torch.allclose(probs, expected.values, atol=1e-6)


def test_a_text_comes_back_as_the_target_saw_it(
    monkeypatch: pytest.MonkeyPatch, tiny_loaded: LoadedModel, tmp_path: Path
) -> None:
    monkeypatch.setattr(features_module, "TEXTS_PER_SHARD", 2)
    folder = capture_features(tiny_loaded.target, texts(), tmp_path, manifest(tiny_loaded))
    assert len(folder) == 5
    for index, text in enumerate(texts()):
        found = folder[index]
        segment = Segment(
            token_ids=text.token_ids, cache=tiny_loaded.target.new_cache(), num_logits=len(text.token_ids)
        )
        output = tiny_loaded.target.forward([segment], LAYERS)
        assert found.token_ids.tolist() == list(text.token_ids)
        assert found.supervised.tolist() == list(text.supervised)
        assert output.target_hidden is not None
        assert torch.allclose(found.target_hidden.float(), output.target_hidden, atol=0.02, rtol=0.01)
        probs = torch.softmax(output.logits, dim=-1)
        for place in range(3, len(text.token_ids)):  # from the token before the first supervised one
            ids = found.candidate_ids[place].long()
            assert torch.allclose(found.candidate_probs[place].float(), probs[place, ids], atol=1e-3)
            assert ids[0] == probs[place].argmax()
    counts = folder.token_counts()
    assert counts.sum() == sum(sum(text.supervised) for text in texts())


def test_an_interrupted_capture_goes_on_with_the_missing_shards(
    monkeypatch: pytest.MonkeyPatch, tiny_loaded: LoadedModel, tmp_path: Path
) -> None:
    monkeypatch.setattr(features_module, "TEXTS_PER_SHARD", 2)
    capture_features(tiny_loaded.target, texts(), tmp_path, manifest(tiny_loaded))
    first, second = tmp_path / "features-00000.safetensors", tmp_path / "features-00001.safetensors"
    before = first.stat().st_mtime_ns
    second.unlink()
    with pytest.raises(DataError, match="3 of 5 texts"):
        FeatureFolder(tmp_path)
    assert len(capture_features(tiny_loaded.target, texts(), tmp_path, manifest(tiny_loaded))) == 5
    assert first.stat().st_mtime_ns == before


def test_features_of_something_else_are_refused(tiny_loaded: LoadedModel, tmp_path: Path) -> None:
    capture_features(tiny_loaded.target, texts(), tmp_path, manifest(tiny_loaded))
    other = replace(manifest(tiny_loaded), target_layer_ids=(1, 0))
    with pytest.raises(DataError, match="target_layer_ids"):
        capture_features(tiny_loaded.target, texts(), tmp_path, other)
    assert read_manifest(tmp_path) == manifest(tiny_loaded)


def test_a_disk_that_is_too_small_is_refused_before_anything_is_written(
    monkeypatch: pytest.MonkeyPatch, tiny_loaded: LoadedModel, tmp_path: Path
) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(features_module.shutil, "disk_usage", lambda _: usage)
    with pytest.raises(TrainingError, match=r"need .* GB .* only 0\.00 GB are free"):
        capture_features(tiny_loaded.target, texts(), tmp_path, manifest(tiny_loaded))
    assert not list(tmp_path.glob("*.safetensors"))
    check_room(tmp_path, 500, "little")


def test_the_size_estimate_is_what_is_written(tiny_loaded: LoadedModel, tmp_path: Path) -> None:
    own = manifest(tiny_loaded)
    capture_features(tiny_loaded.target, texts(), tmp_path, own)
    written = sum(path.stat().st_size for path in tmp_path.glob("*.safetensors"))
    assert 0 <= written - own.num_tokens * own.bytes_per_token < 2000  # headers and lengths


@pytest.mark.parametrize("damage", ["{", '{"target": "x"}'])
def test_a_damaged_folder_is_named(tiny_loaded: LoadedModel, tmp_path: Path, damage: str) -> None:
    capture_features(tiny_loaded.target, texts(), tmp_path, manifest(tiny_loaded))
    (tmp_path / "manifest.json").write_text(damage)
    with pytest.raises(DataError, match="damaged"):
        FeatureFolder(tmp_path)
