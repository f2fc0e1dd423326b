"""Training on several processes: `torchrun` starts them, FSDP2 splits weights, gradients and optimizer state.

A step is the same arithmetic as on one process: its batches are dealt out to the ranks, losses are sums, and the
weight that they are divided by is the sum over all ranks. What a checkpoint holds is gathered whole, so a run can
go on with another number of processes. Without `torchrun` there is one rank, and nothing here costs anything.

Ref: https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from blockdraft.errors import TrainingError

Item = TypeVar("Item")

_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True, kw_only=True)
class Ranks:
    """Which process this is, and how it reaches the others."""

    rank: int
    size: int
    device: torch.device

    @property
    def is_first(self) -> bool:
        """True for the process that writes files and talks to the user."""
        return self.rank == 0

    @property
    def is_alone(self) -> bool:
        return self.size == 1

    def deal(self, items: Sequence[Item]) -> list[Item | None]:
        """Return this rank's items, every rank as many; None stands for an item that there is not.

        FSDP gathers weights in the forward pass, so a rank without a batch has to run one all the same.
        """
        count = -(-len(items) // self.size)
        padded = [*items, *[None] * (count * self.size - len(items))]
        return padded[self.rank :: self.size]

    def total(self, values: Tensor) -> Tensor:
        """Return the sums over all ranks. Shapes: any; the same on every rank."""
        if self.is_alone:
            return values
        summed = values.detach().clone()
        dist.all_reduce(summed)
        return summed

    def shard(self, objective: nn.Module, layers: Sequence[nn.Module]) -> None:
        """Split the weights of an objective over the ranks; `layers` are gathered one after another.

        All ranks must have made it with the same seed, and start from the weights of their own copy.
        """
        if self.is_alone:
            return
        mesh = init_device_mesh(self.device.type, (self.size,))
        for module in (*layers, objective):
            fully_shard(module, mesh=mesh)
        for module in objective.modules():
            if isinstance(module, FSDPModule):
                # Losses are sums already divided by the weight of all ranks: gradients are added, not averaged.
                module.set_gradient_divide_factor(1.0)
                module.set_force_sum_reduction_for_comms(True)

    def any(self, flag: bool) -> bool:
        """Return whether the flag is set on some rank, so that all of them stop at the same step."""
        return flag if self.is_alone else bool(self.total(torch.tensor([float(flag)], device=self.device)))

    def from_first(self, make: Callable[[], Item]) -> Item:
        """Let the first rank make something that all are to decide by; the others wait for it."""
        if self.is_alone:
            return make()
        found: list[Any] = [make() if self.is_first else None]
        dist.broadcast_object_list(found, device=self.device)
        made: Item = found[0]
        return made

    def settle(self, objective: nn.Module) -> None:
        """Put weights back that a forward pass without a backward pass left gathered."""
        for module in objective.modules():
            if isinstance(module, FSDPModule):
                module.reshard()

    def barrier(self) -> None:
        """Wait for the others."""
        if not self.is_alone:
            dist.barrier()


@contextmanager
def ranks(device: torch.device) -> Iterator[Ranks]:
    """Join the processes that `torchrun` started; alone without it. `device` says on what kind of device.

    Raises:
        TrainingError: the environment is half that of `torchrun`, or there are more processes than GPUs.
    """
    given = [name for name in _VARIABLES if name in os.environ]
    if not given:
        yield Ranks(rank=0, size=1, device=device)
        return
    if missing := [name for name in _VARIABLES if name not in os.environ]:
        raise TrainingError(
            f"{', '.join(given)} is set, as torchrun does, but {', '.join(missing)} is not; start the run with "
            "torchrun, or unset these variables"
        )
    place = _own_device(device, int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if place.type == "cuda" else "gloo")
    try:
        yield Ranks(rank=dist.get_rank(), size=dist.get_world_size(), device=place)
    finally:
        dist.destroy_process_group()


def gather(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return whole tensors; every rank has to call this, with the same names in the same order."""
    return {name: tensor.full_tensor() if isinstance(tensor, DTensor) else tensor for name, tensor in tensors.items()}


def scatter_like(whole: Tensor, part: Tensor) -> Tensor:
    """Return this rank's part of a tensor that every rank holds whole, split as `part` is."""
    if not isinstance(part, DTensor):
        return whole

    return distribute_tensor(whole.to(part.device), part.device_mesh, part.placements)


def _own_device(device: torch.device, local_rank: int) -> torch.device:
    if device.type != "cuda":
        return device
    if local_rank >= torch.cuda.device_count():
        raise TrainingError(
            f"process {local_rank + 1} of this machine has no GPU of its own: there are {torch.cuda.device_count()}; "
            "start as many processes as there are GPUs (--nproc-per-node)"
        )
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)
