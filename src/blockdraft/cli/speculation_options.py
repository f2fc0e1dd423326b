"""Options that say who drafts: a short form, llama.cpp's flags and vLLM's flags, resolved to one `SpecConfig`.

The names of the fields are the names of the flags. The two dialects cannot be mixed in one command.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

import click

from blockdraft.cli.options import Decorator, gather, section
from blockdraft.drafters.config import (
    NGRAM_TYPES,
    REMOVED_FLAGS,
    SPEC_TYPES,
    NgramMapK,
    NgramMapK4v,
    NgramMod,
    NgramSimple,
    PolicyName,
    SpecConfig,
)
from blockdraft.errors import ConfigError

_VLLM_KEYS = {"spec_method": "method", "spec_model": "model", "spec_tokens": "num_speculative_tokens"}
"""What vLLM's short flags stand for in its JSON."""

_VLLM = ("speculative_config", *_VLLM_KEYS)
_EITHER = ("verify", "spec_policy")
"""Flags that go with both dialects."""

_CHOOSING = ("drafter", "spec_type", "spec_default", "spec_draft_model", "spec_draft_hf")
"""Flags of the other dialect that choose a drafter; the rest only tune one."""


@dataclass(frozen=True, kw_only=True)
class SpeculationOptions:
    """Who drafts, and how drafts are verified; None, False or () where nothing was said."""

    drafter: str | None
    verify: Literal["auto", "match", "rejection"] | None
    spec_policy: PolicyName | None
    spec_type: tuple[str, ...]
    spec_default: bool
    spec_draft_model: str | None
    spec_draft_hf: str | None
    spec_draft_n_max: int | None
    spec_draft_n_min: int | None
    spec_draft_p_min: float | None
    spec_ngram_simple_size_n: int | None
    spec_ngram_simple_size_m: int | None
    spec_ngram_simple_min_hits: int | None
    spec_ngram_map_k_size_n: int | None
    spec_ngram_map_k_size_m: int | None
    spec_ngram_map_k_min_hits: int | None
    spec_ngram_map_k4v_size_n: int | None
    spec_ngram_map_k4v_size_m: int | None
    spec_ngram_map_k4v_min_hits: int | None
    spec_ngram_mod_n_match: int | None
    spec_ngram_mod_n_min: int | None
    spec_ngram_mod_n_max: int | None
    speculative_config: str | None
    spec_method: str | None
    spec_model: str | None
    spec_tokens: int | None

    def resolve(self, model: str | None = None) -> SpecConfig:
        """Return what was asked for; the engine's default for the model if nothing was.

        `model` is the target's reference; None for the default model.

        Raises:
            ConfigError: the dialects are mixed, something is said twice, or it cannot be honoured.
        """
        given = [
            field.name for field in fields(self) if field.name not in _EITHER and _was_given(getattr(self, field.name))
        ]
        vllm = [name for name in given if name in _VLLM]
        others = [name for name in given if name not in _VLLM]
        if vllm and others:
            raise ConfigError(
                f"{_origin(others[0])} and {_origin(vllm[0])} are two ways to say who drafts, of llama.cpp and of "
                "vLLM; use the flags of one of them"
            )
        if vllm:
            spec = SpecConfig.from_vllm(self._vllm_mapping())
        elif any(name in _CHOOSING for name in others):
            spec = self._llamacpp(others)
        else:
            spec = self._default(model, others)
        if self.verify is not None:
            spec = replace(spec, rule=self.verify)
        return spec if self.spec_policy is None else replace(spec, policy=self.spec_policy)

    def _default(self, model: str | None, given: list[str]) -> SpecConfig:
        """Return what drafts for a model by default, with the settings that were given."""
        from blockdraft.engine.load import default_spec_for  # noqa: PLC0415 - it imports torch
        from blockdraft.models.references import DEFAULT_MODEL  # noqa: PLC0415

        spec = default_spec_for(model or DEFAULT_MODEL)
        for name in given:
            owner = next((kind for kind in NGRAM_TYPES if name.startswith(_prefix(kind))), None)
            if owner not in spec.types if owner else not spec.needs_draft_model:
                remedy = f"--spec-type {owner}" if owner else "--spec-draft-model REF"
                raise ConfigError(
                    f"{_origin(name)} has no effect on {','.join(spec.types)}, the default here; add {remedy}"
                )
        drafts = {"n_max": self.spec_draft_n_max, "n_min": self.spec_draft_n_min, "p_min": self.spec_draft_p_min}
        changes: dict[str, Any] = {key: value for key, value in drafts.items() if value is not None}
        if changes.keys() & {"n_min", "p_min"}:
            changes["policy"] = "fixed"
        return replace(spec, **changes, ngram_simple=replace(spec.ngram_simple, **self._ngram("ngram-simple")))

    def _llamacpp(self, given: list[str]) -> SpecConfig:
        types, models = self._types_and_models()
        if len(models) > 1:
            raise ConfigError(f"there is one draft model, but {' and '.join(models)} name one each; keep one of them")
        spec = SpecConfig.from_llamacpp(
            spec_types=types,
            draft_model=next(iter(models.values()), None),
            n_max=self.spec_draft_n_max,
            n_min=self.spec_draft_n_min or 0,
            p_min=self.spec_draft_p_min or 0.0,
            ngram_simple=NgramSimple(**self._ngram("ngram-simple")),
            ngram_map_k=NgramMapK(**self._ngram("ngram-map-k")),
            ngram_map_k4v=NgramMapK4v(**self._ngram("ngram-map-k4v")),
            ngram_mod=NgramMod(**self._ngram("ngram-mod")),
        )
        idle = [
            f"{_origin(name)} has no effect: {owner} is not among {','.join(spec.types)}"
            for owner in NGRAM_TYPES
            if owner not in spec.types
            for name in given
            if name.startswith(_prefix(owner))
        ]
        return replace(spec, notes=(*spec.notes, *idle))

    def _types_and_models(self) -> tuple[tuple[str, ...], dict[str, str]]:
        """Return each list of kinds, and each flag that names a draft model with the reference it names."""
        types = (*self.spec_type, *(("ngram-mod",) if self.spec_default else ()))
        models = {}
        if self.spec_draft_model is not None:
            models[_origin("spec_draft_model")] = self.spec_draft_model
        if self.spec_draft_hf is not None:
            models[_origin("spec_draft_hf")] = f"hf:{self.spec_draft_hf.removeprefix('hf:')}"
        if self.drafter is None:
            return types, models
        if not _is_kind(self.drafter):
            return types, {_origin("drafter"): self.drafter, **models}
        if types:
            other = _origin("spec_type" if self.spec_type else "spec_default")
            raise ConfigError(f"--drafter {self.drafter} and {other} both name the kind of drafter; keep one of them")
        return (self.drafter,), models

    def _ngram(self, kind: str) -> dict[str, Any]:
        """Return the settings of an n-gram drafter that were given."""
        prefix = _prefix(kind)
        return {
            name.removeprefix(prefix): value
            for name, value in asdict(self).items()
            if name.startswith(prefix) and value is not None
        }

    def _vllm_mapping(self) -> dict[str, object]:
        mapping: dict[str, object] = {}
        if self.speculative_config is not None:
            mapping = _parse_json(self.speculative_config)
        for name, key in _VLLM_KEYS.items():
            value = getattr(self, name)
            if value is None:
                continue
            if key in mapping:
                raise ConfigError(f"{_flag(name)} and the key {key!r} of --speculative-config say the same; keep one")
            mapping[key] = value
        if self.verify is not None and "rejection_sample_method" in mapping:
            raise ConfigError("--verify and the key 'rejection_sample_method' of --speculative-config say the same")
        return mapping


def _parse_json(text: str) -> dict[str, object]:
    try:
        mapping = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"--speculative-config is not valid JSON ({error}); it reads {text!r}") from error
    if not isinstance(mapping, dict):
        raise ConfigError(f'--speculative-config must be a JSON object like {{"method": "ngram"}}, not {text}')
    return mapping


def _is_kind(text: str) -> bool:
    """True if --drafter names kinds and not a model; misspelt kinds count, so that the error says so."""
    names = [name.strip() for name in text.split(",")]
    looks_alike = names[0].startswith(("ngram-", "draft-")) and "/" not in text and not Path(text).exists()
    return looks_alike or any(name in SPEC_TYPES for name in names)


def _was_given(value: object) -> bool:
    """True unless an option was left out; 0 is a value."""
    return value is not None and value is not False and value != ()


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _prefix(kind: str) -> str:
    return f"spec_{kind.replace('-', '_')}_"


def _origin(name: str) -> str:
    """Return how the user said it: the flag, or the environment variable."""
    context = click.get_current_context(silent=True)
    if context and context.get_parameter_source(name) is click.core.ParameterSource.ENVIRONMENT:
        variable = next(option.envvar for option in context.command.params if option.name == name)
        return f"{variable} (in the environment)"
    return _flag(name)


_short = section("Speculation")
_llamacpp = section("Speculation, as in llama.cpp")
_vllm = section("Speculation, as in vLLM")


def _ngram_option(kind: str, setting: str, low: int, text: str) -> Decorator[Any]:
    defaults = NgramMod() if kind == "ngram-mod" else NgramSimple()
    default = getattr(defaults, setting.replace("-", "_"))
    return _llamacpp(
        f"--spec-{kind}-{setting}", type=click.IntRange(low, 1024), metavar="N", help=f"{text}  [default: {default}]"
    )


def _refuse_removed(ctx: click.Context, parameter: click.Parameter, value: str | None) -> None:
    if value is not None:
        flag = parameter.opts[0]
        raise click.UsageError(f"llama.cpp has removed {flag}; write {REMOVED_FLAGS[flag]}", ctx)


def _removed_option(flag: str) -> Callable[[Any], Any]:
    name = flag.strip("-").replace("-", "_")
    return click.option(flag, f"removed_{name}", hidden=True, expose_value=False, callback=_refuse_removed)


_OPTIONS: list[Decorator[Any]] = [
    _short(
        "-d",
        "--drafter",
        metavar="WHO",
        help="A draft model (a reference, as for --model), a kind (ngram-mod, ngram-simple ...), or none.  "
        "[default: what is shipped for the model, after ngram-simple on short matches]",
    ),
    _short(
        "--verify",
        type=click.Choice(["auto", "match", "rejection"]),
        help="How drafts of sampled answers are verified; all are exact.  [default: auto]",
    ),
    _short(
        "--spec-policy",
        type=click.Choice(["fixed", "adaptive", "budget"]),
        help="Drafts always as long as they may be, or as long as it pays on this machine: passes are timed once, and "
        "what rounds keep is counted; budget: confidences say as well how many slots are verified.  [default: adaptive "
        "for default drafters, fixed for those you choose]",
    ),
    _llamacpp(
        "--spec-type",
        metavar="LIST",
        multiple=True,
        envvar="LLAMA_ARG_SPEC_TYPE",
        help=f"Kinds, with commas; several form a chain. {', '.join(SPEC_TYPES)}. Repeatable.",
    ),
    _llamacpp("--spec-default", is_flag=True, help="Add ngram-mod with its defaults."),
    _llamacpp(
        "--spec-draft-model",
        "-md",
        "--model-draft",
        metavar="REF",
        envvar="LLAMA_ARG_SPEC_DRAFT_MODEL",
        help="The draft model; its kind is found from its files.",
    ),
    _llamacpp(
        "--spec-draft-hf",
        "-hfd",
        metavar="ORG/NAME",
        envvar="LLAMA_ARG_SPEC_DRAFT_HF_REPO",
        help="The draft model, on the Hugging Face hub.",
    ),
    _llamacpp(
        "--spec-draft-n-max",
        type=click.IntRange(min=1),
        metavar="N",
        envvar="LLAMA_ARG_SPEC_DRAFT_N_MAX",
        help="Most draft tokens of the draft model in a round.  [default: what it does best]",
    ),
    _llamacpp(
        "--spec-draft-n-min",
        type=click.IntRange(min=0),
        metavar="N",
        envvar="LLAMA_ARG_SPEC_DRAFT_N_MIN",
        help="Shorter drafts of the draft model are dropped.  [default: 0]",
    ),
    _llamacpp(
        "--spec-draft-p-min",
        "--draft-p-min",
        type=click.FloatRange(0, 1),
        metavar="P",
        envvar="LLAMA_ARG_SPEC_DRAFT_P_MIN",
        help="A draft is cut at the first token with less confidence.  [default: 0]",
    ),
    *(
        _ngram_option(kind, setting, 1, text)
        for kind in ("ngram-simple", "ngram-map-k", "ngram-map-k4v")
        for setting, text in (
            ("size-n", "How many of the newest tokens must occur again."),
            ("size-m", "How many tokens are drafted at most."),
            ("min-hits", "How often they must have occurred."),
        )
    ),
    _ngram_option("ngram-mod", "n-match", 1, "How many of the newest tokens must occur again."),
    _ngram_option("ngram-mod", "n-min", 0, "Shorter drafts are dropped."),
    _ngram_option("ngram-mod", "n-max", 1, "How many tokens are drafted at most."),
    _vllm("--speculative-config", "-sc", metavar="JSON", help='Like \'{"method": "dflash", "model": "ORG/NAME"}\'.'),
    _vllm("--spec-method", metavar="METHOD", help="ngram, draft_model, eagle3, dflash or dspark."),
    _vllm("--spec-model", metavar="REF", help="The draft model."),
    _vllm("--spec-tokens", type=click.IntRange(min=1), metavar="K", help="Most draft tokens in a round."),
    *(_removed_option(flag) for flag in REMOVED_FLAGS),
]

speculation_options = gather(SpeculationOptions, "speculation", _OPTIONS)
