"""What a training run promises: the same seed, the same weights; kills, bad numbers and full disks cost little."""

from __future__ import annotations

import errno
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from blockdraft.drafters.build import build_drafter
from blockdraft.drafters.config import SpecConfig
from blockdraft.engine import Engine
from blockdraft.errors import ConfigError, DataError, TrainingError
from blockdraft.train import trainer as trainer_module
from blockdraft.train.recipe import Recipe
from blockdraft.train.run import Listener, train
from blockdraft.train.trainer import Progress

MakeRecipe = Callable[..., Recipe]


class Killed(BaseException):
    """Stands for a process that is gone from one moment to the next."""


def losses(folder: Path) -> list[float]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if "loss" in line]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "drafter" / "model.safetensors")


def assert_equal_weights(left: Path, right: Path) -> None:
    mine, theirs = weights(left), weights(right)
    assert mine.keys() == theirs.keys()
    for name, tensor in mine.items():
        assert torch.equal(tensor, theirs[name]), name


def at_step(number: int, action: Callable[[], None]) -> Listener:
    def listen(progress: Progress) -> None:
        if progress.step == number:
            action()

    return Listener(progress=listen)


def kill() -> None:
    raise Killed


@pytest.mark.parametrize("method", ["dflash", "dspark"])
def test_the_same_seed_gives_the_same_losses_and_weights(make_recipe: MakeRecipe, tmp_path: Path, method: str) -> None:
    for name in "ab":
        train(make_recipe(drafter={"method": method}, run={"out": str(tmp_path / name)}))
    assert losses(tmp_path / "a") == losses(tmp_path / "b")
    assert_equal_weights(tmp_path / "a", tmp_path / "b")
    train(make_recipe(drafter={"method": method}, run={"out": str(tmp_path / "c"), "seed": 1}))
    assert losses(tmp_path / "a") != losses(tmp_path / "c")


@pytest.mark.parametrize("killed_after", [1, 4, 7])
def test_a_run_that_was_killed_goes_on_to_the_same_weights(
    make_recipe: MakeRecipe, tmp_path: Path, killed_after: int
) -> None:
    changes = {"optimizer": {"ema": 0.9}}
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
    reference = make_recipe(run={"out": str(tmp_path / "reference"), "max_steps": 3})
    real = trainer_module.learning_rate
    # A step of infinite length: the weights after it are no numbers, and so is the next loss.
    monkeypatch.setattr(trainer_module, "learning_rate", lambda *a: float("inf") if a[1] == 4 else real(*a))
    with pytest.raises(TrainingError, match=r"step 6 has the loss nan.*last good checkpoint is .*state\.pt"):
        train(recipe)
    kept = torch.load(tmp_path / "run" / "state.pt", weights_only=True)
    assert kept["step"] == 3
    assert all(tensor.isfinite().all() for tensor in kept["parameters"].values())
    assert reference.run.max_steps == 3


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
def test_what_is_learnt_is_what_is_served(make_recipe: MakeRecipe, tiny_loaded, data_folder: Path, method: str) -> None:
    """Over-fitted to a tiny set, the drafter is kept by the engine as often as training computed, slot by slot.

    This is where others fail: nearly all right in training, nearly all wrong when served.
    """
    recipe = make_recipe(
        drafter={"method": method, "num_layers": 2, "markov_rank": 32},
        data={"held_out": 0.0},
        loss={"ce_labels": "top1"},
        run={"max_steps": 250, "blocks_per_batch": 256, "anchors_per_text": 32, "log_every": 250, "eval_every": 1000},
    )
    told: list[Progress] = []
    outcome = train(recipe, Listener(progress=told.append))
    trained = told[0].values["acceptance"]
    spec = SpecConfig(types=("auto",), draft_model=str(Path(recipe.run.out) / "drafter"))
    drafter = build_drafter(spec, tiny_loaded.target, tiny_loaded.tokenizer)
    engine = Engine(tiny_loaded.target, tiny_loaded.tokenizer, drafter)
    lines = (data_folder / "conversations.jsonl").read_text().splitlines()
    questions = [json.loads(line)["messages"][0]["content"] for line in lines]
    answers = engine.generate_batch(questions, max_tokens=32, ignore_eos=True)
    accepted = sum(answer.stats.num_accepted for answer in answers)
    drafted = sum(answer.stats.num_drafted for answer in answers)
    assert outcome.step == 250
    print(method, trained, accepted / drafted)
