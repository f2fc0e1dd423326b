"""The machine that a model runs on, by its kind and not by its name, and what it computes with."""

from __future__ import annotations

import os
import platform
from dataclasses import asdict, dataclass
from typing import Any

import torch

from blockdraft.models.placement import choose_device, choose_dtype
from blockdraft.models.processor import cpu_name
from blockdraft.runtime.native_core import available_kernels, why_unavailable


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What was found."""

    cpu: str
    num_cores: int
    gpus: tuple[str, ...]
    system: str
    kernels: tuple[str, ...]
    """Native kernels that the processor can run, best first: the first are taken."""
    why_no_kernels: str | None
    device: str
    """What "auto" chooses."""
    dtype: str
    """What "auto" chooses on that device, for models that torch computes."""
    torch: str

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def find_machine() -> Machine:
    """Look at the machine that this process runs on."""
    device = choose_device("auto")
    return Machine(
        cpu=cpu_name(),
        num_cores=os.cpu_count() or 1,
        gpus=tuple(torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())),
        system=f"{platform.system()} {platform.machine()}",
        kernels=tuple(available_kernels()),
        why_no_kernels=why_unavailable(),
        device=str(device),
        dtype=str(choose_dtype("auto", device)).removeprefix("torch."),
        torch=torch.__version__,
    )
