"""From a `SpecConfig` to a drafter that fits the target, or an error that says why none can.

This is where references are resolved, checkpoints loaded and pairs checked. Whatever is given other than
asked for is told through `notify`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from blockdraft.drafters.base import Drafter
from blockdraft.drafters.block_drafter import BlockDrafter
from blockdraft.drafters.block_runner import why_not_packed
from blockdraft.drafters.chain import ChainDrafter
from blockdraft.drafters.config import AUTO, MODEL_TYPES, NOT_SUPPORTED_YET, SpecConfig
from blockdraft.drafters.detect import detect_kind
from blockdraft.drafters.dflash import DFlashDrafter
from blockdraft.drafters.draft_model import DEFAULT_DRAFT_TOKENS, DraftModelDrafter
from blockdraft.drafters.dspark import DSparkDrafter
from blockdraft.drafters.eagle3 import Eagle3Drafter
from blockdraft.drafters.limit import LimitedDrafter
from blockdraft.drafters.ngram import NgramMapK4vDrafter, NgramMapKDrafter, NgramModDrafter, NgramSimpleDrafter
from blockdraft.errors import ConfigError, PairError, UnsupportedModelError
from blockdraft.models.base import Target
from blockdraft.models.load import load_target
from blockdraft.models.packed_decoder import PackedDecoder
from blockdraft.models.references import resolve
from blockdraft.models.tokenizer import Tokenizer, load_tokenizer

Notify = Callable[[str], None]
"""Is told, in one line, what a user should know about the drafter."""

logger = logging.getLogger(__name__)


def build_drafter(
    config: SpecConfig,
    target: Target,
    tokenizer: Tokenizer | None,
    *,
    with_confidence: bool = False,
    offline: bool | None = None,
    notify: Notify | None = None,
) -> Drafter | None:
    """Return the drafter that `config` asks for; None for plain decoding.

    `tokenizer` is the target's; without one, a small draft model must have the same number of tokens.
    `with_confidence` asks block drafters for confidence even if `p_min` does not need it.

    Raises:
        ModelReferenceError: the draft model's reference names nothing usable.
        ModelError: the draft model cannot be run.
        PairError: draft model and target do not fit; the message holds all reasons.
        ConfigError: an option does not fit the drafter that was found.
    """
    if not config.is_enabled:
        return None
    builder = _Builder(config, target, tokenizer, with_confidence, offline, notify or logger.warning)
    members = [builder.member(name) for name in config.types]
    builder.check_options()
    drafter = members[0] if len(members) == 1 else ChainDrafter(members)
    return builder.within_rollback(drafter)


@dataclass(frozen=True)
class _Builder:
    """What all members of a chain are built with."""

    config: SpecConfig
    target: Target
    tokenizer: Tokenizer | None
    with_confidence: bool
    offline: bool | None
    notify: Notify

    def member(self, name: str) -> Drafter:
        """Return the drafter for one name of `config.types`."""
        if name in MODEL_TYPES:
            return self._with_model(name)
        if name == "ngram-simple":
            return NgramSimpleDrafter(self.config.ngram_simple)
        if name == "ngram-map-k":
            return NgramMapKDrafter(self.config.ngram_map_k)
        if name == "ngram-map-k4v":
            return NgramMapK4vDrafter(self.config.ngram_map_k4v)
        return NgramModDrafter(self.config.ngram_mod)

    def check_options(self) -> None:
        """Tell about options that have no effect."""
        config = self.config
        if not config.needs_draft_model and (config.n_max or config.n_min or config.p_min):
            self.notify(
                f"n_max, n_min and p_min are for draft models and have no effect on {','.join(config.types)}, "
                "which has lengths of its own"
            )

    def within_rollback(self, drafter: Drafter) -> Drafter:
        """Draft no more than the target can forget."""
        max_rollback, max_drafts = self.target.info.max_rollback, drafter.traits.max_draft_tokens
        if max_rollback is None or max_drafts <= max_rollback:
            return drafter
        if max_rollback < 1:
            raise PairError(
                f"the target ({self.target.info.family}) cannot forget a token, so no draft can be verified; "
                "use --spec-type none"
            )
        self.notify(f"the target can forget {max_rollback} tokens: drafts are cut to that, from {max_drafts}")
        return LimitedDrafter(drafter, max_rollback)

    def _with_model(self, asked: str) -> Drafter:
        config = self.config
        assert config.draft_model is not None, "SpecConfig checks this"
        path = resolve(config.draft_model, offline=self.offline, notify=self.notify).path
        kind = detect_kind(path)
        if kind in NOT_SUPPORTED_YET:
            raise UnsupportedModelError(
                f"{config.draft_model} is a {kind} drafter, which is not supported yet; "
                f"supported are {', '.join(name for name in MODEL_TYPES if name != AUTO)}"
            )
        if asked == AUTO:
            self.notify(f"{config.draft_model} is used as {kind}")
        elif asked != kind:
            raise ConfigError(
                f"--spec-type {asked} was asked for, but {config.draft_model} is made for {kind}; "
                f"write {kind} or {AUTO}"
            )
        if kind == "draft-simple":
            return self._draft_simple(path)
        if kind == "draft-eagle3":
            self._tell_torch("they have no EAGLE-3 heads")
            return self._eagle3(path)
        drafter = self._block_drafter(kind, path)
        self._tell_torch(why_not_packed(drafter.config))
        return self._within_n_max(drafter)

    def _tell_torch(self, reason: str | None) -> None:
        """Tell why a drafter is computed in torch beside a target that is not."""
        if reason and isinstance(self.target, PackedDecoder):
            self.notify(
                f"{self.config.draft_model} is computed in torch, on one thread, as the native kernels cannot run it: "
                f"{reason}; --runtime torch computes both there"
            )

    def _eagle3(self, path: Path) -> Drafter:
        config = self.config
        drafter = Eagle3Drafter.load(
            path,
            self.target,
            max_draft_tokens=config.n_max,
            draft_sampling=config.draft_sampling,
            with_confidence=self.with_confidence,
            p_min=config.p_min,
        )
        if config.n_min > drafter.traits.max_draft_tokens:
            raise ConfigError(
                f"n_min is {config.n_min}, but {drafter.traits.name} drafts {drafter.traits.max_draft_tokens} tokens "
                "unless n_max says otherwise: no draft could be long enough; set n_max too"
            )
        return drafter

    def _block_drafter(self, kind: str, path: Path) -> BlockDrafter:
        config = self.config
        if kind == "draft-dspark":
            return DSparkDrafter.load(
                path,
                self.target,
                draft_sampling=config.draft_sampling,
                with_confidence=self.with_confidence or config.policy == "budget",
                p_min=config.p_min,
            )
        return DFlashDrafter.load(
            path,
            self.target,
            draft_sampling=config.draft_sampling,
            with_confidence=self.with_confidence or config.p_min > 0,
        )

    def _within_n_max(self, drafter: Drafter) -> Drafter:
        """Apply n_max; more than the block holds is cut to the block, as llama.cpp does, and told."""
        config, traits = self.config, drafter.traits
        wanted = config.n_max or traits.max_draft_tokens
        if wanted > traits.max_draft_tokens:
            self.notify(
                f"n_max is {wanted}, but a block of {traits.name} holds {traits.max_draft_tokens} draft tokens: "
                f"n_max is {traits.max_draft_tokens}"
            )
        if config.n_min > traits.max_draft_tokens:
            raise ConfigError(
                f"n_min is {config.n_min}, but a block of {traits.name} holds {traits.max_draft_tokens} draft tokens: "
                "no draft could be long enough"
            )
        return LimitedDrafter(drafter, wanted) if wanted < traits.max_draft_tokens else drafter

    def _draft_simple(self, path: Path) -> Drafter:
        config, info = self.config, self.target.info
        n_max = config.n_max or max(DEFAULT_DRAFT_TOKENS, config.n_min)
        if isinstance(self.target, PackedDecoder):
            draft_model = load_target(path, device="cpu", runtime="auto", notify=self.notify)
        else:
            dtype = str(info.dtype).removeprefix("torch.")
            draft_model = load_target(path, device=str(info.device), dtype=dtype, notify=self.notify)
        reasons = self._differences(draft_model, path, n_max)
        if reasons:
            raise PairError(
                f"the draft model {config.draft_model} ({draft_model.info.family}) cannot draft for the target "
                f"({self.tokenizer.name if self.tokenizer else info.family}): {'; '.join(reasons)}"
            )
        if draft_model.info.context_length < info.context_length:
            self.notify(
                f"the context of the draft model holds {draft_model.info.context_length} tokens, the target's "
                f"{info.context_length}: past the shorter one nothing is drafted"
            )
        return DraftModelDrafter(
            draft_model,
            target_vocab_size=info.vocab_size,
            max_draft_tokens=n_max,
            draft_sampling=config.draft_sampling,
            p_min=config.p_min,
        )

    def _differences(self, draft_model: Target, path: Path, n_max: int) -> list[str]:
        """Return why a small model cannot draft for the target; empty if it can."""
        mine, theirs = draft_model.info, self.target.info
        reasons = []
        if self.tokenizer is not None:
            # Widths may differ by padding; what counts is that every id stands for the same token.
            difference = self.tokenizer.same_vocabulary(load_tokenizer(path))
            if difference:
                reasons.append(f"the vocabularies differ: {difference}")
        elif mine.vocab_size != theirs.vocab_size:
            reasons.append(f"its vocabulary has {mine.vocab_size} tokens, the target's {theirs.vocab_size}")
        if mine.max_rollback is not None and mine.max_rollback < n_max:
            reasons.append(f"its state can forget {mine.max_rollback} tokens, but n_max is {n_max}")
        return reasons
