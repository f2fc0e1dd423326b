"""What no file tells: is more accepted if the drafter is read another way?

Weights do not say which layers they were trained on, which token was the mask, or which row predicts first. So the pair
answers the same prompts greedily as its files say, and with one thing changed at a time. The answers are the target's
own and the same each time; only how much is accepted differs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from blockdraft.bench.findings import Finding
from blockdraft.core.random import PositionalRandom
from blockdraft.core.sampling import SamplingParams
from blockdraft.core.verify import verify_choices
from blockdraft.drafters.base import Ask, Observation
from blockdraft.drafters.block_config import BlockDraftConfig
from blockdraft.drafters.block_drafter import BlockDrafter
from blockdraft.drafters.dflash import DFlashDrafter
from blockdraft.drafters.draft_checkpoint import DraftCheckpoint
from blockdraft.drafters.dspark import DSparkDrafter
from blockdraft.engine import Engine, Request
from blockdraft.models.base import Segment, TargetInfo
from blockdraft.models.tokenizer import Tokenizer

AS_WRITTEN = "as written"
_CLEARLY = 1.05
"""A variant must keep so many times as much to be called better."""
_Z = 3.3
_OVERLAP = 2.0
_MOST_MASKS = 4


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One way to read a drafter."""

    name: str
    """`layer-ids`, `mask-token`, `anchor`, `windows`; AS_WRITTEN for the files' own."""
    what: str
    config: BlockDraftConfig


@dataclass(frozen=True, kw_only=True)
class Reading:
    """How much was accepted in one way."""

    variant: str
    what: str
    kept: tuple[int, ...]
    """Accepted drafts at each place of the answers, the same places for every variant."""

    @property
    def accepted_per_round(self) -> float:
        """Mean over all places, not only those where rounds would have begun."""
        return sum(self.kept) / len(self.kept) if self.kept else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as plain data."""
        return {
            "variant": self.variant,
            "what": self.what,
            "num_places": len(self.kept),
            "num_accepted": sum(self.kept),
            "accepted_per_round": self.accepted_per_round,
        }


@dataclass(frozen=True, kw_only=True)
class Told:
    """A greedy answer of the target, with what drafters read of it.

    Shapes: features [num_tokens - 1, M*D] of the layers in `layer_ids`, for all tokens but the last.
    """

    prompt_ids: tuple[int, ...]
    answer_ids: tuple[int, ...]
    layer_ids: tuple[int, ...]
    features: Tensor

    def columns(self, layer_ids: Sequence[int]) -> Tensor:
        """Return the features of some layers, in their order."""
        width = self.features.shape[1] // len(self.layer_ids)
        parts = [self.layer_ids.index(layer) * width for layer in layer_ids]
        return torch.cat([self.features[:, start : start + width] for start in parts], dim=1)


def variants(config: BlockDraftConfig, info: TargetInfo, tokenizer: Tokenizer | None) -> Iterator[Variant]:
    """Yield the drafter as written, then with one thing changed at a time."""
    yield Variant(name=AS_WRITTEN, what="as its files say", config=config)
    for shift in (-1, 1):
        ids = tuple(layer + shift for layer in config.target_layer_ids)
        if min(ids) >= 0 and max(ids) < info.num_layers:
            yield Variant(name="layer-ids", what=f"layer ids {list(ids)}", config=replace(config, target_layer_ids=ids))
    for mask in mask_candidates(config, info, tokenizer):
        reads = f" ({tokenizer.token_text(mask)})" if tokenizer and mask < tokenizer.vocab_size else ""
        yield Variant(name="mask-token", what=f"mask token {mask}{reads}", config=replace(config, mask_token_id=mask))
    if any(layer.window for layer in config.layers):
        full = tuple(replace(layer, window=None) for layer in config.layers)
        yield Variant(name="windows", what="full attention in all layers", config=replace(config, layers=full))


def mask_candidates(config: BlockDraftConfig, info: TargetInfo, tokenizer: Tokenizer | None) -> list[int]:
    """Return other tokens that may be the mask: special ones, those that read so first, then the last of all."""
    found: list[int] = []
    if tokenizer is not None:
        special = sorted(tokenizer.special_ids)
        found += [one for one in special if "mask" in tokenizer.token_text(one).lower()]
        found += [one for one in special if one not in tokenizer.eos_ids]
    found += [info.vocab_size - 1, 0]
    return [one for one in dict.fromkeys(found) if one != config.mask_token_id and one < info.vocab_size][:_MOST_MASKS]


def measure(
    engine: Engine, checkpoint: DraftCheckpoint, requests: Sequence[Request], notify: Callable[[str], None]
) -> list[Reading]:
    """Let each variant of a drafter draft at every place of the target's greedy answers to some requests."""
    ways = list(variants(checkpoint.config, engine.target.info, engine.tokenizer))
    layer_ids = tuple(sorted({layer for way in ways for layer in way.config.target_layer_ids}))
    notify("the target's answers")
    told = [_tell(engine, request, layer_ids) for request in requests]
    readings = []
    for way in ways:
        notify(way.what)
        drafter = _drafter(replace(checkpoint, config=way.config), engine)
        kept = tuple(count for one in told for count in kept_at_each_place(drafter, one))
        readings.append(Reading(variant=way.name, what=way.what, kept=kept))
    return readings


def kept_at_each_place(drafter: BlockDrafter, told: Told) -> list[int]:
    """Return how many drafts would have been accepted at each place of an answer."""
    features = told.columns(drafter.traits.target_layer_ids)
    token_ids = [*told.prompt_ids, told.answer_ids[0]]
    state = drafter.begin(told.prompt_ids)
    drafter.observe(state, Observation(committed_ids=token_ids[-1:], target_hidden=features[: len(told.prompt_ids)]))
    most = drafter.traits.max_draft_tokens
    kept = []
    for index in range(1, len(told.answer_ids) - most):
        ask = Ask(
            state=state,
            token_ids=token_ids,
            num_draft_tokens=most,
            sampling=SamplingParams(),
            random=PositionalRandom(0),
        )
        [proposal] = drafter.propose([ask])
        kept.append(verify_choices(told.answer_ids[index : index + most + 1], proposal.draft_ids).num_accepted)
        row = len(token_ids) - 1
        token_ids.append(told.answer_ids[index])
        drafter.observe(state, Observation(committed_ids=token_ids[-1:], target_hidden=features[row : row + 1]))
    return kept


@torch.inference_mode()
def _tell(engine: Engine, request: Request, layer_ids: tuple[int, ...]) -> Told:
    [answer] = Engine(engine.target, engine.tokenizer).run([request])
    token_ids = [*request.prompt_ids, *answer.token_ids]
    cache = engine.target.new_cache(len(token_ids))
    segment = Segment(token_ids=token_ids[:-1], cache=cache, num_logits=1)
    features = engine.target.forward([segment], layer_ids).target_hidden
    assert features is not None, "layers were named"
    return Told(
        prompt_ids=tuple(request.prompt_ids),
        answer_ids=tuple(answer.token_ids),
        layer_ids=layer_ids,
        features=features.clone(),
    )


def findings_of(readings: Sequence[Reading]) -> list[Finding]:
    """Return which way of reading clearly accepts more than the files' own, the best of each kind."""
    written = readings[0]
    best: dict[str, Reading] = {}
    for reading in readings[1:]:
        if _is_better(reading, written) and reading.accepted_per_round > (
            best[reading.variant].accepted_per_round if reading.variant in best else 0.0
        ):
            best[reading.variant] = reading
    found = [_better(name, reading, written) for name, reading in best.items()]
    if not any(written.kept) and not found:
        found.append(
            Finding(
                severity="error",
                name="nothing-accepted",
                what=f"at {len(written.kept)} places not one draft was kept, in whichever way the drafter was read",
                reason="a pair that does not belong together, or broken weights",
                fix="take the drafter of this very target",
                source="measured on our engine",
            )
        )
    return found


def _better(name: str, reading: Reading, written: Reading) -> Finding:
    return Finding(
        severity="error",
        name=f"{name}-measured",
        what=f"with {reading.what} {reading.accepted_per_round:.2f} drafts are kept at a place, as written "
        f"{written.accepted_per_round:.2f}",
        reason="the drafter was trained the other way: everything works, and speed is lost",
        fix=f"change the drafter's configuration to {reading.what}",
        source=f"measured on our engine at {len(written.kept)} places of the target's answers",
    )


def _is_better(reading: Reading, written: Reading) -> bool:
    """True if more is kept at the same places, by a margin and beyond chance."""
    if reading.accepted_per_round < _CLEARLY * written.accepted_per_round:
        return False
    more = [one - other for one, other in zip(reading.kept, written.kept, strict=True)]
    mean = sum(more) / len(more) if more else 0.0
    variance = sum((one - mean) ** 2 for one in more) / len(more) if more else 0.0
    # Neighbouring places share tokens of their drafts, so they count for less than their number.
    error = math.sqrt(_OVERLAP * variance / len(more)) if more else 0.0
    return mean > _Z * error


def _drafter(checkpoint: DraftCheckpoint, engine: Engine) -> BlockDrafter:
    kind = DSparkDrafter if checkpoint.config.kind == "draft-dspark" else DFlashDrafter
    return kind(checkpoint, engine.target, draft_sampling="greedy")
