"""`blockdraft train` without the command line: from a recipe to a trained drafter."""

from __future__ import annotations

import dataclasses
import json
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain, zip_longest
from pathlib import Path

import torch

from blockdraft.drafters.eagle3_config import default_taps
from blockdraft.engine.workloads import Workload, pick, read_workloads
from blockdraft.errors import ConfigError, DataError
from blockdraft.models.load import LoadedModel, load_model
from blockdraft.models.placement import choose_device
from blockdraft.models.references import resolve
from blockdraft.train.distributed import Ranks, ranks
from blockdraft.train.drafter import build_objective
from blockdraft.train.export.provenance import RECIPE, Provenance
from blockdraft.train.features import Features
from blockdraft.train.plan import target_layers
from blockdraft.train.recipe import Recipe
from blockdraft.train.texts import prepare_features
from blockdraft.train.trainer import Outcome, Progress, Trainer


@dataclass(frozen=True, kw_only=True)
class Listener:
    """Who is told how a run goes; by default nobody."""

    notify: Callable[[str], None] = lambda line: None
    features: Callable[[int, int], None] = lambda done, total: None
    """Tokens done and tokens there are, while the target runs over the data."""
    progress: Callable[[Progress], None] = lambda progress: None


def train(recipe: Recipe, listener: Listener | None = None) -> Outcome:
    """Train the drafter of a recipe, going on if its folder holds a checkpoint.

    Raises:
        BlockdraftError: the recipe, the data or the target cannot be used, or the run cannot go on.
    """
    listener = listener or Listener()
    if recipe.drafter.method == "ngram":
        raise ConfigError(
            'drafter.method "ngram" has nothing to train: measure it with `blockdraft generate --spec-type ngram-mod`'
        )
    if recipe.run.threads:
        torch.set_num_threads(recipe.run.threads)
    target = recipe.target
    with ranks(choose_device(target.device)) as own:
        if not own.is_first:
            listener = Listener()
        loaded = load_model(target.model, device=str(own.device), dtype=target.dtype, notify=listener.notify)
        features = _features(recipe, loaded, own, listener)
        if _repeats_anchors(recipe, features, listener.notify):
            listener.notify(
                f"{recipe.drafter.init} was trained with run.seed {recipe.run.seed} on the same data: blocks begin at "
                "the same places as before; another seed teaches more"
            )
        objective = build_objective(recipe, loaded, features, listener.notify)
        trainer = Trainer(
            recipe,
            loaded,
            objective,
            features=features,
            prompts=eval_prompts(recipe),
            ranks=own,
            report=listener.progress,
        )
        return trainer.run()


def _repeats_anchors(recipe: Recipe, features: Features, notify: Callable[[str], None]) -> bool:
    """Return whether the drafter that the run goes on from drew its anchors from the same data and seed.

    Raises:
        DataError: what lies beside that drafter is damaged.
    """
    if recipe.drafter.init in ("target", "random"):
        return False
    before = Provenance.beside(resolve(recipe.drafter.init, notify=notify).path)
    if before.recipe is None or before.manifest is None:
        return False
    try:
        seed: object = tomllib.loads(before.recipe).get("run", {}).get("seed")
    except tomllib.TOMLDecodeError as error:
        raise DataError(f"{before.folder / RECIPE} is not valid TOML ({error}); mend or remove it") from error
    manifest = json.loads(json.dumps(dataclasses.asdict(features.manifest)))  # as it would be read back
    is_same_data = all(before.manifest.get(key) == manifest[key] for key in ("data", "num_texts", "num_tokens"))
    return is_same_data and seed == recipe.run.seed


def _features(recipe: Recipe, loaded: LoadedModel, own: Ranks, listener: Listener) -> Features:
    layers = loaded.target.info.num_layers
    section = recipe.drafter
    if section.method == "eagle3" and not section.target_layer_ids:
        ids = tuple(default_taps(layers))
    else:
        ids = target_layers(section, layers)
    folder = Path(recipe.run.out) / "features"
    if not own.is_first:  # the first process writes them, the others read
        own.barrier()
    features = prepare_features(recipe.data, loaded, ids, folder, report=listener.features)
    if own.is_first:
        own.barrier()
    return features


def eval_prompts(recipe: Recipe) -> list[Workload]:
    """Return the held-out prompts that acceptance is measured on, kinds in turn."""
    section = recipe.data
    if not section.num_eval_prompts > 0:
        raise ConfigError("data.num_eval_prompts must be at least 1: acceptance is what a drafter is trained for")
    if not section.eval_prompts:
        return pick(read_workloads(), section.num_eval_prompts)
    # The files in turn, and within each its kinds in turn.
    files = [pick(read_workloads(Path(name)), section.num_eval_prompts) for name in section.eval_prompts]
    in_turn = chain.from_iterable(zip_longest(*files))
    return [prompt for prompt in in_turn if prompt is not None][: section.num_eval_prompts]
