"""What takes a step: AdamW on every weight, or Muon on the network's matrices and AdamW on the rest.

Muon turns the momentum of a matrix into the nearest orthogonal one before it is added, scaled to the size that an
AdamW update has, so both live on one learning rate. Tables (the Markov head's) and vectors are AdamW's.

Ref: https://kellerjordan.github.io/posts/muon/; arXiv:2502.16982, section 2.2 (scaling).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from blockdraft.train.recipe import OptimizerSection

MATRICES = "network."
"""Prefix of the parameters whose matrices are Muon's."""


class Stepper:
    """The optimizers of a run, as one."""

    def __init__(self, section: OptimizerSection, parameters: Mapping[str, Tensor], *, is_fused: bool) -> None:
        """`parameters` by their names in the objective; `is_fused` for one pass over each, where tensors are plain."""
        matrices = [name for name, value in parameters.items() if name.startswith(MATRICES) and value.ndim == 2]
        by_muon = set(matrices if section.name == "muon" else ())
        self._optimizers: list[torch.optim.Optimizer] = []
        rest = [value for name, value in parameters.items() if name not in by_muon]
        if rest:
            self._optimizers.append(
                torch.optim.AdamW(
                    rest,
                    lr=section.learning_rate,
                    betas=(section.beta1, section.beta2),
                    weight_decay=section.weight_decay,
                    fused=is_fused,
                )
            )
        if by_muon:
            self._optimizers.append(
                torch.optim.Muon(
                    [parameters[name] for name in matrices],
                    lr=section.learning_rate,
                    weight_decay=section.weight_decay,
                    momentum=section.momentum,
                    adjust_lr_fn="match_rms_adamw",
                )
            )
        self._owners = {
            parameter: optimizer
            for optimizer in self._optimizers
            for group in optimizer.param_groups
            for parameter in group["params"]
        }

    def step(self, learning_rate: float) -> None:
        """Update the weights from their gradients."""
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                group["lr"] = learning_rate
            optimizer.step()

    def zero_grad(self) -> None:
        """Forget the gradients."""
        for optimizer in self._optimizers:
            optimizer.zero_grad(set_to_none=True)

    def moments(self, parameter: Tensor) -> dict[str, Tensor]:
        """Return what is remembered about a weight; nothing before its first step."""
        state: dict[str, Any] = self._owners[parameter].state.get(parameter, {})
        return {name: value for name, value in state.items() if isinstance(value, Tensor)}

    def restore(self, parameter: Tensor, moments: dict[str, Tensor]) -> None:
        """Put back what `moments` returned, split and placed as the weight is."""
        self._owners[parameter].state[parameter] = moments
