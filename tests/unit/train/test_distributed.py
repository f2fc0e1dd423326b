"""Two processes compute what one computes: the same losses, the same weights."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.multiprocessing

from blockdraft.drafters.block_config import read_block_config
from blockdraft.errors import TrainingError
from blockdraft.testing.tiny_drafters import TinyDrafter, tiny_drafter_config
from blockdraft.testing.tiny_models import tiny_target
from blockdraft.train.batches import BlockBatch
from blockdraft.train.distributed import Ranks, gather, ranks, scatter_like
from blockdraft.train.objectives.base import LossConfig
from blockdraft.train.objectives.dspark import DSparkObjective
from blockdraft.train.objectives.slots import TargetTables
from blockdraft.train.recipe import Recipe
from blockdraft.train.run import Listener
from blockdraft.train.run import train as run_training
from blockdraft.train.trainer import Progress

NUM_STEPS = 4
CPU = torch.device("cpu")


def random_batch(seed: int, num_texts: int) -> BlockBatch:
    generator = torch.Generator().manual_seed(seed)
    X, S, n, K, c, V = num_texts, 12, 2, 4, 5, 96

    def ids(*shape: int) -> torch.Tensor:
        return torch.randint(0, V, shape, generator=generator)

    taught = torch.rand(X, n, K, generator=generator) < 0.8
    return BlockBatch(
        token_ids=ids(X, S),
        features=torch.randn(X, S, 2 * 48, generator=generator),
        anchors=torch.randint(2, 7, (X, n), generator=generator),
        previous_ids=ids(X, n, K),
        label_ids=ids(X, n, K),
        is_supervised=taught.cumprod(-1).bool(),
        candidate_ids=torch.rand(X, n, K, V, generator=generator).topk(c).indices,
        candidate_probs=torch.softmax(torch.randn(X, n, K, c, generator=generator), -1),
    )


def make_objective() -> DSparkObjective:
    torch.manual_seed(0)
    target = tiny_target()
    spec = TinyDrafter(method="dspark", packaging="deepspec", markov_rank=8, head_dim=16)
    config = read_block_config(tiny_drafter_config(target.info, spec))
    tables = TargetTables(embedding=target.embedding_weight, head=target.head_weight)
    return DSparkObjective(config, tables, LossConfig(tv=0.5), compute_dtype=torch.float32)


def train(place: Ranks) -> dict[str, Any]:
    """Run some steps of two or three batches each; return losses and weights."""
    objective = make_objective()
    place.shard(objective, list(objective.network.layers))
    # Not Adam, which would hide gradients of the wrong size.
    optimizer = torch.optim.SGD(objective.parameters(), lr=0.3, momentum=0.9)
    losses = []
    for step in range(NUM_STEPS):
        # The third batch of every other step leaves the second rank with none.
        batches = [random_batch(10 * step + number, num_texts=1 + number) for number in range(2 + step % 2)]
        mine = [(batch, True) if batch else (batches[0], False) for batch in place.deal(batches)]
        counted = [objective.weight_of(batch) for batch, counts in mine if counts]
        weight = place.total(torch.tensor(sum(counted), dtype=torch.float64))
        loss = torch.zeros((), dtype=torch.float64)
        for batch, counts in mine:
            part = objective(batch).loss / weight * (1.0 if counts else 0.0)
            part.backward()
            loss += part.detach()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(place.total(loss)))
    return {"losses": losses, "tensors": gather(objective.draft_tensors())}


def on_a_rank(rank: int, size: int, port: int, folder: str) -> None:
    """Be one of the processes that torchrun would start."""
    torch.set_num_threads(1)
    os.environ.update(
        RANK=str(rank), WORLD_SIZE=str(size), LOCAL_RANK=str(rank), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port)
    )
    with ranks(CPU) as place:
        assert (place.rank, place.size) == (rank, size)
        result = train(place)
        whole = torch.arange(10.0).view(5, 2)
        part = next(make_sharded(place).parameters())
        scattered = scatter_like(whole, part)
        assert torch.equal(gather({"x": scattered})["x"], whole)
        assert len(scattered.to_local()) < 5
        torch.save(result, Path(folder) / f"rank-{rank}.pt")


def make_sharded(place: Ranks) -> torch.nn.Module:
    module = torch.nn.Linear(2, 5, bias=False)
    place.shard(module, [])
    return module


@pytest.mark.slow
def test_two_processes_give_the_losses_and_weights_of_one(tmp_path: Path) -> None:
    torch.multiprocessing.spawn(on_a_rank, args=(2, free_port(), str(tmp_path)), nprocs=2)
    alone = train(Ranks(rank=0, size=1, device=CPU))
    for rank in range(2):
        result = torch.load(tmp_path / f"rank-{rank}.pt", weights_only=False)
        assert result["losses"] == pytest.approx(alone["losses"], rel=1e-5)
        assert result["tensors"].keys() == alone["tensors"].keys()
        for name, tensor in alone["tensors"].items():
            torch.testing.assert_close(result["tensors"][name], tensor, rtol=1e-3, atol=1e-5, msg=name)
    assert alone["losses"][-1] < alone["losses"][0]


def test_every_rank_gets_as_many_items_and_together_they_are_all() -> None:
    dealt = [Ranks(rank=rank, size=3, device=CPU).deal("abcdefg") for rank in range(3)]
    assert dealt == [["a", "d", "g"], ["b", "e", None], ["c", "f", None]]


def test_alone_nothing_is_padded_summed_or_split() -> None:
    with ranks(CPU) as place:
        assert place.is_alone
        assert place.is_first
        assert place.deal([1, 2, 3]) == [1, 2, 3]
        values = torch.tensor([1.0, 2.0])
        assert place.total(values) is values
        assert scatter_like(values, values) is values


def test_half_an_environment_of_torchrun_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(TrainingError, match=r"WORLD_SIZE.*torchrun"), ranks(CPU):
        pass


def train_on_a_rank(rank: int, size: int, port: int, recipe: Recipe) -> None:
    """Be one of the processes that torchrun would start, and run the whole trainer."""
    torch.set_num_threads(1)
    os.environ.update(
        RANK=str(rank), WORLD_SIZE=str(size), LOCAL_RANK=str(rank), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port)
    )
    run_training(recipe)


@pytest.mark.slow
@pytest.mark.parametrize(("optimizer", "atol"), [("adamw", 1e-4), ("muon", 1e-3)])  # Muon computes in bfloat16
def test_a_run_that_one_process_began_is_finished_by_two(
    make_recipe: Callable[..., Recipe], tmp_path: Path, optimizer: str, atol: float
) -> None:
    changes = {"max_steps": 6, "accumulate": 3, "blocks_per_batch": 16, "eval_every": 5}
    averaged = {"name": optimizer, "ema": 0.5}
    whole = make_recipe(run=changes | {"out": str(tmp_path / "whole")}, optimizer=averaged)
    begun = make_recipe(run=changes | {"out": str(tmp_path / "begun")}, optimizer=averaged)
    run_training(whole)
    with pytest.raises(KeyboardInterrupt):
        run_training(begun, Listener(progress=stop_at_step_4))
    torch.multiprocessing.spawn(train_on_a_rank, args=(2, free_port(), begun), nprocs=2)
    lines = [
        [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        for name in ("whole", "begun")
    ]
    for one, two in zip(*lines, strict=True):
        for name in one.keys() - {"blocks_per_s", "model_gflops_per_s"}:
            assert two[name] == pytest.approx(one[name], rel=1e-3), name
    states = [torch.load(tmp_path / name / "state.pt", weights_only=True) for name in ("whole", "begun")]
    for part in ("parameters", "average"):
        for name, tensor in states[0][part].items():
            torch.testing.assert_close(states[1][part][name], tensor, rtol=1e-2, atol=atol, msg=f"{part} {name}")


def stop_at_step_4(progress: Progress) -> None:
    if progress.step == 4:
        raise KeyboardInterrupt


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port
