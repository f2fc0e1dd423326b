"""What the target knew at every token of the training texts, on disk: the input of every objective.

A feature folder holds safetensors shards and a `manifest.json`. For each token of each text it keeps the token
id, whether an answer of the target stands there, the hidden states of the tapped layers, and the target's most
likely next tokens with their probabilities (at temperature 1, of the whole vocabulary). Texts are stored one
after another; `lengths` tells them apart.

The folder is written once, by `capture_features`, and read at random by `FeatureFolder`. A run that was
interrupted goes on at the first missing shard.

Shape legend: T tokens of a shard, n texts of a shard, M tapped layers, D width, k stored candidates.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from blockdraft.errors import DataError, TrainingError
from blockdraft.models.base import Segment, Target
from blockdraft.train.lanes import num_lanes, open_lanes

TEXTS_PER_SHARD = 512
ROWS_PER_PASS = 2048
"""Texts of similar length share a pass of the target up to this many rows."""

_CANDIDATE_GROUP = 128
_LSE_ROWS = 4
"""So few rows of logits stay in the cache between the passes over them, which is twice as fast."""


@dataclass(frozen=True, kw_only=True)
class TrainingText:
    """A tokenised conversation. `supervised[i]` is true if token i was the target's own choice."""

    token_ids: Sequence[int]
    supervised: Sequence[bool]


@dataclass(frozen=True, kw_only=True)
class FeatureManifest:
    """What a feature folder was made of and with."""

    target: str
    hidden_size: int
    vocab_size: int
    num_target_layers: int
    target_layer_ids: tuple[int, ...]
    num_candidates: int
    max_length: int
    num_texts: int
    num_tokens: int
    data: dict[str, object]
    """The manifest of the conversations."""

    @property
    def bytes_per_token(self) -> int:
        """How much disk one token takes."""
        return 4 + 1 + 2 * len(self.target_layer_ids) * self.hidden_size + 6 * self.num_candidates


@dataclass(frozen=True, kw_only=True)
class TextFeatures:
    """One text. Shapes: [T], [T], [T, M*D], [T, k], [T, k]; row t of the candidates is about token t + 1."""

    token_ids: Tensor
    supervised: Tensor
    target_hidden: Tensor
    candidate_ids: Tensor
    candidate_probs: Tensor


class Features(Protocol):
    """Where texts and what the target knew about them come from: a folder, or the target itself."""

    manifest: FeatureManifest
    lengths: list[int]
    """Tokens of each text."""
    num_anchors: list[int]
    """How many blocks could begin in each text."""

    def __len__(self) -> int: ...

    def read(self, indices: Sequence[int]) -> list[TextFeatures]:
        """Return some texts."""
        ...

    def token_counts(self) -> np.ndarray:
        """Return how often each token stands in an answer, [V]."""
        ...


def capture_features(
    target: Target,
    texts: Sequence[TrainingText],
    folder: Path,
    manifest: FeatureManifest,
    *,
    report: Callable[[int], None] = lambda num_tokens: None,
) -> FeatureFolder:
    """Run the target over the texts and store what it knew; shards that are there already are kept.

    `report` is told the number of tokens of each finished shard.

    Raises:
        TrainingError: the disk has no room for it; nothing is written then.
        DataError: the folder holds features of something else.
    """
    folder.mkdir(parents=True, exist_ok=True)
    _check_folder(folder, manifest)
    shards = [texts[start : start + TEXTS_PER_SHARD] for start in range(0, len(texts), TEXTS_PER_SHARD)]
    paths = [folder / f"features-{index:05d}.safetensors" for index in range(len(shards))]
    missing = sum(len(text.token_ids) for shard, path in zip(shards, paths, strict=True) if not path.exists()
                  for text in shard)  # fmt: skip
    check_room(folder, missing * manifest.bytes_per_token, "the features")
    for shard, path in zip(shards, paths, strict=True):
        if not path.exists():
            _write_shard(capture(target, shard, manifest), path)
        report(sum(len(text.token_ids) for text in shard))
    return FeatureFolder(folder)


def check_room(folder: Path, num_bytes: int, what: str) -> None:
    """Refuse to start what the disk cannot hold.

    Raises:
        TrainingError: less than 1.05 times `num_bytes` is free.
    """
    free = shutil.disk_usage(folder).free
    if free < num_bytes * 1.05:
        raise TrainingError(
            f"{what} need {num_bytes / 1e9:.2f} GB in {folder}, but only {free / 1e9:.2f} GB are free; "
            'name another folder, use fewer texts or target layers, or set data.capture = "live"'
        )


def _check_folder(folder: Path, manifest: FeatureManifest) -> None:
    path = folder / "manifest.json"
    if not path.exists():
        _write_atomically(path, json.dumps(asdict(manifest), indent=2).encode())
        return
    read_manifest(folder)
    stored = json.loads(path.read_text(encoding="utf-8"))
    wanted = json.loads(json.dumps(asdict(manifest)))  # as it would be read back, with lists for tuples
    if differing := [key for key, value in wanted.items() if stored[key] != value]:
        raise DataError(
            f"{folder} holds features of something else (different: {', '.join(differing)}); "
            "name an empty folder, or delete this one"
        )


def read_manifest(folder: Path) -> FeatureManifest:
    """Read the manifest of a feature folder.

    Raises:
        DataError: there is none, or it is damaged.
    """
    try:
        values = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
        return FeatureManifest(**{**values, "target_layer_ids": tuple(values["target_layer_ids"])})
    except FileNotFoundError as error:
        raise DataError(f"{folder} is not a feature folder: it has no manifest.json") from error
    except (ValueError, TypeError, KeyError) as error:
        raise DataError(
            f"{folder / 'manifest.json'} is damaged ({error}); delete the folder and make it anew"
        ) from error


def capture(target: Target, texts: Sequence[TrainingText], manifest: FeatureManifest) -> dict[str, Tensor]:
    """Run the target over some texts; return what a shard holds, one text after another."""
    lengths = [len(text.token_ids) for text in texts]
    starts = [0, *accumulate(lengths)]
    T, k = starts[-1], manifest.num_candidates
    width = len(manifest.target_layer_ids) * manifest.hidden_size
    shard = {
        "lengths": torch.tensor(lengths, dtype=torch.int32),
        "token_ids": torch.tensor([token for text in texts for token in text.token_ids], dtype=torch.int32),
        "supervised": torch.tensor([flag for text in texts for flag in text.supervised], dtype=torch.uint8),
        "target_hidden": torch.empty(T, width, dtype=torch.bfloat16),
        "candidate_ids": torch.zeros(T, k, dtype=torch.int32),
        "candidate_probs": torch.zeros(T, k, dtype=torch.float16),
    }

    @torch.inference_mode()
    def fill(batch: list[int]) -> None:
        segments = [
            Segment(token_ids=texts[i].token_ids, cache=target.new_cache(lengths[i]), num_logits=_num_logits(texts[i]))
            for i in batch
        ]
        output = target.forward(segments, manifest.target_layer_ids)
        assert output.target_hidden is not None
        ids, probs = candidates(output.logits, k)
        row = logit = 0
        for i, segment in zip(batch, segments, strict=True):
            end = starts[i] + lengths[i]
            shard["target_hidden"][starts[i] : end] = output.target_hidden[row : row + lengths[i]]
            shard["candidate_ids"][end - segment.num_logits : end] = ids[logit : logit + segment.num_logits]
            shard["candidate_probs"][end - segment.num_logits : end] = probs[logit : logit + segment.num_logits]
            row, logit = row + lengths[i], logit + segment.num_logits

    batches = list(_batches(lengths))
    count = min(num_lanes(target.info.device), len(batches))
    if count > 1:
        with open_lanes(count) as lanes:
            list(lanes.map(fill, batches))
    else:
        for batch in batches:
            fill(batch)
    return shard


def _batches(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Group texts of similar length, `ROWS_PER_PASS` rows at a time."""
    batch: list[int] = []
    rows = 0
    for index in sorted(range(len(lengths)), key=lengths.__getitem__):
        if batch and rows + lengths[index] > ROWS_PER_PASS:
            yield batch
            batch, rows = [], 0
        batch.append(index)
        rows += lengths[index]
    if batch:
        yield batch


def _num_logits(text: TrainingText) -> int:
    """The target's opinion is needed from the token before the first supervised one."""
    first = next((index for index, flag in enumerate(text.supervised) if flag), len(text.token_ids))
    return len(text.token_ids) - max(first - 1, 0)


def candidates(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the `count` most likely tokens of each row and their probabilities.

    Shapes: logits [R, V]; returns ids [R, k] and probabilities [R, k] in float32, falling.
    """
    ids, probs = [], []
    for rows in torch.split(logits, _LSE_ROWS):
        scores = rows.float()
        top = scores.amax(-1, keepdim=True)
        log_sum = torch.sub(scores, top).exp_().sum(-1, keepdim=True).log_() + top
        chosen = (
            torch.topk(scores, count, dim=-1).indices if scores.shape[1] < 8 * _CANDIDATE_GROUP else _top(rows, count)
        )
        ids.append(chosen)
        probs.append((scores.gather(1, chosen) - log_sum).exp_())
    return torch.cat(ids), torch.cat(probs)


def _top(rows: Tensor, count: int) -> Tensor:
    """Return the ids of the largest logits: only groups whose own maximum is among the largest can hold them."""
    V = rows.shape[1]
    padded = torch.nn.functional.pad(rows, (0, -V % _CANDIDATE_GROUP), value=float("-inf"))
    grouped = padded.view(len(rows), -1, _CANDIDATE_GROUP)
    groups = grouped.amax(-1).topk(min(count, grouped.shape[1]), dim=-1).indices
    picked = grouped.gather(1, groups[..., None].expand(-1, -1, _CANDIDATE_GROUP)).flatten(1)
    places = picked.topk(count, dim=-1).indices
    return groups.gather(1, places // _CANDIDATE_GROUP) * _CANDIDATE_GROUP + places % _CANDIDATE_GROUP


def _write_shard(shard: dict[str, Tensor], path: Path) -> None:
    partial = path.with_suffix(".partial")
    try:
        save_file(shard, partial)
        partial.replace(path)
    except (OSError, SafetensorError) as error:
        partial.unlink(missing_ok=True)
        raise TrainingError(
            f"could not write {path} ({error}); the shards before it are complete: make room and run the command again"
        ) from error


def _write_atomically(path: Path, content: bytes) -> None:
    partial = path.with_name(path.name + ".partial")
    with partial.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


class FeatureFolder:
    """Reads the texts of a feature folder at random.

    Raises:
        DataError: it is incomplete or damaged.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.manifest = read_manifest(folder)
        self._shards: list[Any] = []  # readers of safetensors, which have no types
        self.lengths: list[int] = []
        self.num_anchors: list[int] = []
        self._places: list[tuple[int, int]] = []
        for index, path in enumerate(sorted(folder.glob("features-*.safetensors"))):
            try:
                reader: Any = safe_open(path, framework="pt")
                lengths = reader.get_tensor("lengths").tolist()
                supervised = reader.get_tensor("supervised").bool()
            except (SafetensorError, OSError) as error:
                raise DataError(f"{path} is damaged ({error}); delete it and run the command again") from error
            self._shards.append(reader)
            self._places += [(index, start) for start in accumulate(lengths[:-1], initial=0)]
            self.lengths += lengths
            for text in torch.split(supervised, lengths):
                self.num_anchors.append(int((text[:-1] & text[1:]).sum()))
        if len(self.lengths) != self.manifest.num_texts:
            raise DataError(
                f"{folder} holds {len(self.lengths)} of {self.manifest.num_texts} texts: "
                "the pass of the target was interrupted; run it again to go on"
            )

    def __len__(self) -> int:
        return len(self.lengths)

    def read(self, indices: Sequence[int]) -> list[TextFeatures]:
        """Return some texts."""
        return [self[index] for index in indices]

    def __getitem__(self, index: int) -> TextFeatures:
        shard, start = self._places[index]
        reader, rows = self._shards[shard], slice(start, start + self.lengths[index])
        parts = {
            name: reader.get_slice(name)[rows]
            for name in ("token_ids", "supervised", "target_hidden", "candidate_ids", "candidate_probs")
        }
        return TextFeatures(**parts | {"supervised": parts["supervised"].bool()})

    def tokens(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield token ids and supervised mask of each shard, [T] each."""
        for reader in self._shards:
            yield reader.get_tensor("token_ids"), reader.get_tensor("supervised").bool()

    def token_counts(self) -> np.ndarray:
        """Return how often each token stands in an answer, [V]."""
        answers = (token_ids[supervised].numpy() for token_ids, supervised in self.tokens())
        return count_tokens(answers, self.manifest.vocab_size)


def count_tokens(parts: Iterable[np.ndarray], vocab_size: int) -> np.ndarray:
    """Return how often each token stands in some arrays of ids, [V]."""
    counts = np.zeros(vocab_size, dtype=np.int64)
    for ids in parts:
        counts += np.bincount(ids, minlength=vocab_size)
    return counts
