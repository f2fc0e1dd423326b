"""What a run needs to go on where it stopped, bit for bit: weights, optimizer, average, place, best result."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from blockdraft.core.acceptance import AcceptanceStats
from blockdraft.errors import ConfigError, TrainingError
from blockdraft.train.distributed import Ranks, gather, scatter_like
from blockdraft.train.evaluate import AcceptanceReport
from blockdraft.train.optimizer import Stepper
from blockdraft.train.recipe import Recipe

_FREE_KEYS = ("out", "log_every", "checkpoint_every", "eval_every", "patience", "threads", "tensorboard")
"""Keys of [run] that may differ when a run goes on; the others change what it would have been."""


@dataclass(kw_only=True)
class TrainingState:
    """Where a run is."""

    step: int
    num_blocks: int
    num_worse: int
    """Measurements since the best one."""
    best_report: AcceptanceReport | None
    average: dict[str, Tensor] | None
    """Averaged weights by parameter name."""

    @classmethod
    def fresh(cls, parameters: Mapping[str, Tensor], *, with_average: bool) -> TrainingState:
        """Return the state before the first step."""
        average = {name: value.detach().clone() for name, value in parameters.items()} if with_average else None
        return cls(step=0, num_blocks=0, num_worse=0, best_report=None, average=average)

    @torch.no_grad()
    def update_average(self, parameters: Mapping[str, Tensor], decay: float) -> None:
        """Move the average towards the weights; early on by more, so that it forgets the first ones."""
        if self.average is None:
            return
        share = 1 - min(decay, (1 + self.step) / (10 + self.step))
        for name, value in parameters.items():
            self.average[name].lerp_(value.detach(), share)

    @contextmanager
    def averaged(self, parameters: Mapping[str, Tensor]) -> Iterator[None]:
        """Put the average in the place of the weights for a while."""
        if self.average is None:
            yield
            return
        own = {name: value.detach().clone() for name, value in parameters.items()}
        _copy_into(parameters, self.average)
        try:
            yield
        finally:
            _copy_into(parameters, own)


@torch.no_grad()
def _copy_into(parameters: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> None:
    for name, parameter in parameters.items():
        parameter.copy_(values[name])


def save_state(
    folder: Path,
    state: TrainingState,
    recipe: Recipe,
    *,
    parameters: Mapping[str, Tensor],
    stepper: Stepper,
    ranks: Ranks,
) -> None:
    """Write `state.pt`, whole or not at all; every rank has to call this.

    Raises:
        TrainingError: the disk is full or not writable; the checkpoint before stays.
    """
    moments: dict[str, Any] = {}
    for name, parameter in parameters.items():
        moments[name] = gather(stepper.moments(parameter))
    content = {
        "recipe": recipe.to_dict(),
        "step": state.step,
        "num_blocks": state.num_blocks,
        "num_worse": state.num_worse,
        "best": None if state.best_report is None else _report_to_data(state.best_report),
        "parameters": gather({name: value.detach() for name, value in parameters.items()}),
        "average": None if state.average is None else gather(state.average),
        "moments": moments,
    }
    if not ranks.is_first:
        return
    folder.mkdir(parents=True, exist_ok=True)
    path, partial = folder / "state.pt", folder / "state.pt.partial"
    try:
        torch.save(content, partial)
        partial.replace(path)
    except (OSError, RuntimeError) as error:  # torch reports a full disk as a RuntimeError
        partial.unlink(missing_ok=True)
        raise TrainingError(
            f"the checkpoint {path} could not be written ({str(error).splitlines()[0]}); the one before it stays, and "
            "the same command goes on from there once there is room"
        ) from error


def load_state(path: Path, recipe: Recipe, parameters: Mapping[str, Tensor], stepper: Stepper) -> TrainingState:
    """Read `state.pt` into the parameters and what takes their steps.

    Raises:
        TrainingError: the file is damaged.
        ConfigError: it belongs to another recipe.
    """
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, pickle.UnpicklingError, EOFError) as error:
        raise TrainingError(f"{path} is damaged ({error}); delete it to start anew") from error
    _check_recipe(path, content["recipe"], recipe.to_dict())
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(scatter_like(content["parameters"][name], parameter))
            own = content["moments"][name]
            stepper.restore(
                parameter,
                {
                    key: value if key == "step" else scatter_like(value, parameter).to(parameter.device)
                    for key, value in own.items()
                },
            )
    average = content["average"]
    if average is not None:
        average = {name: scatter_like(average[name], own).to(own.device) for name, own in parameters.items()}
    return TrainingState(
        step=content["step"],
        num_blocks=content["num_blocks"],
        num_worse=content["num_worse"],
        best_report=None if content["best"] is None else _report_from_data(content["best"]),
        average=average,
    )


def _check_recipe(path: Path, stored: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    defaults = Recipe().to_dict()  # of keys that are younger than the checkpoint
    changed = [
        f"{section}.{key}"
        for section, values in wanted.items()
        for key, value in values.items()
        if not (section == "run" and key in _FREE_KEYS)
        and not (section == "data" and key.startswith(("eval", "num_eval")))
        and _plain(stored.get(section, {}).get(key, defaults[section].get(key))) != _plain(value)
    ]
    if changed:
        raise ConfigError(
            f"{path} was made by another recipe (different: {', '.join(changed)}); use the same one to go on, "
            "another run.out to start anew, or drafter.init to start from its drafter"
        )


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _report_to_data(report: AcceptanceReport) -> dict[str, Any]:
    values = {name: getattr(report, name) for name in _REPORT_FIELDS}
    parts = {category: vars(stats) for category, stats in report.by_category.items()}
    return {**values, "overall": vars(report.overall), "by_category": parts}


def _report_from_data(data: Mapping[str, Any]) -> AcceptanceReport:
    return AcceptanceReport(
        **{name: data[name] for name in _REPORT_FIELDS},
        overall=AcceptanceStats(**data["overall"]),
        by_category={category: AcceptanceStats(**stats) for category, stats in data["by_category"].items()},
    )


_REPORT_FIELDS = ("drafter", "temperature", "max_tokens", "num_prompts", "num_tokens", "seconds")
