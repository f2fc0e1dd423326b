"""Recipes: everything a training run depends on, in one TOML file.

Each section is one frozen dataclass; a key that none of them has is an error. `section.key=value` on the
command line replaces a key, the value written as in TOML (bare words are strings).
"""

from __future__ import annotations

import tomllib
import typing
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from blockdraft.errors import ConfigError, nearest_name
from blockdraft.models.references import DEFAULT_MODEL
from blockdraft.train.objectives.base import LossConfig

Method = Literal["dflash", "dspark", "eagle3", "ngram"]


@dataclass(frozen=True, kw_only=True)
class TargetSection:
    """The target whose answers the drafter learns to foresee."""

    model: str = DEFAULT_MODEL
    device: str = "auto"
    dtype: str = "auto"


@dataclass(frozen=True, kw_only=True)
class DataSection:
    """What is learnt from, and what the result is measured on."""

    folders: tuple[str, ...] = ()
    """Data folders of `blockdraft data`."""
    features: str = ""
    """Where the target's hidden states are kept; inside the run's folder if left out."""
    capture: Literal["disk", "live"] = "disk"
    """"live" stores no hidden states: the target runs along, in every epoch."""
    max_length: int = 1024
    """Longer conversations are cut here."""
    num_candidates: int = 16
    """How many of the target's most likely tokens are stored for each place."""
    held_out: float = 0.01
    """Share of the texts that only the held-out loss is computed on."""
    eval_prompts: tuple[str, ...] = ()
    """Prompt files that acceptance is measured on; the package's own prompts if left out."""
    num_eval_prompts: int = 12
    eval_max_tokens: int = 48


@dataclass(frozen=True, kw_only=True)
class DrafterSection:
    """What is trained. Sizes that are left out are the target's."""

    method: Method = "dspark"
    num_layers: int = 3
    block_size: int = 7
    anchor_predicts: bool | None = None
    """True: the anchor's row makes the first prediction (DSpark); False: it is discarded (DFlash)."""
    target_layer_ids: tuple[int, ...] = ()
    """Tapped decoder layers; spread evenly by the published rule if left out."""
    num_target_features: int = 5
    intermediate_size: int = 0
    num_heads: int = 0
    num_kv_heads: int = 0
    head_dim: int = 0
    sliding_window: int = 0
    """0: every row sees the whole context."""
    is_causal: bool = False
    """True: a row does not see the rows after it in its block."""
    mask_token_id: int = -1
    """-1: the last token the tokenizer has beyond its text, or the highest special one."""
    draft_vocab_size: int = 0
    """Keep this many of the most frequent tokens of the answers; 0 for all."""
    markov_rank: int = 64
    confidence_head: Literal["none", "hidden", "hidden+markov"] = "hidden+markov"
    init: str = "target"
    """"target": the target's last layers; "random"; or a drafter to go on from: a folder, a .gguf file,
    or another model reference.

    That drafter may have fewer layers: those added begin as the identity.
    """


@dataclass(frozen=True, kw_only=True)
class OptimizerSection:
    """How float32 weights are updated."""

    name: Literal["adamw", "muon"] = "adamw"
    """"muon" for the network's matrices, with AdamW for the rest: more learnt per step, and longer steps."""
    learning_rate: float = 1e-3
    min_learning_rate: float = 0.0
    weight_decay: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.95
    momentum: float = 0.95
    """Muon's."""
    warmup_steps: int = 100
    clip: float = 1.0
    ema: float = 0.0
    """Decay of an average of the weights, which is then what is saved and measured; 0 for none."""


@dataclass(frozen=True, kw_only=True)
class RunSection:
    """How long, how large, how often."""

    out: str = "runs/drafter"
    seed: int = 0
    max_steps: int = 0
    """0: as many as `epochs` make."""
    epochs: int = 6
    blocks_per_batch: int = 512
    anchors_per_text: int = 64
    accumulate: int = 1
    """Batches of one step."""
    compute_dtype: Literal["auto", "bfloat16", "float32", "float16"] = "auto"
    """"auto" is bfloat16 where the device computes it natively, else float32."""
    gradient_checkpointing: bool = False
    recompute_head: bool = False
    threads: int = 0
    """0: what torch chooses."""
    log_every: int = 10
    checkpoint_every: int = 200
    eval_every: int = 1000
    patience: int = 0
    """Stop after this many measurements of acceptance without a better one; 0 never stops."""
    tensorboard: bool = True


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A whole run."""

    target: TargetSection = field(default_factory=TargetSection)
    data: DataSection = field(default_factory=DataSection)
    drafter: DrafterSection = field(default_factory=DrafterSection)
    loss: LossConfig = field(default_factory=LossConfig)
    optimizer: OptimizerSection = field(default_factory=OptimizerSection)
    run: RunSection = field(default_factory=RunSection)

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        return asdict(self)


def load_recipe(path: Path, overrides: Sequence[str] = ()) -> Recipe:
    """Read a recipe and apply overrides of the form `section.key=value`.

    Raises:
        ConfigError: the file cannot be read, or a key or value is not one of a recipe's.
    """
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ConfigError(f"there is no recipe {path}; `recipes/` of the project holds examples") from error
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"the recipe {path} cannot be read: {error}") from error
    for override in overrides:
        _override(data, override)
    return parse_recipe(data)


def parse_recipe(data: Mapping[str, Any]) -> Recipe:
    """Check plain data and make a recipe of it.

    Raises:
        ConfigError: a key or value is not one of a recipe's.
    """
    recipe: Recipe = _parse(Recipe, data, "")
    _check(recipe)
    return recipe


def dump_recipe(recipe: Recipe) -> str:
    """Return a recipe as TOML, every key written out."""
    lines: list[str] = []
    for section, values in recipe.to_dict().items():
        lines += [
            f"[{section}]",
            *(f"{key} = {_toml(value)}" for key, value in values.items() if value is not None),
            "",
        ]
    return "\n".join(lines)


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{escaped}"'
    if isinstance(value, list | tuple):
        return f"[{', '.join(_toml(item) for item in value)}]"
    return repr(value)


def _override(data: dict[str, Any], override: str) -> None:
    path, separator, text = override.partition("=")
    section, dot, key = path.strip().partition(".")
    if not separator or not dot or not key:
        raise ConfigError(f"{override!r} is no override; write section.key=value, as in run.seed=1")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text.strip()
    data.setdefault(section, {})[key] = value


def _parse(kind: Any, data: Mapping[str, Any], where: str) -> Any:
    if not isinstance(data, Mapping):
        raise ConfigError(f"[{where}] of a recipe is a section, not {data!r}")
    hints = typing.get_type_hints(kind)
    known = {own.name: hints[own.name] for own in fields(kind)}
    values = {}
    for key, value in data.items():
        name = f"{where}.{key}" if where else key
        if key not in known:
            raise ConfigError(f"a recipe has no key `{name}`{nearest_name(key, known)}; known: {', '.join(known)}")
        values[key] = _parse(known[key], value, name) if is_dataclass(known[key]) else _convert(known[key], value, name)
    return kind(**values)


def _convert(kind: Any, value: Any, name: str) -> Any:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Literal:
        if value not in arguments:
            raise ConfigError(f"`{name}` must be one of {', '.join(map(repr, arguments))}, not {value!r}")
        return value
    if origin in (Union, UnionType):
        return _convert(next(argument for argument in arguments if argument is not type(None)), value, name)
    if origin is tuple:
        items = value if isinstance(value, list | tuple) else [value]
        return tuple(_convert(arguments[0], item, name) for item in items)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise ConfigError(f"`{name}` must be of type {kind.__name__}, not {value!r}")
    return value


def _check(recipe: Recipe) -> None:
    drafter, loss, optimizer, run, data = recipe.drafter, recipe.loss, recipe.optimizer, recipe.run, recipe.data
    for name, ok, want in (
        ("drafter.num_layers", drafter.num_layers > 0, "at least 1"),
        ("drafter.block_size", drafter.block_size > 1, "at least 2"),
        ("drafter.sliding_window", drafter.sliding_window >= 0, "at least 0"),
        ("drafter.draft_vocab_size", drafter.draft_vocab_size >= 0, "at least 0"),
        ("drafter.markov_rank", drafter.markov_rank >= 0, "at least 0"),
        ("loss.ce_labels", loss.ce_labels in ("soft", "top1", "token"), '"soft", "top1" or "token"'),
        ("loss.slot_weights", loss.slot_weights in ("decay", "dpace", "equal"), '"decay", "dpace" or "equal"'),
        ("loss.gamma", loss.gamma > 0, "above 0"),
        ("loss.dpace_alpha", 0 <= loss.dpace_alpha <= 1, "in [0, 1]"),
        ("optimizer.learning_rate", optimizer.learning_rate > 0, "above 0"),
        ("optimizer.momentum", 0 <= optimizer.momentum < 1, "in [0, 1)"),
        (
            "optimizer.momentum",
            optimizer.name == "muon" or optimizer.momentum == OptimizerSection.momentum,
            'left out with "adamw", which has beta1',
        ),
        ("optimizer.ema", 0 <= optimizer.ema < 1, "in [0, 1)"),
        ("optimizer.clip", optimizer.clip > 0, "above 0"),
        ("run.epochs", run.epochs > 0, "at least 1"),
        ("run.blocks_per_batch", run.blocks_per_batch > 0, "at least 1"),
        ("run.anchors_per_text", run.anchors_per_text > 0, "at least 1"),
        ("run.accumulate", run.accumulate > 0, "at least 1"),
        ("run.log_every", run.log_every > 0, "at least 1"),
        ("run.checkpoint_every", run.checkpoint_every > 0, "at least 1"),
        ("run.eval_every", run.eval_every > 0, "at least 1"),
        ("data.held_out", 0 <= data.held_out < 1, "in [0, 1)"),
        ("data.num_candidates", data.num_candidates > 0, "at least 1"),
        ("data.max_length", data.max_length > 1, "at least 2"),
    ):
        if not ok:
            section, key = name.split(".")
            raise ConfigError(f"`{name}` must be {want}, not {getattr(getattr(recipe, section), key)!r}")
    if drafter.confidence_head == "hidden+markov" and not drafter.markov_rank and drafter.method == "dspark":
        raise ConfigError('`drafter.confidence_head` "hidden+markov" needs a Markov head; set `drafter.markov_rank`')
