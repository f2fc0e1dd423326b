"""draft-simple: an independent small model of the same vocabulary drafts token by token.

One forward pass of the draft model per slot, batched over the sequences. The first pass also takes in the
committed tokens that the draft model has not run yet: the prompt, what another drafter of a chain won, and
the tokens the target corrected.

Shape legend: B sequences, K draft tokens, V vocabulary of the target.
Ref: arXiv:2211.17192 and arXiv:2302.01318 (speculative sampling with a small model).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from blockdraft.cache import SequenceCache
from blockdraft.core.random import Draw
from blockdraft.core.sampling import SamplingParams, sample_rows, shape_probs
from blockdraft.drafters.base import Ask, Drafter, DrafterTraits, Observation, Proposal
from blockdraft.drafters.config import DraftSampling
from blockdraft.models.base import Segment, Target

DEFAULT_DRAFT_TOKENS = 3
"""Draft tokens per round unless n_max says otherwise; llama.cpp's default."""

CATCH_UP_ROWS = 512
"""A sequence takes in at most this many committed tokens per pass, which bounds the memory of a long prompt."""


@dataclass(slots=True)
class DraftModelState:
    """What the draft model remembers of one sequence.

    The cache holds the first `num_committed` committed tokens (or fewer), then `cached_draft_ids`.
    """

    cache: SequenceCache
    num_committed: int = 0
    cached_draft_ids: tuple[int, ...] = ()
    is_unreadable: bool = False
    """A committed token is one of the target's padding, which the draft model lacks: it cannot go on."""

    def keep(self, committed_ids: Sequence[int]) -> None:
        """Forget the drafted rows but those that agree with the tokens committed after them."""
        num_kept = 0
        for drafted, committed in zip(self.cached_draft_ids, committed_ids, strict=False):
            if drafted != committed:
                break
            num_kept += 1
        if num_kept < len(self.cached_draft_ids):
            self.cache.rollback(self.num_committed + num_kept)
        self.cached_draft_ids = ()


@dataclass(slots=True)
class _Lane:
    """One sequence while its block is being drafted."""

    state: DraftModelState
    pending_ids: Sequence[int]
    """Tokens to run in the next pass."""
    max_drafts: int
    sampling: SamplingParams | None
    """None if the most likely token is taken. Penalties and bias do not enter: they would need counts per row."""
    uniforms: Sequence[float]
    draft_ids: list[int] = field(default_factory=list)
    probs: list[Tensor] = field(default_factory=list)
    confidence: list[float] = field(default_factory=list)

    def proposal(self, name: str) -> Proposal:
        """Return what was drafted."""
        return Proposal(
            draft_ids=tuple(self.draft_ids),
            draft_probs=torch.stack(self.probs) if self.probs else None,
            confidence=tuple(self.confidence),
            drafter=name,
        )


class DraftModelDrafter(Drafter):
    """Drafts with a model that could be a target itself.

    Confidence at slot k is the largest probability of the draft model's own (untempered) distribution
    there: it depends on the tokens before slot k and not on the token drawn at it.

    Args:
        draft_model: the small model; its cache must be able to forget `max_draft_tokens` tokens.
        target_vocab_size: V; the two vocabularies may differ by padding at the end.
        max_draft_tokens: most tokens of one proposal.
        draft_sampling: whether sampled requests get sampled drafts, or the most likely tokens.
        p_min: drafting stops after the first slot whose confidence is below this.
    """

    def __init__(
        self,
        draft_model: Target,
        *,
        target_vocab_size: int | None = None,
        max_draft_tokens: int = DEFAULT_DRAFT_TOKENS,
        draft_sampling: DraftSampling = "probabilistic",
        p_min: float = 0.0,
    ) -> None:
        self.draft_model = draft_model
        self._vocab_size = target_vocab_size or draft_model.info.vocab_size
        self._draft_sampling = draft_sampling
        self._p_min = p_min
        self._traits = DrafterTraits(
            name="draft-simple",
            max_draft_tokens=max_draft_tokens,
            is_deterministic=draft_sampling == "greedy",
            has_confidence=True,
            confidence_is_sequential=True,
        )

    @property
    def traits(self) -> DrafterTraits:
        return self._traits

    def describe(self) -> dict[str, object]:
        info = self.draft_model.info
        return {
            "name": self._traits.name,
            "max_draft_tokens": self._traits.max_draft_tokens,
            "draft_sampling": self._draft_sampling,
            "p_min": self._p_min,
            "family": info.family,
            "num_parameters": info.num_parameters,
            "quantization": info.quantization,
            "context_length": info.context_length,
        }

    def begin(self, prompt_ids: Sequence[int]) -> DraftModelState:
        return DraftModelState(self.draft_model.new_cache(len(prompt_ids)))

    def observe(self, state: DraftModelState, observation: Observation) -> None:
        """Roll the cache back to the tokens that were committed."""
        state.keep(observation.committed_ids)

    @torch.inference_mode()
    def propose(self, asks: Sequence[Ask]) -> list[Proposal]:
        lanes = [self._lane(ask) for ask in asks]
        drafting = [lane for lane in lanes if lane.max_drafts > 0]
        self._catch_up(drafting)
        while drafting:
            self._draw(drafting, self._forward(drafting, num_logits=1)[:, : self._vocab_size])
            drafting = [lane for lane in drafting if self._goes_on(lane)]
        for ask, lane in zip(asks, lanes, strict=True):
            # The last draft token has not been run, so it is not in the cache.
            lane.state.num_committed = len(ask.token_ids)
            lane.state.cached_draft_ids = tuple(lane.draft_ids[:-1])
        return [lane.proposal(self._traits.name) if lane.draft_ids else Proposal() for lane in lanes]

    def _lane(self, ask: Ask) -> _Lane:
        state: DraftModelState = ask.state
        state.keep(())
        num_tokens = len(ask.token_ids)
        if state.cache.length >= num_tokens:
            # A drafted token past the verified ones turned out to be the anchor: run it again for its logits.
            state.cache.rollback(num_tokens - 1)
        info = self.draft_model.info
        max_drafts = max(0, min(ask.num_draft_tokens, self._traits.max_draft_tokens, info.context_length - num_tokens))
        pending_ids: Sequence[int] = ()
        if max_drafts and not state.is_unreadable:
            pending_ids = ask.token_ids[state.cache.length :]
            state.is_unreadable = max(pending_ids) >= info.vocab_size
        if state.is_unreadable:
            max_drafts = 0
        is_sampled = self._draft_sampling == "probabilistic" and not ask.sampling.is_greedy
        return _Lane(
            state=state,
            pending_ids=pending_ids,
            max_drafts=max_drafts,
            sampling=ask.sampling if is_sampled else None,
            uniforms=ask.random.uniforms(num_tokens, max_drafts)[:, Draw.DRAFT].tolist() if is_sampled else (),
        )

    def _goes_on(self, lane: _Lane) -> bool:
        """Return whether the lane has another slot to draft.

        Stopping looks at a confidence that was known before its token was drawn, so it tells nothing about
        that token and verification stays exact.
        """
        return len(lane.draft_ids) < lane.max_drafts and lane.confidence[-1] >= self._p_min

    def _catch_up(self, lanes: Sequence[_Lane]) -> None:
        """Run committed tokens in pieces until the last piece of each lane is left."""
        while behind := [lane for lane in lanes if len(lane.pending_ids) > CATCH_UP_ROWS]:
            rest = [lane.pending_ids[CATCH_UP_ROWS:] for lane in behind]
            for lane in behind:
                lane.pending_ids = lane.pending_ids[:CATCH_UP_ROWS]
            self._forward(behind, num_logits=0)
            for lane, pending_ids in zip(behind, rest, strict=True):
                lane.pending_ids = pending_ids

    def _forward(self, lanes: Sequence[_Lane], num_logits: int) -> Tensor:
        segments = [
            Segment(token_ids=lane.pending_ids, cache=lane.state.cache, num_logits=num_logits) for lane in lanes
        ]
        return self.draft_model.forward(segments).logits

    def _draw(self, lanes: Sequence[_Lane], logits: Tensor) -> None:
        """Draw the next draft token of each lane.

        Shapes: logits [B, at most V].
        """
        confidence = torch.softmax(logits.float(), dim=-1).amax(-1)
        drawn = logits.argmax(-1)
        sampled = [row for row, lane in enumerate(lanes) if lane.sampling is not None]
        if sampled:
            rows = [
                shape_probs(logits[row : row + 1], sampling) for row in sampled if (sampling := lanes[row].sampling)
            ]
            # Tokens that only the target has cannot be drafted.
            probs = F.pad(torch.cat(rows), (0, self._vocab_size - logits.shape[-1]))
            uniforms = [lanes[row].uniforms[len(lanes[row].draft_ids)] for row in sampled]
            drawn[sampled] = sample_rows(probs, torch.tensor(uniforms, dtype=torch.float64, device=probs.device))
            for row, row_probs in zip(sampled, probs, strict=True):
                lanes[row].probs.append(row_probs)
        for lane, token_id, lane_confidence in zip(lanes, drawn.tolist(), confidence.tolist(), strict=True):
            lane.draft_ids.append(token_id)
            lane.confidence.append(lane_confidence)
            lane.pending_ids = (token_id,)
