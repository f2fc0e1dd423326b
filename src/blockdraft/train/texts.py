"""From data folders to the features a run learns from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from blockdraft.errors import ConfigError, DataError
from blockdraft.models.load import LoadedModel
from blockdraft.train.conversations import DataManifest, read_conversations, tokenize
from blockdraft.train.features import (
    FeatureFolder,
    FeatureManifest,
    Features,
    TrainingText,
    capture_features,
    read_manifest,
)
from blockdraft.train.live_features import LiveFeatures
from blockdraft.train.recipe import DataSection


def prepare_features(
    section: DataSection,
    loaded: LoadedModel,
    target_layer_ids: tuple[int, ...],
    default_folder: Path,
    *,
    report: Callable[[int, int], None] = lambda done, total: None,
) -> Features:
    """Return the features of the recipe's data, running the target over it where they are missing.

    With `data.capture = "live"` nothing is stored, and the target runs along with the training.

    `report` is told the tokens done and the tokens there are.

    Raises:
        ConfigError: `data.capture` does not fit the rest of the section.
        DataError: there is no data, or it was made for another target or tokenizer.
        TrainingError: the disk has no room for the features.
    """
    folder = Path(section.features) if section.features else default_folder
    is_live = section.capture == "live"
    if is_live and (section.features or not section.folders):
        raise ConfigError(
            'data.capture = "live" runs the target over data.folders and stores nothing: name those, and leave out '
            "data.features"
        )
    if not section.folders:
        return _ready_features(folder, loaded, target_layer_ids)
    texts, manifests = read_texts([Path(name) for name in section.folders], loaded, section.max_length)
    manifest = feature_manifest(section, loaded, target_layer_ids, texts, manifests)
    if is_live:
        return LiveFeatures(loaded.target, texts, manifest)
    done = 0

    def count(num_tokens: int) -> None:
        nonlocal done
        done += num_tokens
        report(done, manifest.num_tokens)

    return capture_features(loaded.target, texts, folder, manifest, report=count)


def feature_manifest(
    section: DataSection,
    loaded: LoadedModel,
    target_layer_ids: tuple[int, ...],
    texts: Sequence[TrainingText],
    data: dict[str, object],
) -> FeatureManifest:
    """Describe the features of some texts; `data` are the manifests of where the texts came from."""
    info = loaded.target.info
    return FeatureManifest(
        target=loaded.reference,
        hidden_size=info.hidden_size,
        vocab_size=info.vocab_size,
        num_target_layers=info.num_layers,
        target_layer_ids=target_layer_ids,
        num_candidates=section.num_candidates,
        max_length=section.max_length,
        num_texts=len(texts),
        num_tokens=sum(len(text.token_ids) for text in texts),
        data=data,
    )


def _ready_features(folder: Path, loaded: LoadedModel, target_layer_ids: tuple[int, ...]) -> FeatureFolder:
    if not (folder / "manifest.json").exists():
        raise DataError("the recipe names no data; set data.folders to what `blockdraft data` made")
    manifest, info = read_manifest(folder), loaded.target.info
    for name, stored, wanted in (
        ("hidden size", manifest.hidden_size, info.hidden_size),
        ("vocabulary", manifest.vocab_size, info.vocab_size),
        ("number of layers", manifest.num_target_layers, info.num_layers),
        ("tapped layers", manifest.target_layer_ids, target_layer_ids),
    ):
        if stored != wanted:
            raise DataError(f"the features in {folder} have {name} {stored}, this run needs {wanted}; make them anew")
    return FeatureFolder(folder)


def read_texts(
    folders: list[Path], loaded: LoadedModel, max_length: int
) -> tuple[list[TrainingText], dict[str, object]]:
    """Tokenise the conversations of data folders, each id once; those without a token to learn are left out.

    Raises:
        DataError: a folder is missing, damaged, or made with another tokenizer.
    """
    texts: list[TrainingText] = []
    manifests: dict[str, object] = {}
    seen: set[str] = set()
    for folder in folders:
        manifest = DataManifest.read(folder)
        manifest.check_tokenizer(loaded.tokenizer)
        # Where the data lay is not part of what it is: a moved folder has the same features.
        manifests[f"part {len(manifests)}"] = manifest.to_dict()
        for conversation in read_conversations(folder):
            if conversation.id in seen:
                continue
            seen.add(conversation.id)
            text = tokenize(conversation, loaded.tokenizer)
            cut = TrainingText(token_ids=text.token_ids[:max_length], supervised=text.supervised[:max_length])
            if any(cut.supervised):
                texts.append(cut)
    if not texts:
        raise DataError(f"there is nothing to learn from in {', '.join(map(str, folders))}: no answer, or all too long")
    return texts, manifests
