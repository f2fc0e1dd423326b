"""What no file tells: is more accepted if the drafter is read another way?

Weights do not say which layers they were trained on, which token was the mask, or which row predicts first. So the pair
answers the same prompts greedily as its files say, and with one thing changed at a time. The answers are the target's
own and the same each time; only how much is accepted differs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from blockdraft.bench.findings import Finding
from blockdraft.drafters.block_config import BlockDraftConfig
from blockdraft.drafters.block_drafter import BlockDrafter
from blockdraft.drafters.dflash import DFlashDrafter
from blockdraft.drafters.draft_checkpoint import DraftCheckpoint
from blockdraft.drafters.dspark import DSparkDrafter
from blockdraft.engine import Engine, Request
from blockdraft.models.base import TargetInfo
from blockdraft.models.tokenizer import Tokenizer

AS_WRITTEN = "as written"
_CLEARLY = 1.1
"""A variant must keep so many times as much to be called better."""
_Z = 3.3
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
    num_rounds: int
    num_accepted: int
    variance: float
    """Of accepted tokens a round."""

    @property
    def accepted_per_round(self) -> float:
        return self.num_accepted / self.num_rounds if self.num_rounds else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as plain data."""
        return asdict(self) | {"accepted_per_round": self.accepted_per_round}


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
    engine: Engine,
    checkpoint: DraftCheckpoint,
    requests: Sequence[Request],
    notify: Callable[[str], None],
) -> list[Reading]:
    """Answer greedy requests with each variant of a drafter; `engine` brings target and tokenizer."""
    readings = []
    for variant in variants(checkpoint.config, engine.target.info, engine.tokenizer):
        notify(variant.what)
        drafter = _drafter(replace(checkpoint, config=variant.config), engine)
        rounds = [
            one
            for answer in Engine(engine.target, engine.tokenizer, drafter).run(list(requests))
            for one in answer.rounds
            if one.num_drafted
        ]
        kept = [one.num_accepted for one in rounds]
        mean = sum(kept) / len(kept) if kept else 0.0
        readings.append(
            Reading(
                variant=variant.name,
                what=variant.what,
                num_rounds=len(kept),
                num_accepted=sum(kept),
                variance=sum((one - mean) ** 2 for one in kept) / len(kept) if kept else 0.0,
            )
        )
    return readings


def findings_of(readings: Sequence[Reading]) -> list[Finding]:
    """Return which way of reading clearly accepts more than the files' own, the best of each kind."""
    written = readings[0]
    if not written.num_accepted:
        readings_found = f"none of the drafts of {written.num_rounds} rounds"
    best: dict[str, Reading] = {}
    for reading in readings[1:]:
        if _is_better(reading, written) and reading.accepted_per_round > (
            best[reading.variant].accepted_per_round if reading.variant in best else 0.0
        ):
            best[reading.variant] = reading
    found = [_better(name, reading, written) for name, reading in best.items()]
    if not written.num_accepted and not found:
        found.append(
            Finding(
                severity="error",
                name="nothing-accepted",
                what=f"the target kept {readings_found}, in whichever way the drafter was read",
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
        what=f"with {reading.what} a round keeps {reading.accepted_per_round:.2f} drafts, as written "
        f"{written.accepted_per_round:.2f}",
        reason="the drafter was trained the other way: everything works, and speed is lost",
        fix=f"change the drafter's configuration to {reading.what}",
        source=f"measured on our engine, {written.num_rounds} and {reading.num_rounds} rounds",
    )


def _is_better(reading: Reading, written: Reading) -> bool:
    more = reading.accepted_per_round - written.accepted_per_round
    if not reading.num_rounds or not written.num_rounds or more <= 0:
        return False
    error = math.sqrt(reading.variance / reading.num_rounds + written.variance / written.num_rounds)
    return reading.accepted_per_round >= _CLEARLY * written.accepted_per_round and more > _Z * error


def _drafter(checkpoint: DraftCheckpoint, engine: Engine) -> BlockDrafter:
    kind = DSparkDrafter if checkpoint.config.kind == "draft-dspark" else DFlashDrafter
    return kind(checkpoint, engine.target, draft_sampling="greedy")
