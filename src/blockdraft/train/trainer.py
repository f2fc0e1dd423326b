"""The training loop: one for all drafters, one process or many.

A step adds the sums of its batches, divides by the weight of all of them, clips, and takes a step on float32
weights. Everything random follows from the seed and the number of the step, so a run that was killed
goes on to the same weights. Acceptance is measured by the real engine while the run goes on.
"""

from __future__ import annotations

import ctypes
import dataclasses
import json
import math
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from blockdraft.engine.workloads import Workload
from blockdraft.errors import TrainingError
from blockdraft.models.load import LoadedModel
from blockdraft.train.batches import BatchPlan, BlockBatch, EpochSampler
from blockdraft.train.distributed import Ranks, gather
from blockdraft.train.drafter import DraftObjective, serve, write_drafter
from blockdraft.train.evaluate import AcceptanceReport, measure_acceptance
from blockdraft.train.features import Features
from blockdraft.train.optimizer import Stepper
from blockdraft.train.recipe import OptimizerSection, Recipe, dump_recipe
from blockdraft.train.state import TrainingState, load_state, save_state
from blockdraft.train.tracking import Tracker


@dataclass(frozen=True, kw_only=True)
class Progress:
    """What the trainer tells after a step or a measurement."""

    step: int
    num_steps: int
    values: dict[str, float]
    acceptance: AcceptanceReport | None = None


@dataclass(kw_only=True)
class _Window:
    """Sums since the last report."""

    loss: float = 0.0
    weight: float = 0.0
    metrics: dict[str, float] = field(default_factory=dict)
    blocks: int = 0
    flops: float = 0.0
    started: float = field(default_factory=time.perf_counter)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a run ended."""

    step: int
    num_steps: int
    drafter: Path
    best: AcceptanceReport | None
    stopped_early: bool
    was_interrupted: bool


def learning_rate(section: OptimizerSection, step: int, num_steps: int) -> float:
    """Return the rate of a step: a linear warm-up, then half a cosine down to the minimum."""
    if step < section.warmup_steps:
        return section.learning_rate * (step + 1) / section.warmup_steps
    done = (step - section.warmup_steps) / max(num_steps - section.warmup_steps, 1)
    span = section.learning_rate - section.min_learning_rate
    return section.min_learning_rate + span * 0.5 * (1 + math.cos(math.pi * min(done, 1.0)))


class Trainer:
    """Trains one drafter; `run` may be called again on the same folder to go on."""

    def __init__(
        self,
        recipe: Recipe,
        loaded: LoadedModel,
        objective: DraftObjective,
        *,
        features: Features,
        prompts: list[Workload],
        ranks: Ranks,
        report: Callable[[Progress], None] = lambda progress: None,
    ) -> None:
        self.recipe, self.loaded, self.objective, self.ranks = recipe, loaded, objective, ranks
        self.folder = Path(recipe.run.out)
        self._prompts, self._report, self._features = prompts, report, features
        plan = BatchPlan(
            blocks_per_batch=recipe.run.blocks_per_batch,
            anchors_per_text=recipe.run.anchors_per_text,
            num_slots=objective.num_slots,
            seed=recipe.run.seed,
        )
        training, held_out = split_texts(len(features), recipe.data.held_out)
        self._sampler = EpochSampler(features, training, plan)
        self._held_out = EpochSampler(features, held_out, plan)
        self.num_steps = recipe.run.max_steps or sum(self._steps_of(epoch) for epoch in range(recipe.run.epochs))
        ranks.shard(objective, objective.sharded_layers)
        self._parameters = dict(objective.named_parameters())
        section = recipe.optimizer
        self._stepper = Stepper(section, self._parameters, is_fused=ranks.is_alone)
        self._state = TrainingState.fresh(self._parameters, with_average=section.ema > 0)
        if (self.folder / "state.pt").exists():
            self._state = load_state(self.folder / "state.pt", recipe, self._parameters, self._stepper)

    def _steps_of(self, epoch: int) -> int:
        return -(-len(self._sampler.batches(epoch)) // self.recipe.run.accumulate)

    def run(self) -> Outcome:
        """Train to the end, an early stop, or an interrupt; then write the drafter.

        Raises:
            TrainingError: a loss is not a number; the last good checkpoint stays.
        """
        run, state = self.recipe.run, self._state
        window, stopped, interrupted = _Window(), False, False
        tracker = Tracker(self.folder, state.step, use_tensorboard=run.tensorboard, active=self.ranks.is_first)
        with interruptible() as is_interrupted, tracker:
            for step, epoch, groups in self._groups(state.step):
                self._step(step, epoch, groups, window)
                state.step = step + 1
                if state.step % run.log_every == 0 or state.step == self.num_steps:
                    self._log(tracker, window)
                    window = _Window()
                if state.step % run.eval_every == 0 or state.step == self.num_steps:
                    stopped = self._evaluate(tracker)
                    window.started = time.perf_counter()
                if state.step % run.checkpoint_every == 0 or state.step == self.num_steps:
                    self.save()
                interrupted = self.ranks.any(is_interrupted())
                if stopped or interrupted:
                    break
            if state.step % run.checkpoint_every:
                self.save()
        return Outcome(
            step=state.step,
            num_steps=self.num_steps,
            drafter=self.folder / ("best" if state.best_report else "drafter"),
            best=state.best_report,
            stopped_early=stopped,
            was_interrupted=interrupted and state.step < self.num_steps,
        )

    def _groups(self, start: int) -> Iterator[tuple[int, int, list[list[int]]]]:
        """Yield the steps that are left: number, epoch, texts of each batch."""
        step, epoch, size = 0, 0, self.recipe.run.accumulate
        while step < self.num_steps:
            count = self._steps_of(epoch)
            if step + count > start:
                batches = self._sampler.batches(epoch)
                for index in range(max(start - step, 0), count):
                    if step + index >= self.num_steps:
                        return
                    yield step + index, epoch, batches[index * size : (index + 1) * size]
            step, epoch = step + count, epoch + 1

    def _step(self, step: int, epoch: int, groups: list[list[int]], window: _Window) -> None:
        batches = [self._load(epoch, groups, group) for group in self.ranks.deal(groups)]
        local = torch.tensor([sum(self.objective.weight_of(batch) for batch in batches)], device=self.ranks.device)
        weight = float(self.ranks.total(local)) or 1.0
        loss = torch.zeros(1, device=self.ranks.device)
        for batch in batches:
            sums = self.objective(batch)
            (sums.loss / weight).backward()
            loss += sums.loss.detach()
            for name, value in sums.metrics.items():
                window.metrics[name] = window.metrics.get(name, 0.0) + float(value)
            window.blocks += batch.num_blocks
            window.flops += self.objective.flops(batch)
        total = float(self.ranks.total(loss))
        clipped = torch.nn.utils.clip_grad_norm_(self._parameters.values(), self.recipe.optimizer.clip)
        norm = float(gather({"norm": clipped})["norm"])
        if not math.isfinite(total) or not math.isfinite(norm):
            self._stepper.zero_grad()
            raise TrainingError(self._not_a_number(step, total / weight, norm))
        self._stepper.step(learning_rate(self.recipe.optimizer, step, self.num_steps))
        self._stepper.zero_grad()
        self._state.update_average(self._parameters, self.recipe.optimizer.ema)
        window.loss += total
        window.weight += weight

    def _not_a_number(self, step: int, loss: float, norm: float) -> str:
        kept = self.folder / "state.pt"
        where = f"the last good checkpoint is {kept}" if kept.exists() else "there is no checkpoint yet"
        return (
            f"step {step + 1} has the loss {loss} and a gradient of norm {norm}; nothing was updated, and {where}. "
            "Lower optimizer.learning_rate, or compute in float32 (run.compute_dtype)"
        )

    def _load(self, epoch: int, groups: list[list[int]], group: list[int] | None) -> BlockBatch:
        # A rank without a batch runs one that teaches nothing, because weights are gathered in the forward pass.
        batch = self._sampler.load(epoch, groups[0] if group is None else group).to(self.ranks.device)
        if group is None:
            return dataclasses.replace(batch, is_supervised=torch.zeros_like(batch.is_supervised))
        return batch

    def _log(self, tracker: Tracker, window: _Window) -> None:
        seconds = time.perf_counter() - window.started
        # Loss and weight are those of all ranks already, the rest is this one's.
        own = torch.tensor([*window.metrics.values(), window.blocks, window.flops], dtype=torch.float64)
        *metrics, blocks, flops = self.ranks.total(own.to(self.ranks.device)).tolist()
        values = {
            "loss": window.loss / max(window.weight, 1.0),
            **{name: total / max(window.weight, 1.0) for name, total in zip(window.metrics, metrics, strict=True)},
            "learning_rate": learning_rate(self.recipe.optimizer, self._state.step - 1, self.num_steps),
            "blocks_per_s": blocks / seconds,
            "model_gflops_per_s": flops / seconds / 1e9,
        }
        self._state.num_blocks += int(blocks)
        tracker.write(self._state.step, {**values, "num_blocks": float(self._state.num_blocks)})
        self._report(Progress(step=self._state.step, num_steps=self.num_steps, values=values))

    def _evaluate(self, tracker: Tracker) -> bool:
        """Measure the drafter as it is now; return True if it is time to stop."""
        state = self._state
        tensors = self._tensors()
        held_out = self.held_out_loss()
        report = self.ranks.from_first(lambda: self._measure(tensors))
        values = {
            **held_out,
            "mean_acceptance_length": report.mean_acceptance_length,
            **{f"conditional_acceptance_{slot}": value for slot, value in enumerate(_conditional(report))},
        }
        tracker.write(state.step, values)
        self._report(Progress(step=state.step, num_steps=self.num_steps, values=values, acceptance=report))
        is_better = (
            state.best_report is None or report.mean_acceptance_length > state.best_report.mean_acceptance_length
        )
        state.num_worse = 0 if is_better else state.num_worse + 1
        if is_better:
            state.best_report = report
            self._write("best", tensors, report)
        patience = self.recipe.run.patience
        return bool(patience) and state.num_worse >= patience

    def _measure(self, tensors: dict[str, Tensor]) -> AcceptanceReport:
        return measure_acceptance(
            self.loaded.target,
            self.loaded.tokenizer,
            serve(self.objective, tensors, self.loaded.target),
            self._prompts,
            max_tokens=self.recipe.data.eval_max_tokens,
        )

    @torch.no_grad()
    def held_out_loss(self) -> dict[str, float]:
        """Return the mean loss and the analytic acceptance by slot on the held-out texts; nothing without any."""
        groups = self._held_out.batches(0) if self._held_out.texts else []
        if not groups:
            return {}
        K = self.objective.num_slots
        sums = torch.zeros(2 + 2 * K, dtype=torch.float64)
        for group in self.ranks.deal(groups):
            batch = self._held_out.load(0, groups[0] if group is None else group).to(self.ranks.device)
            found = self.objective(batch)
            if group is None:
                continue
            assert found.reached is not None
            assert found.accepted is not None
            own = [float(found.loss), found.weight, *found.reached.tolist(), *found.accepted.tolist()]
            sums += torch.tensor(own, dtype=torch.float64)
        self.ranks.settle(self.objective)
        sums = self.ranks.total(sums.to(self.ranks.device)).cpu()
        reached, accepted = sums[2 : 2 + K], sums[2 + K :]
        chances = (accepted / reached.clamp_min(1)).tolist()
        return {
            "held_out_loss": float(sums[0] / sums[1].clamp_min(1)),
            **{f"held_out_acceptance_{slot}": chance for slot, chance in enumerate(chances)},
        }

    def _tensors(self) -> dict[str, Tensor]:
        """Return whole trained tensors by the names of checkpoints: the averaged ones if there is an average."""
        with self._state.averaged(self._parameters):
            return {name: tensor.clone() for name, tensor in gather(self.objective.draft_tensors()).items()}

    def save(self) -> None:
        """Write the training state and the drafter as it is now."""
        tensors = self._tensors()
        save_state(
            self.folder,
            self._state,
            self.recipe,
            parameters=self._parameters,
            stepper=self._stepper,
            ranks=self.ranks,
        )
        self._write("drafter", tensors, None)
        _give_back_memory()

    def _write(self, name: str, tensors: dict[str, Tensor], report: AcceptanceReport | None) -> None:
        if not self.ranks.is_first:
            return
        folder = self.folder / name
        write_drafter(self.objective, tensors, self.loaded, folder)
        (folder / "recipe.toml").write_text(dump_recipe(self.recipe), encoding="utf-8")
        manifest: dict[str, Any] = {
            **dataclasses.asdict(self._features.manifest),
            "step": self._state.step,
            "num_blocks": self._state.num_blocks,
        }
        (folder / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
        if report is not None:
            (folder / "acceptance.json").write_text(json.dumps(report.to_dict(), indent=2) + "\n", encoding="utf-8")


def _give_back_memory() -> None:
    """Return free pages of the C heap to the system, where its library can.

    Batches have ever other shapes, and what they leave free between them would be kept: 13 GB after an hour.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)


def split_texts(count: int, held_out: float) -> tuple[list[int], list[int]]:
    """Return the texts to train on and those held out, spread evenly over the data."""
    number = min(round(count * held_out), count - 1)
    kept_back = {index * count // number for index in range(number)} if number else set()
    return [index for index in range(count) if index not in kept_back], sorted(kept_back)


def _conditional(report: AcceptanceReport) -> list[float]:
    stats: Any = report.overall.to_dict()
    return [float(value) for value in stats.get("conditional_acceptance", ()) if value is not None]


@contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """Let a step end before an interrupt takes effect; a second interrupt does not wait.

    Yields a function that tells whether there was one.
    """
    caught: list[int] = []
    previous = {}

    def catch(number: int, _frame: FrameType | None) -> None:
        if caught:
            raise KeyboardInterrupt
        caught.append(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        try:
            previous[number] = signal.signal(number, catch)
        except ValueError:  # not the main thread: whoever runs us there handles signals
            break
    try:
        yield lambda: bool(caught)
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
