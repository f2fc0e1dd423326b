"""From references to an engine in one call."""

from __future__ import annotations

import logging
from collections.abc import Callable

from blockdraft.drafters.build import build_drafter
from blockdraft.drafters.config import NgramSimple, SpecConfig
from blockdraft.engine.engine import Engine
from blockdraft.errors import ConfigError
from blockdraft.models.load import load_model
from blockdraft.models.references import DEFAULT_MODEL

logger = logging.getLogger(__name__)

DEFAULT_SPEC = SpecConfig(
    types=("ngram-simple",), ngram_simple=NgramSimple(size_n=4, size_n_min=2, size_m=15, min_draft=1)
)
"""What is used when nothing is asked for: needs no draft model and drafts on short matches. See docs/lab/LOG.md."""


def load(
    model: str = DEFAULT_MODEL,
    drafter: str | SpecConfig | None = None,
    *,
    device: str = "auto",
    dtype: str = "auto",
    max_running: int = 8,
    offline: bool | None = None,
    notify: Callable[[str], None] | None = None,
) -> Engine:
    """Load a target and a drafter.

    Args:
        model: reference of the target; the small model that a package of the index ships, if left out.
        drafter: reference of a draft model, whose kind is found from its files; or a whole `SpecConfig`; or "none"
            for plain decoding. Left out: `DEFAULT_SPEC`.
        device: "auto", "cpu", "cuda", "cuda:1", ...
        dtype: "auto", "bfloat16", "float16", "float32".
        max_running: how many requests run together at most.
        offline: never ask a network; None reads the environment.
        notify: is told, in one line each, what a user should know; None for this module's logger.

    Raises:
        BlockdraftError: the model, the drafter or the pair cannot be used; see `blockdraft.errors`.
    """
    tell = notify or logger.info
    spec = _spec_of(drafter)
    loaded = load_model(model, device=device, dtype=dtype, offline=offline, notify=tell)
    for note in spec.notes:
        tell(note)
    built = build_drafter(spec, loaded.target, loaded.tokenizer, offline=offline, notify=tell)
    return Engine(loaded.target, loaded.tokenizer, built, spec=spec, max_running=max_running)


def _spec_of(drafter: str | SpecConfig | None) -> SpecConfig:
    if drafter is None:
        return DEFAULT_SPEC
    if isinstance(drafter, SpecConfig):
        return drafter
    if drafter == "none":
        return SpecConfig()
    if drafter.startswith(("ngram-", "draft-")):
        raise ConfigError(f"{drafter!r} is a kind, not a model; pass SpecConfig(types=({drafter!r},), ...)")
    return SpecConfig(types=("auto",), draft_model=drafter)
