"""EAGLE-3: one small layer drafts token by token from the target's hidden states.

A sequence's cache holds one row for each committed token but the anchor, computed from the target's features. A
proposal first takes in what was committed since the last one, then walks ahead on its own outputs, one pass per
slot for all sequences together, and at the end forgets the rows of the walk: rows of accepted drafts are computed
again when their real features arrive.

Shape legend: A sequences still walking, S feature rows, M tapped target layers, D width, U draft vocabulary.
Ref: arXiv:2503.01840.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from blockdraft.cache import KVCache
from blockdraft.drafters.base import Ask, Drafter, DrafterTraits, Observation, Proposal
from blockdraft.drafters.config import DraftSampling
from blockdraft.drafters.eagle3_checkpoint import Eagle3Checkpoint, load_eagle3_checkpoint
from blockdraft.drafters.eagle3_network import Eagle3Network
from blockdraft.drafters.token_choice import Drawn, TokenChoice, collect
from blockdraft.errors import ConfigError
from blockdraft.models.base import Target

CATCH_UP_ROWS = 1024
"""A sequence takes in at most this many committed tokens per pass, which bounds the memory of a long prompt."""

MAX_PENDING_PIECES = 64
"""More stored pieces of features than this are fused: each keeps the features of its whole pass in memory."""


@dataclass
class Eagle3State:
    """What the head remembers of one sequence: rows of committed tokens, and features that are not rows yet."""

    cache: KVCache
    last_hidden: Tensor
    """The output of the cache's last row [1, D], from which the walk starts."""
    pending: list[Tensor] = field(default_factory=list)
    """As they came, [S, M*D]."""
    fused: list[Tensor] = field(default_factory=list)
    """Those before them, [S, D]."""

    @property
    def num_held(self) -> int:
        """How many committed tokens it knows the features of."""
        return self.cache.length + sum(len(rows) for rows in (*self.fused, *self.pending))

    def fuse_pending(self, network: Eagle3Network) -> None:
        """Keep the hidden states in place of the wider features."""
        if self.pending:
            self.fused.append(network.fuse(torch.cat(self.pending)))
            self.pending = []


@dataclass
class _Walk:
    """The sequences that still draft, all at the same slot."""

    members: list[int]
    hidden: Tensor
    """The output of each member's newest row [A, D], before the final norm."""
    drafted: Tensor | None = None
    """The token each member drafted last [A], by the target's ids; None at slot 0."""

    def narrow(self, kept: Sequence[int]) -> None:
        """Go on with the members at these places only."""
        if len(kept) < len(self.members):
            index = torch.tensor(kept, dtype=torch.long, device=self.hidden.device)
            self.members = [self.members[place] for place in kept]
            self.hidden = self.hidden[index]
            self.drafted = None if self.drafted is None else self.drafted[index]


class Eagle3Drafter(Drafter):
    """Drafts a chain of tokens with an EAGLE-3 head.

    Confidence at slot k is the largest probability of the head there: it depends on the tokens before slot k
    and not on the token drawn at it.

    Args:
        checkpoint: the head, loaded for `target`.
        target: lends its embedding, and its head if the checkpoint has none.
        max_draft_tokens: most tokens of one proposal; None for what the head was trained to unroll.
        draft_sampling: whether sampled requests get sampled drafts, or the most likely tokens.
        with_confidence: whether proposals carry confidence.
        p_min: drafting stops before the first slot whose confidence is below this.
    """

    def __init__(
        self,
        checkpoint: Eagle3Checkpoint,
        target: Target,
        *,
        max_draft_tokens: int | None = None,
        draft_sampling: DraftSampling = "probabilistic",
        with_confidence: bool = False,
        p_min: float = 0.0,
    ) -> None:
        if not 0 <= p_min <= 1:
            raise ConfigError(f"p_min must be in [0, 1], not {p_min}")
        self.config = checkpoint.config
        assert self.config.target_layer_ids is not None, "a loaded checkpoint has settled them"
        self.p_min = p_min
        self.choice = TokenChoice(self.config.vocab_size, draft_sampling, checkpoint.tensors.get("d2t"))
        self.network = Eagle3Network(self.config, checkpoint.tensors)
        self._embedding = _own_or_borrowed(checkpoint.tensors.get("embed_tokens.weight"), target.embedding_weight)
        self._head = _own_or_borrowed(checkpoint.tensors.get("lm_head.weight"), target.head_weight)
        self._num_bytes = checkpoint.num_bytes
        self._traits = DrafterTraits(
            name="draft-eagle3",
            max_draft_tokens=max_draft_tokens or self.config.max_draft_tokens,
            target_layer_ids=self.config.target_layer_ids,
            is_deterministic=draft_sampling == "greedy",
            has_confidence=with_confidence or p_min > 0,
            confidence_is_sequential=with_confidence or p_min > 0,
        )

    @classmethod
    def load(
        cls,
        path: Path,
        target: Target,
        *,
        max_draft_tokens: int | None = None,
        draft_sampling: DraftSampling = "probabilistic",
        with_confidence: bool = False,
        p_min: float = 0.0,
    ) -> Eagle3Drafter:
        """Load a checkpoint folder for a target; the options are those of the class.

        Raises:
            ModelError: the checkpoint is broken or not supported.
            PairError: it was made for another target.
            ConfigError: an option is outside its range.
        """
        return cls(
            load_eagle3_checkpoint(path, target.info),
            target,
            max_draft_tokens=max_draft_tokens,
            draft_sampling=draft_sampling,
            with_confidence=with_confidence,
            p_min=p_min,
        )

    @property
    def traits(self) -> DrafterTraits:
        return self._traits

    def describe(self) -> dict[str, object]:
        return {
            "name": self._traits.name,
            "draft_sampling": self.choice.draft_sampling,
            "max_draft_tokens": self._traits.max_draft_tokens,
            "p_min": self.p_min,
            "weight_bytes": self._num_bytes,
            **self.config.to_dict(),
        }

    def begin(self, prompt_ids: Sequence[int]) -> Eagle3State:
        cache = self.network.new_cache(len(prompt_ids) + self._traits.max_draft_tokens)
        return Eagle3State(cache=cache, last_hidden=self.network.norm.new_empty(0, self.config.hidden_size))

    @torch.inference_mode()
    def observe(self, state: Eagle3State, observation: Observation) -> None:
        if observation.target_hidden is None or not len(observation.target_hidden):
            return
        state.pending.append(observation.target_hidden)
        if len(state.pending) > MAX_PENDING_PIECES:
            state.fuse_pending(self.network)

    @torch.inference_mode()
    def propose(self, asks: Sequence[Ask]) -> list[Proposal]:
        if not asks:
            return []
        for ask in asks:
            _check_features(ask)
        self._take_in(asks)
        counts = [min(ask.num_draft_tokens, self._traits.max_draft_tokens) for ask in asks]
        try:
            return self._walk(asks, counts)
        finally:
            for ask in asks:
                ask.state.cache.rollback(len(ask.token_ids) - 1)

    def _take_in(self, asks: Sequence[Ask]) -> None:
        """Compute the rows of the tokens committed since the last proposal, a bounded number per pass."""
        waiting: list[tuple[Ask, Tensor]] = []
        for ask in asks:
            ask.state.fuse_pending(self.network)
            if ask.state.fused:
                waiting.append((ask, torch.cat(ask.state.fused)))
        while waiting:
            pieces = [(ask, rows[:CATCH_UP_ROWS]) for ask, rows in waiting]
            next_ids: list[int] = []
            for ask, rows in pieces:
                start = ask.state.cache.length + 1
                next_ids += ask.token_ids[start : start + len(rows)]
            counts = [len(rows) for _, rows in pieces]
            outputs = self.network.run(
                torch.cat([rows for _, rows in pieces]),
                self._embed(torch.tensor(next_ids, device=self.network.device)),
                [ask.state.cache for ask, _ in pieces],
                counts,
            )
            for (ask, _), rows in zip(pieces, torch.split(outputs, counts), strict=True):
                ask.state.last_hidden = rows[-1:].clone()
            waiting = [(ask, rows[CATCH_UP_ROWS:]) for ask, rows in waiting if len(rows) > CATCH_UP_ROWS]
        for ask in asks:
            ask.state.fused = []

    def _walk(self, asks: Sequence[Ask], counts: Sequence[int]) -> list[Proposal]:
        """Draft slot by slot from the newest committed row."""
        draws = self.choice.draws(asks, counts, self.network.device)
        walk = _Walk(members=list(range(len(asks))), hidden=torch.cat([ask.state.last_hidden for ask in asks]))
        drawn = [Drawn() for _ in asks]
        order: list[Drawn] = []
        all_ids: list[Tensor] = []
        all_confidence: list[Tensor] = []
        for slot in range(max(counts)):
            walk.narrow([place for place, member in enumerate(walk.members) if counts[member] > slot])
            self._advance(walk, [asks[member].state.cache for member in walk.members])
            normed = self.network.normed(walk.hidden)
            logits = F.linear(normed, self._head.to(normed.dtype))
            if self._traits.has_confidence:
                logits, confidence = self._judge(walk, logits)
                all_confidence.append(confidence)
            if not walk.members:
                break
            members = [(asks[member], drawn[member], draws[member][slot : slot + 1]) for member in walk.members]
            walk.drafted = self.choice.to_target_ids(self.choice.choose(logits, members))
            all_ids.append(walk.drafted)
            order += [own for _, own, _ in members]
        collect(order, all_ids, all_confidence)
        return [own.proposal(self._traits.name, with_confidence=self._traits.has_confidence) for own in drawn]

    def _advance(self, walk: _Walk, caches: Sequence[KVCache]) -> None:
        """Run each member's newest draft token, beside the output that drafted it."""
        if walk.drafted is None or not walk.members:
            return
        hidden = self.network.normed(walk.hidden) if self.config.feeds_back_normed else walk.hidden
        walk.hidden = self.network.run(hidden, self._embed(walk.drafted), caches, [1] * len(caches))

    def _judge(self, walk: _Walk, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Drop the sequences whose next slot is below `p_min`; return logits [A, U] and confidence [A] of the others.

        The decision never sees the token it is about, so it does not bend the output distribution.
        """
        confidence = torch.softmax(logits.float(), dim=-1).amax(-1)
        if self.p_min == 0:
            return logits, confidence
        kept = [place for place, passes in enumerate((confidence >= self.p_min).tolist()) if passes]
        walk.narrow(kept)
        return logits[kept], confidence[kept]

    def _embed(self, token_ids: Tensor) -> Tensor:
        return F.embedding(token_ids, self._embedding)


def _own_or_borrowed(own: Tensor | None, targets: Tensor) -> Tensor:
    """Return the checkpoint's table; the target's where there is none or where it is a copy, to hold it once."""
    if own is None or (own.shape == targets.shape and torch.equal(own, targets.to(own.dtype))):
        return targets
    return own


def _check_features(ask: Ask) -> None:
    held, needed = ask.state.num_held, len(ask.token_ids) - 1
    if held != needed:
        raise RuntimeError(
            f"internal error: the EAGLE-3 drafter holds target features of {held} tokens, but {needed} precede the "
            "anchor; every pass of the target must be observed with its tapped hidden states"
        )
