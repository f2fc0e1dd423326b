"""Collects what a confidence head said and what the target did, in the real engine, and calibrates the head.

The temperatures are fitted on one half of the prompts and judged on the other, so that the figures after
calibration are those of text that was not fitted to.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np

from blockdraft import __version__
from blockdraft.core.sampling import SamplingParams
from blockdraft.drafters.base import Ask, Drafter, DrafterTraits, Observation, Proposal
from blockdraft.drafters.draft_checkpoint import DraftCheckpoint
from blockdraft.drafters.dspark import DSparkDrafter
from blockdraft.engine import Engine
from blockdraft.engine.workloads import Workload
from blockdraft.errors import ConfigError, DataError
from blockdraft.models.base import Target
from blockdraft.models.tokenizer import Tokenizer
from blockdraft.train.calibration import ConfidenceData, SlotReliability, assess, fit_temperatures

CALIBRATION = "calibration.json"
_EDGE = 1e-7
"""A confidence is kept this far from 0 and 1, where its logit would be infinite."""

Progress = Callable[[int, int], None]
"""Is told how many prompts are answered, of how many."""


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """Temperatures for the slots of a drafter, and what they changed on prompts that they were not fitted on."""

    temperatures: tuple[float, ...]
    sampling_temperature: float
    max_tokens: int
    num_prompts: int
    num_rounds_fitted: int
    num_rounds_judged: int
    before: tuple[SlotReliability, ...]
    after: tuple[SlotReliability, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain data."""
        return {
            "method": "sequential temperature scaling",
            "confidence_temperatures": list(self.temperatures),
            "sampling_temperature": self.sampling_temperature,
            "max_tokens": self.max_tokens,
            "num_prompts": self.num_prompts,
            "num_rounds_fitted": self.num_rounds_fitted,
            "num_rounds_judged": self.num_rounds_judged,
            "before": [slot.to_dict() for slot in self.before],
            "after": [slot.to_dict() for slot in self.after],
        }


@dataclass
class _Recorded:
    """A sequence's state in the wrapped drafter, and what was said about the draft that is being verified."""

    inner: Any
    confidence: tuple[float, ...] = ()


class RecordingDrafter(Drafter):
    """Passes everything on, and writes down confidences and outcomes.

    Raises:
        ConfigError: the wrapped drafter gives no confidence.
    """

    def __init__(self, inner: Drafter) -> None:
        if not inner.traits.has_confidence:
            raise ConfigError(f"{inner.traits.name} gives no confidence, so there is nothing to calibrate")
        self.inner = inner
        self._rows: list[tuple[tuple[float, ...], list[int]]] = []

    @property
    def traits(self) -> DrafterTraits:
        return self.inner.traits

    def describe(self) -> dict[str, object]:
        return self.inner.describe()

    def begin(self, prompt_ids: Sequence[int]) -> _Recorded:
        return _Recorded(self.inner.begin(prompt_ids))

    def propose(self, asks: Sequence[Ask]) -> list[Proposal]:
        proposals = self.inner.propose([replace(ask, state=ask.state.inner) for ask in asks])
        for ask, proposal in zip(asks, proposals, strict=True):
            ask.state.confidence = proposal.confidence or ()
        return proposals

    def observe(self, state: _Recorded, observation: Observation) -> None:
        self.inner.observe(state.inner, observation)
        if not observation.num_drafted:
            return
        num_kept = observation.num_accepted
        # Without a token of the target's own the answer ended inside the draft: what lay behind was not judged.
        ended_inside = len(observation.committed_ids) == num_kept
        rest = observation.num_drafted - num_kept
        self._rows.append((state.confidence, [1] * num_kept + [-1 if ended_inside else 0] * rest))

    def data(self) -> ConfidenceData:
        """Return what was written down so far.

        Raises:
            DataError: nothing was drafted.
        """
        if not self._rows:
            raise DataError(f"{self.inner.traits.name} drafted nothing on these prompts; give more or other prompts")
        shape = (len(self._rows), self.traits.max_draft_tokens)
        logits, kept = np.full(shape, np.nan), np.full(shape, -1, dtype=np.int8)
        for row, (confidence, outcomes) in enumerate(self._rows):
            stated = np.clip(confidence, _EDGE, 1 - _EDGE)
            logits[row, : len(stated)] = np.log(stated) - np.log1p(-stated)
            kept[row, : len(outcomes)] = outcomes
        return ConfidenceData(logits=logits, kept=kept)


def collect_confidence(
    target: Target,
    tokenizer: Tokenizer,
    drafter: Drafter,
    prompts: Sequence[Workload],
    *,
    max_tokens: int = 128,
    sampling: SamplingParams | None = None,
    batch: int = 8,
    progress: Progress | None = None,
) -> ConfidenceData:
    """Answer the first turn of each prompt with whole blocks, and return confidences and outcomes.

    Raises:
        ConfigError: the drafter gives no confidence.
        DataError: nothing was drafted.
        BlockdraftError: the engine cannot serve the pair or a prompt.
    """
    recorder = RecordingDrafter(drafter)
    engine = Engine(target, tokenizer, recorder, max_running=batch)
    for index, prompt in enumerate(prompts):
        request = engine.request(prompt.turns[0], max_tokens=max_tokens, sampling=sampling, sample_index=index)
        engine.submit(request)
    num_done = 0
    while num_done < len(prompts):
        num_done += len(engine.step())
        if progress:
            progress(num_done, len(prompts))
    return recorder.data()


def calibrate(
    target: Target,
    tokenizer: Tokenizer,
    checkpoint: DraftCheckpoint,
    prompts: Sequence[Workload],
    *,
    max_tokens: int = 128,
    sampling: SamplingParams | None = None,
    batch: int = 8,
    progress: Progress | None = None,
) -> Calibration:
    """Fit the temperatures of a DSpark drafter; those that it has already are left aside.

    Raises:
        ConfigError: it is not a DSpark drafter, or has no confidence head.
        DataError: too little was drafted to fit or judge every slot.
    """
    sampling = sampling or SamplingParams()
    raw = replace(checkpoint, config=replace(checkpoint.config, confidence_temperatures=()))
    drafter = DSparkDrafter(raw, target, with_confidence=True)
    fitted_on = _alternate(prompts)

    def collect(chosen: Sequence[Workload], num_before: int) -> ConfidenceData:
        return collect_confidence(
            target,
            tokenizer,
            drafter,
            chosen,
            max_tokens=max_tokens,
            sampling=sampling,
            batch=batch,
            progress=progress and (lambda done, _: progress(num_before + done, len(prompts))),
        )

    fitting = collect(list(compress(prompts, fitted_on)), 0)
    temperatures = fit_temperatures(fitting)
    judging = collect(list(compress(prompts, [not flag for flag in fitted_on])), sum(fitted_on))
    return Calibration(
        temperatures=temperatures,
        sampling_temperature=sampling.temperature,
        max_tokens=max_tokens,
        num_prompts=len(prompts),
        num_rounds_fitted=len(fitting.logits),
        num_rounds_judged=len(judging.logits),
        before=assess(judging),
        after=assess(judging, temperatures),
    )


def save_calibration(folder: Path, calibration: Calibration, provenance: dict[str, Any]) -> None:
    """Write the temperatures into a drafter's config.json, and everything about them into calibration.json.

    Raises:
        DataError: the folder cannot be written.
    """
    config_file = folder / "config.json"
    config = json.loads(config_file.read_text(encoding="utf-8"))
    config["confidence_temperatures"] = list(calibration.temperatures)
    record = {"blockdraft": __version__, **provenance, **calibration.to_dict()}
    try:
        _replace_file(folder / CALIBRATION, record)
        _replace_file(config_file, config)
    except OSError as error:
        raise DataError(f"the calibration cannot be saved in {folder} ({error}); make the folder writable") from error


def _replace_file(path: Path, content: dict[str, Any]) -> None:
    """Write JSON next to its place, then move it there: a reader never sees half a file."""
    unfinished = path.with_name(path.name + ".unfinished")
    unfinished.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    unfinished.replace(path)


def _alternate(prompts: Sequence[Workload]) -> list[bool]:
    """Return which prompts to fit on: every second of each category, so that both halves are alike."""
    seen: Counter[str] = Counter()
    flags = []
    for prompt in prompts:
        flags.append(seen[prompt.category] % 2 == 0)
        seen[prompt.category] += 1
    if all(flags):
        raise DataError(
            "calibration fits on one half of the prompts and is judged on the other; give at least two of a category"
        )
    return flags
