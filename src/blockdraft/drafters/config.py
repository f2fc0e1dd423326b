"""The one internal configuration of speculation, and the flag dialects that resolve to it.

`SpecConfig` is what the engine and `build_drafter` read. llama.cpp's flags and vLLM's JSON are translated
here, and only here; whatever a translation changes is written to `notes`. Nothing is loaded: whether a draft
model fits its target is checked in `build`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Literal, Self, get_args

from blockdraft.errors import ConfigError, nearest_name

Rule = Literal["auto", "match", "rejection"]
PolicyName = Literal["fixed", "adaptive", "budget"]
DraftSampling = Literal["probabilistic", "greedy"]

AUTO = "auto"
"""Not a name of llama.cpp: the kind is read from the draft model's files."""

NGRAM_TYPES = ("ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod")
MODEL_TYPES = ("draft-simple", "draft-eagle3", "draft-dflash", "draft-dspark", AUTO)
NOT_SUPPORTED_YET = ("draft-mtp", "ngram-cache")

SPEC_TYPES = (
    "none",
    "ngram-simple",
    "ngram-map-k",
    "ngram-map-k4v",
    "ngram-mod",
    "ngram-cache",
    "draft-simple",
    "draft-eagle3",
    "draft-mtp",
    "draft-dflash",
    "draft-dspark",
    AUTO,
)
"""All names of --spec-type, in the order in which llama.cpp asks the members of a chain."""

REMOVED_FLAGS: Mapping[str, str] = {
    "--draft": "--spec-draft-n-max",
    "--draft-n": "--spec-draft-n-max",
    "--draft-max": "--spec-draft-n-max",
    "--draft-min": "--spec-draft-n-min",
    "--draft-n-min": "--spec-draft-n-min",
    "--spec-ngram-size-n": "--spec-ngram-simple-size-n, --spec-ngram-map-k-size-n or --spec-ngram-map-k4v-size-n",
    "--spec-ngram-size-m": "--spec-ngram-simple-size-m, --spec-ngram-map-k-size-m or --spec-ngram-map-k4v-size-m",
    "--spec-ngram-min-hits": (
        "--spec-ngram-simple-min-hits, --spec-ngram-map-k-min-hits or --spec-ngram-map-k4v-min-hits"
    ),
}
"""Flags that llama.cpp has taken away, and what to write instead."""

_MAX_NGRAM = 1024


def _check_range(name: str, value: int, low: int, high: int = _MAX_NGRAM) -> None:
    if not low <= value <= high:
        raise ConfigError(f"{name} must be from {low} to {high}, not {value}")


@dataclass(frozen=True, kw_only=True)
class NgramLookup:
    """What the drafters that search for an earlier occurrence of the newest tokens have in common.

    Raises:
        ConfigError: a value is outside its range.
    """

    size_n: int = 12
    """How many of the newest tokens must occur again."""
    size_m: int = 48
    """How many of the tokens that followed are drafted at most."""
    min_hits: int = 1
    """How often the newest tokens must have occurred before."""

    def __post_init__(self) -> None:
        _check_range(f"{type(self).__name__}.size_n", self.size_n, 1)
        _check_range(f"{type(self).__name__}.size_m", self.size_m, 1)
        _check_range(f"{type(self).__name__}.min_hits", self.min_hits, 1)


@dataclass(frozen=True, kw_only=True)
class NgramSimple(NgramLookup):
    """Settings of ngram-simple; the last two are not in llama.cpp and serve vLLM's prompt look-up."""

    size_n_min: int | None = None
    """If set, shorter matches down to this length are tried when a longer one is not found."""
    min_draft: int | None = None
    """Shorter drafts are dropped; None for size_n, which is llama.cpp's rule."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.size_n_min is not None:
            _check_range("NgramSimple.size_n_min", self.size_n_min, 1, self.size_n)
        if self.min_draft is not None:
            _check_range("NgramSimple.min_draft", self.min_draft, 1, self.size_m)


@dataclass(frozen=True, kw_only=True)
class NgramMapK(NgramLookup):
    """Settings of ngram-map-k."""


@dataclass(frozen=True, kw_only=True)
class NgramMapK4v(NgramLookup):
    """Settings of ngram-map-k4v."""


@dataclass(frozen=True, kw_only=True)
class NgramMod:
    """Settings of ngram-mod.

    Raises:
        ConfigError: a value is outside its range.
    """

    n_match: int = 24
    """How many of the newest tokens must occur again."""
    n_min: int = 48
    """Shorter drafts are dropped."""
    n_max: int = 64
    """How many tokens are drafted at most."""
    shared: bool = False
    """One table for all requests. Faster on repeated text; timing then tells whether a text was seen before."""

    def __post_init__(self) -> None:
        _check_range("NgramMod.n_match", self.n_match, 1)
        _check_range("NgramMod.n_max", self.n_max, 1)
        _check_range("NgramMod.n_min", self.n_min, 0)
        if self.n_min > self.n_max:
            raise ConfigError(
                f"NgramMod.n_min is {self.n_min} but NgramMod.n_max is {self.n_max}: no draft could be long enough"
            )


@dataclass(frozen=True, kw_only=True)
class SpecConfig:
    """How drafts are made and checked.

    Raises:
        ConfigError: a value or a combination cannot be honoured; the message says what to write instead.
    """

    types: tuple[str, ...] = ("none",)
    """Names of llama.cpp, or "auto"; several form a chain, asked in this order."""
    draft_model: str | None = None
    """Reference of the draft model."""
    n_max: int | None = None
    """Most draft tokens of the draft model in a round; None for what the drafter itself can do best."""
    n_min: int = 0
    """Shorter drafts of the draft model are dropped."""
    p_min: float = 0.0
    """A draft is cut at the first token whose confidence is below this."""
    policy: PolicyName = "fixed"
    """Whether drafts are always as long as they may be, or only as long as it pays on this machine."""
    rule: Rule = "auto"
    """How sampled requests are verified; "auto" takes `rejection` where the drafter has probabilities."""
    draft_sampling: DraftSampling = "probabilistic"
    """Whether the drafts of sampled requests are sampled too, or always the most likely tokens."""
    ngram_simple: NgramSimple = NgramSimple()
    ngram_map_k: NgramMapK = NgramMapK()
    ngram_map_k4v: NgramMapK4v = NgramMapK4v()
    ngram_mod: NgramMod = NgramMod()
    notes: tuple[str, ...] = ()
    """What the translation of a flag dialect changed; to be shown to the user."""

    def __post_init__(self) -> None:
        _check_types(self.types)
        if self.needs_draft_model and self.draft_model is None:
            wanting = next(name for name in self.types if name in MODEL_TYPES)
            raise ConfigError(f"{wanting!r} needs a draft model; name one with --spec-draft-model")
        if self.draft_model is not None and self.is_enabled and not self.needs_draft_model:
            raise ConfigError(
                f"a draft model ({self.draft_model}) was given, but {','.join(self.types)} uses none; "
                f"add 'auto' to --spec-type or leave the draft model out"
            )
        if self.n_max is not None and self.n_max < 1:
            raise ConfigError(f"n_max must be at least 1, not {self.n_max}; --spec-type none turns drafting off")
        if self.n_min < 0:
            raise ConfigError(f"n_min must be at least 0, not {self.n_min}")
        if self.n_max is not None and self.n_min > self.n_max:
            raise ConfigError(f"n_min is {self.n_min} but n_max is {self.n_max}: no draft could be long enough")
        if not 0 <= self.p_min <= 1:
            raise ConfigError(f"p_min is a probability and must be from 0 to 1, not {self.p_min}")
        _check_choice("policy", self.policy, get_args(PolicyName))
        if self.policy != "fixed" and (self.p_min > 0 or self.n_min > 0):
            raise ConfigError(
                f"p_min and n_min belong to the fixed policy; {self.policy} finds lengths by itself: leave them out"
            )
        _check_choice("rule", self.rule, get_args(Rule))
        _check_choice("draft_sampling", self.draft_sampling, get_args(DraftSampling))

    @property
    def is_enabled(self) -> bool:
        """False for plain decoding."""
        return self.types != ("none",)

    @property
    def needs_draft_model(self) -> bool:
        """True if a member of the chain is a network."""
        return any(name in MODEL_TYPES for name in self.types)

    def to_dict(self) -> dict[str, object]:
        """Return every knob that has an effect, as plain data for --json and saved results."""
        values = asdict(self)
        for name in NGRAM_TYPES:
            if name not in self.types:
                del values[name.replace("-", "_")]
        return values | {"types": list(self.types), "notes": list(self.notes)}

    @classmethod
    def from_llamacpp(
        cls,
        *,
        spec_types: Sequence[str] = (),
        draft_model: str | None = None,
        n_max: int | None = None,
        n_min: int = 0,
        p_min: float = 0.0,
        rule: Rule = "auto",
        draft_sampling: DraftSampling = "probabilistic",
        ngram_simple: NgramSimple | None = None,
        ngram_map_k: NgramMapK | None = None,
        ngram_map_k4v: NgramMapK4v | None = None,
        ngram_mod: NgramMod | None = None,
    ) -> Self:
        """Translate llama.cpp's flags; `spec_types` holds each --spec-type as it was written.

        A draft model without a type means "auto". The members of a chain are put into llama.cpp's order.

        Raises:
            ConfigError: an unknown name, or as for the class.
        """
        types, notes = _parse_spec_types(spec_types)
        if not spec_types and draft_model is not None:
            types = (AUTO,)
        if types == ("none",) and draft_model is not None:
            notes = (*notes, f"--spec-type none: the draft model {draft_model} is not loaded")
        return cls(
            types=types,
            draft_model=draft_model,
            n_max=n_max,
            n_min=n_min,
            p_min=p_min,
            rule=rule,
            draft_sampling=draft_sampling,
            ngram_simple=ngram_simple or NgramSimple(),
            ngram_map_k=ngram_map_k or NgramMapK(),
            ngram_map_k4v=ngram_map_k4v or NgramMapK4v(),
            ngram_mod=ngram_mod or NgramMod(),
            notes=notes,
        )

    @classmethod
    def from_vllm(cls, mapping: Mapping[str, object]) -> SpecConfig:
        """Translate vLLM's --speculative-config; --spec-method/-model/-tokens fill the same three keys.

        Raises:
            ConfigError: an unknown key or value, one that is not supported, or as for the class.
        """
        from blockdraft.drafters.vllm_config import translate  # noqa: PLC0415 - it imports this module

        return translate(mapping)


def _check_choice(name: str, value: str, allowed: Sequence[str]) -> None:
    if value not in allowed:
        raise ConfigError(f"{name} must be one of {', '.join(allowed)}, not {value!r}{nearest_name(value, allowed)}")


def _check_types(types: tuple[str, ...]) -> None:
    if not types:
        raise ConfigError("at least one speculation type is needed; 'none' is plain decoding")
    for name in types:
        if name not in SPEC_TYPES:
            raise ConfigError(
                f"unknown speculation type {name!r}{nearest_name(name, SPEC_TYPES)}; known are {', '.join(SPEC_TYPES)}"
            )
        if name in NOT_SUPPORTED_YET:
            usable = ", ".join((*NGRAM_TYPES, *MODEL_TYPES))
            raise ConfigError(f"speculation type {name!r} is not supported yet; supported are {usable}")
    if len(set(types)) < len(types):
        raise ConfigError(f"a speculation type is listed twice in {', '.join(types)}")
    if "none" in types and len(types) > 1:
        raise ConfigError(f"'none' cannot be combined with other types: {', '.join(types)}")
    models = [name for name in types if name in MODEL_TYPES]
    if len(models) > 1:
        raise ConfigError(
            f"{' and '.join(models)} cannot be chained: there is one draft model, and it has one kind; "
            f"a chain is any number of n-gram types and at most one of {', '.join(MODEL_TYPES)}"
        )


def _parse_spec_types(lists: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Merge the lists of a repeated flag into one chain; return it and notes about what changed."""
    asked: list[str] = []
    notes: list[str] = []
    for text in lists:
        names = [name.strip() for name in text.split(",") if name.strip()]
        for name in names:
            if name not in SPEC_TYPES:
                _check_types((name,))
        if "none" in names:
            if len(names) > 1:
                notes.append(f"--spec-type {text}: 'none' in a list makes the whole list none, as in llama.cpp")
            continue
        asked += [name for name in names if name not in asked]
    if not asked:
        return ("none",), tuple(notes)
    ordered = tuple(sorted(asked, key=SPEC_TYPES.index))
    if ordered != tuple(asked):
        notes.append(
            f"--spec-type: the chain {','.join(asked)} is asked in llama.cpp's order, n-gram types first: "
            f"{','.join(ordered)}"
        )
    return ordered, tuple(notes)
