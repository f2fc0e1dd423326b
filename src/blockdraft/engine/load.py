"""From references to an engine in one call."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace

from blockdraft.drafters.build import build_drafter
from blockdraft.drafters.config import NgramSimple, SpecConfig
from blockdraft.engine.adaptive_policy import may_pay
from blockdraft.engine.engine import Engine
from blockdraft.engine.kept_costs import kept_pass_costs
from blockdraft.engine.policy import check_confidences
from blockdraft.errors import ConfigError
from blockdraft.models.load import LoadedModel, Runtime, load_model
from blockdraft.models.references import DEFAULT_MODEL, ModelReference, builtin
from blockdraft.runtime.memory import give_back_free_memory

logger = logging.getLogger(__name__)

DEFAULT_SPEC = SpecConfig(
    types=("ngram-simple",),
    policy="adaptive",
    ngram_simple=NgramSimple(size_n=4, size_n_min=2, size_m=40, min_draft=1),
)
"""What any model can draft with: needs no draft model and drafts on short matches. See docs/lab/LOG.md."""

SHIPPED_SPECS: Mapping[str, SpecConfig] = {
    DEFAULT_MODEL: replace(
        DEFAULT_SPEC,
        types=(*DEFAULT_SPEC.types, "draft-dspark"),
        draft_model="builtin:smollm2-dspark",
    )
}
"""How models draft that a drafter comes with."""


def default_spec_for(model: str) -> SpecConfig:
    """Return how drafts are made for a model when nothing is asked for; its notes say so where it is not plain.

    A model with a shipped drafter uses that where n-grams find nothing; all others use n-grams alone.
    """
    spec = SHIPPED_SPECS.get(model)
    if spec is None:
        return DEFAULT_SPEC
    assert spec.draft_model is not None
    names = ", ".join(DEFAULT_SPEC.types)
    if not builtin.is_installed(ModelReference.parse(spec.draft_model).name):
        note = f"drafting with {names} alone, as this installation came without {spec.draft_model}"
        return replace(DEFAULT_SPEC, notes=(note,))
    note = f"drafting with {names}, then {spec.draft_model}; --drafter names another"
    return replace(spec, notes=(note,))


def load(
    model: str = DEFAULT_MODEL,
    drafter: str | SpecConfig | None = None,
    *,
    device: str = "auto",
    dtype: str = "auto",
    runtime: Runtime = "auto",
    max_running: int = 8,
    offline: bool | None = None,
    notify: Callable[[str], None] | None = None,
) -> Engine:
    """Load a target and a drafter.

    On the native runtime torch is left with one thread, see `load_model`.

    Args:
        model: reference of the target; the small model that a package of the index ships, if left out.
        drafter: reference of a draft model, whose kind is found from its files; or a whole `SpecConfig`; or "none"
            for plain decoding. Left out: `default_spec_for(model)`.
        device: "auto", "cpu", "cuda", "cuda:1", ...
        dtype: "auto", "bfloat16", "float16", "float32", for torch.
        runtime: "native" for the kernels that compute weights as they are stored, on a CPU; "torch"; "auto" for the
            first wherever it can run the model, unless a dtype is asked for.
        max_running: how many requests run together at most.
        offline: never ask a network; None reads the environment.
        notify: is told, in one line each, what a user should know; None for this module's logger.

    Raises:
        BlockdraftError: the model, the drafter or the pair cannot be used; see `blockdraft.errors`.
    """
    tell = notify or logger.info
    spec = _spec_of(drafter, model)
    loaded = load_model(model, device=device, dtype=dtype, runtime=runtime, offline=offline, notify=tell)
    engine = make_engine(loaded, spec, max_running=max_running, offline=offline, notify=tell)
    give_back_free_memory()
    return engine


def make_engine(
    loaded: LoadedModel,
    spec: SpecConfig,
    *,
    max_running: int = 8,
    offline: bool | None = None,
    notify: Callable[[str], None],
) -> Engine:
    """Make an engine for a loaded target.

    A shipped drafter that nobody asked for is left out, and that is said, where not even good drafts would pay.

    Raises:
        BlockdraftError: the drafter or the pair cannot be used.
    """
    target, tokenizer = loaded.target, loaded.tokenizer
    built = build_drafter(spec, target, tokenizer, offline=offline, notify=notify)
    costs = None
    if built and spec.policy != "fixed":
        check_confidences(spec, built)  # sooner than the seconds that costs take
        costs = kept_pass_costs(target, built, notify=notify)
        networks = [part.traits for part in built.parts if not part.traits.is_instant]
        if _is_shipped(spec, loaded.reference) and not all(may_pay(traits, costs) for traits in networks):
            note = (
                f"drafting with {', '.join(DEFAULT_SPEC.types)} alone: drafts of {spec.draft_model}, and the rows they "
                f"add, take so long here that hardly any would pay; --drafter {spec.draft_model} uses it anyway"
            )
            spec = replace(DEFAULT_SPEC, notes=(note,))
            built = build_drafter(spec, target, tokenizer, offline=offline, notify=notify)
    for note in spec.notes:
        notify(note)
    return Engine(target, tokenizer, built, spec=spec, costs=costs, max_running=max_running)


def _is_shipped(spec: SpecConfig, model: str) -> bool:
    shipped = SHIPPED_SPECS.get(model)
    return shipped is not None and replace(spec, notes=()) == shipped


def _spec_of(drafter: str | SpecConfig | None, model: str) -> SpecConfig:
    if drafter is None:
        return default_spec_for(model)
    if isinstance(drafter, SpecConfig):
        return drafter
    if drafter == "none":
        return SpecConfig()
    if drafter.startswith(("ngram-", "draft-")):
        raise ConfigError(f"{drafter!r} is a kind, not a model; pass SpecConfig(types=({drafter!r},), ...)")
    return SpecConfig(types=("auto",), draft_model=drafter)
