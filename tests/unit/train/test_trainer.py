"""What a training run promises: the same seed, the same weights; kills, bad numbers and full disks cost little."""

from __future__ import annotations

import errno
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from trained import ANSWER_TOKENS, NUM_CONVERSATIONS, assert_equal_weights, losses, weights

from blockdraft.drafters.build import build_drafter
from blockdraft.drafters.config import SpecConfig
from blockdraft.engine import Engine
from blockdraft.errors import ConfigError, DataError, TrainingError
from blockdraft.models.load import LoadedModel
from blockdraft.train import trainer as trainer_module
from blockdraft.train.batches import collate
from blockdraft.train.drafter import build_objective
from blockdraft.train.features import FeatureFolder, TextFeatures
from blockdraft.train.objectives.dspark import DSparkObjective
from blockdraft.train.objectives.slots import SlotObjective
from blockdraft.train.recipe import Recipe
from blockdraft.train.run import Listener, train
from blockdraft.train.trainer import Progress

MakeRecipe = Callable[..., Recipe]


class Killed(BaseException):
    """Stands for a process that is gone from one moment to the next."""


def at_step(number: int, action: Callable[[], None]) -> Listener:
    def listen(progress: Progress) -> None:
        if progress.step == number:
            action()

    return Listener(progress=listen)


def kill() -> None:
    raise Killed


@pytest.mark.parametrize("method", ["dflash", "dspark", "eagle3"])
def test_the_same_seed_gives_the_same_losses_and_weights(make_recipe: MakeRecipe, tmp_path: Path, method: str) -> None:
    sections = {"drafter": {"method": method}, "data": {"features": str(tmp_path / "features")}}
    for name in "ab":
        train(make_recipe(**sections, run={"out": str(tmp_path / name)}))
    assert losses(tmp_path / "a") == losses(tmp_path / "b")
    assert_equal_weights(tmp_path / "a", tmp_path / "b")
    train(make_recipe(**sections, run={"out": str(tmp_path / "c"), "seed": 1}))
    assert losses(tmp_path / "a") != losses(tmp_path / "c")


@pytest.mark.parametrize(("killed_after", "optimizer"), [(1, "adamw"), (4, "muon"), (7, "adamw"), (7, "muon")])
def test_a_run_that_was_killed_goes_on_to_the_same_weights(
    make_recipe: MakeRecipe, tmp_path: Path, killed_after: int, optimizer: str
) -> None:
    changes = {"optimizer": {"name": optimizer, "ema": 0.9}}
    train(make_recipe(**changes, run={"out": str(tmp_path / "whole")}))
    recipe = make_recipe(**changes, run={"out": str(tmp_path / "killed")})
    with pytest.raises(Killed):
        train(recipe, at_step(killed_after, kill))
    train(recipe)
    assert losses(tmp_path / "killed") == losses(tmp_path / "whole")
    assert_equal_weights(tmp_path / "killed", tmp_path / "whole")


def test_an_interrupt_ends_the_step_saves_and_can_be_resumed(make_recipe: MakeRecipe, tmp_path: Path) -> None:
    train(make_recipe(run={"out": str(tmp_path / "whole")}))
    recipe = make_recipe(run={"out": str(tmp_path / "stopped")})
    outcome = train(recipe, at_step(4, lambda: os.kill(os.getpid(), signal.SIGINT)))
    assert outcome.was_interrupted
    assert outcome.step == 4
    assert train(recipe).step == 8
    assert_equal_weights(tmp_path / "stopped", tmp_path / "whole")


def test_a_loss_that_is_no_number_stops_the_run_and_keeps_the_last_checkpoint(
    make_recipe: MakeRecipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = make_recipe()
    real = trainer_module.learning_rate
    # A step of infinite length: the weights after it are no numbers, and so is the next loss.
    monkeypatch.setattr(trainer_module, "learning_rate", lambda *a: float("inf") if a[1] == 4 else real(*a))
    with pytest.raises(TrainingError, match=r"step 6 has the loss nan.*last good checkpoint is .*state\.pt"):
        train(recipe)
    kept = torch.load(tmp_path / "run" / "state.pt", weights_only=True)
    assert kept["step"] == 3
    assert all(tensor.isfinite().all() for tensor in kept["parameters"].values())


def test_a_full_disk_leaves_the_checkpoint_before(
    make_recipe: MakeRecipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save, calls = torch.save, []

    def full_at_the_second(content: object, path: Path) -> None:
        calls.append(path)
        if len(calls) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        save(content, path)

    monkeypatch.setattr(torch, "save", full_at_the_second)
    with pytest.raises(TrainingError, match=r"No space left.*once there is room"):
        train(make_recipe())
    assert torch.load(tmp_path / "run" / "state.pt", weights_only=True)["step"] == 3


def test_going_on_with_another_recipe_is_refused(make_recipe: MakeRecipe) -> None:
    train(make_recipe(run={"max_steps": 3}))
    with pytest.raises(ConfigError, match=r"different: optimizer\.learning_rate"):
        train(make_recipe(run={"max_steps": 3}, optimizer={"learning_rate": 1e-4}))


def test_data_of_another_tokenizer_is_refused(make_recipe: MakeRecipe, data_folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "conversations.jsonl").write_bytes((data_folder / "conversations.jsonl").read_bytes())
    manifest = json.loads((data_folder / "manifest.json").read_text())
    (other / "manifest.json").write_text(json.dumps(manifest | {"tokenizer_sha256": "0" * 64}))
    with pytest.raises(DataError, match="tokenizer"):
        train(make_recipe(data={"folders": [str(other)], "features": ""}))


def test_without_data_the_command_that_makes_it_is_named(make_recipe: MakeRecipe) -> None:
    with pytest.raises(DataError, match="blockdraft data"):
        train(make_recipe(data={"folders": [], "features": ""}))


def test_training_stops_when_acceptance_no_longer_grows(make_recipe: MakeRecipe, tmp_path: Path) -> None:
    # A learning rate that changes nothing, so that every measurement is the same.
    recipe = make_recipe(optimizer={"learning_rate": 1e-30}, run={"eval_every": 1, "patience": 2, "max_steps": 50})
    outcome = train(recipe)
    assert outcome.stopped_early
    assert outcome.step == 3
    assert outcome.best is not None
    assert (tmp_path / "run" / "best" / "acceptance.json").exists()


@pytest.mark.slow
@pytest.mark.parametrize("method", ["dflash", "dspark"])
def test_what_is_learnt_is_what_is_served(
    make_recipe: MakeRecipe, tiny_loaded: LoadedModel, data_folder: Path, method: str
) -> None:
    """Round by round, the engine keeps as many drafts as the training network would at that anchor.

    This is where others fail: nearly all right in training, nearly all wrong when served.
    """
    recipe = make_recipe(
        drafter={"method": method, "markov_rank": 32},
        data={"held_out": 0.0},
        optimizer={"learning_rate": 1e-2},
        run={"max_steps": 300, "blocks_per_batch": 256, "anchors_per_text": 32, "log_every": 100},
    )
    train(recipe)
    spec = SpecConfig(types=("auto",), draft_model=str(Path(recipe.run.out) / "drafter"))
    drafter = build_drafter(spec, tiny_loaded.target, tiny_loaded.tokenizer)
    engine = Engine(tiny_loaded.target, tiny_loaded.tokenizer, drafter)
    questions = [f"question {number}" for number in range(NUM_CONVERSATIONS)]
    answers = engine.generate_batch(questions, max_tokens=ANSWER_TOKENS, ignore_eos=True)
    features = FeatureFolder(data_folder / "features")
    objective = build_objective(recipe, tiny_loaded, features)
    parameters = objective.draft_tensors()
    for name, tensor in weights(Path(recipe.run.out)).items():
        if name in parameters:
            parameters[name].copy_(tensor)
    served, trained = [], []
    for answer in answers:
        prompt_ids = list(answer.prompt_ids)
        text = next(text for text in features if text.token_ids[: len(prompt_ids)].tolist() == prompt_ids)
        anchor = len(answer.prompt_ids)
        for record in answer.rounds:
            if record.num_drafted == objective.num_slots and record.next_kind:
                served.append(record.num_accepted)
                trained.append(num_kept_in_training(objective, text, anchor))
            anchor += record.num_emitted
    differing = sum(mine != theirs for mine, theirs in zip(served, trained, strict=True))
    assert len(served) > 50
    assert sum(served) > len(served)  # it has learnt something to be right about
    assert differing <= 0.03 * len(served)  # features are stored in bfloat16, which tips near-ties


@torch.no_grad()
def num_kept_in_training(objective: SlotObjective, text: TextFeatures, anchor: int) -> int:
    """Return how many leading slots of the block at `anchor` have the text's token as their most likely one."""
    batch = collate([text], [np.array([anchor])], objective.num_slots)
    hidden = objective._slot_hidden(batch)[0, 0]
    logits = hidden @ objective._head.T
    if isinstance(objective, DSparkObjective):
        logits = logits + objective.markov_w1[batch.previous_ids[0, 0]] @ objective.markov_w2.T
    right = logits.argmax(-1) == batch.label_ids[0, 0]
    return int(right.int().cumprod(0).sum())
