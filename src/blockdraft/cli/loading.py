"""From options to an engine, with the user told what takes time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import blockdraft
from blockdraft.cli.model_options import ModelOptions
from blockdraft.cli.sampling_options import SamplingOptions
from blockdraft.cli.speculation_options import SpeculationOptions
from blockdraft.cli.terminal import note, working

if TYPE_CHECKING:
    from blockdraft.drafters.config import SpecConfig
    from blockdraft.engine import Engine
    from blockdraft.models.load import Runtime


def model_reference(options: ModelOptions) -> str:
    """Return the reference of the target."""
    from blockdraft.models.references import DEFAULT_MODEL  # noqa: PLC0415 - it imports the hub's client

    return options.model or DEFAULT_MODEL


def check_options(options: ModelOptions, speculation: SpeculationOptions, sampling: SamplingOptions) -> SpecConfig:
    """Return how drafts are made, after checking what can be checked before anything is loaded.

    Raises:
        ConfigError: an option is out of range, or options contradict each other.
    """
    spec = check_speculation(options, speculation)
    sampling.params()
    return spec


def check_speculation(options: ModelOptions, speculation: SpeculationOptions) -> SpecConfig:
    """Return how drafts are made.

    Raises:
        ConfigError: options of speculation contradict each other.
    """
    with working("starting"):  # the first import of torch takes seconds
        return speculation.resolve(options.model)


def load_engine(options: ModelOptions, spec: SpecConfig, runtime: Runtime, *, max_running: int = 1) -> Engine:
    """Fetch what is missing, then load target and drafter, for `max_running` requests at once.

    Raises:
        BlockdraftError: the model, the drafter or the pair cannot be used.
    """
    from blockdraft.models.references import resolve  # noqa: PLC0415 - it imports the hub's client

    reference = model_reference(options)
    needed = [reference, *([spec.draft_model] if spec.needs_draft_model and spec.draft_model else [])]
    for name in needed:
        # Before the spinner, which would fight with the progress bars of downloads.
        resolve(name, offline=options.offline or None, notify=note)
    with working(f"loading {' and '.join(needed)}"):
        if options.threads is not None:
            import torch  # noqa: PLC0415 - seconds that wrong options need not wait for

            torch.set_num_threads(options.threads)
        return blockdraft.load(
            reference,
            spec,
            device=options.device,
            dtype=options.dtype,
            runtime=runtime,
            max_running=max_running,
            offline=True,
            notify=note,
        )
