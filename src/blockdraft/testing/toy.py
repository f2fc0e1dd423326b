"""A target and a drafter that are nothing but tables of probabilities, for exact tests.

The next-token distribution is a function of the whole prefix, so a mistake about which row belongs to which
prefix shows at once. Everything is float64 on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
import torch
from torch import Tensor

from blockdraft.core.random import Draw
from blockdraft.core.sampling import sample_rows
from blockdraft.drafters.base import Ask, Drafter, DrafterTraits, Proposal
from blockdraft.models.base import Segment, TargetInfo, TargetOutput

Table = Callable[[tuple[int, ...]], np.ndarray]
"""From a prefix to the distribution of the next token, [V]."""


def random_table(vocab_size: int, seed: int, *, zeros: int = 0, concentration: float = 1.0) -> Table:
    """Return a table of random distributions, each with `zeros` impossible tokens; the same for the same prefix."""

    @cache
    def table(prefix: tuple[int, ...]) -> np.ndarray:
        generator = np.random.default_rng([seed, len(prefix), *prefix])
        probs = generator.dirichlet(np.full(vocab_size, concentration))
        probs[generator.permutation(vocab_size)[:zeros]] = 0.0
        normalised: np.ndarray = probs / probs.sum()
        return normalised

    return table


def one_hot_table(vocab_size: int, seed: int) -> Table:
    """Return a table in which every prefix has one possible next token."""
    soft = random_table(vocab_size, seed)
    return lambda prefix: np.eye(vocab_size)[soft(prefix).argmax()]


class ToyCache:
    """Remembers token ids."""

    def __init__(self) -> None:
        self.token_ids: list[int] = []

    @property
    def length(self) -> int:
        return len(self.token_ids)

    def rollback(self, num_kept: int) -> None:
        """Keep the first `num_kept` tokens."""
        assert num_kept <= self.length
        del self.token_ids[num_kept:]


class ToyTarget:
    """A `Target` that reads its distributions from a table."""

    def __init__(self, table: Table, vocab_size: int, context_length: int = 64) -> None:
        self.table = table
        self._info = TargetInfo(
            family="toy",
            num_layers=0,
            hidden_size=1,
            vocab_size=vocab_size,
            context_length=context_length,
            num_parameters=0,
            weight_bytes=0,
            dtype=torch.float64,
            device=torch.device("cpu"),
            quantization="none",
        )

    @property
    def info(self) -> TargetInfo:
        return self._info

    @property
    def embedding_weight(self) -> Tensor:
        return torch.zeros(self._info.vocab_size, 1, dtype=torch.float64)

    @property
    def head_weight(self) -> Tensor:
        return self.embedding_weight

    def new_cache(self, capacity: int = 0) -> ToyCache:
        """Return an empty cache; there is nothing to reserve."""
        return ToyCache()

    def forward(self, segments: Sequence[Segment], target_layer_ids: Sequence[int] = ()) -> TargetOutput:
        """Return the logarithms of the table's rows."""
        assert not target_layer_ids, "a toy has no layers"
        rows = []
        for segment in segments:
            segment_rows = []
            for token_id in segment.token_ids:
                segment.cache.token_ids.append(token_id)
                segment_rows.append(self.table(tuple(segment.cache.token_ids)))
            rows += segment_rows[len(segment_rows) - segment.num_logits :]
        with np.errstate(divide="ignore"):
            logits = np.log(np.array(rows)) if rows else np.zeros((0, self._info.vocab_size))
        return TargetOutput(logits=torch.from_numpy(logits), target_hidden=None)


class ToyDrafter(Drafter):
    """Draws draft tokens one by one from a table, and knows its confidence before it draws.

    Args:
        table: the draft distribution of each prefix.
        num_drafts: how many tokens it proposes for a prefix (the committed tokens).
        confidence: the confidence of a slot, from the tokens before it.
        deterministic: take the most likely token and report no distribution.
        is_instant: as in `DrafterTraits`.
        name: of the drafter, as chains tell them apart.
    """

    def __init__(
        self,
        table: Table,
        num_drafts: Callable[[tuple[int, ...]], int],
        *,
        confidence: Callable[[tuple[int, ...]], float] | None = None,
        deterministic: bool = False,
        is_instant: bool = False,
        name: str = "draft-toy",
    ) -> None:
        self.table = table
        self.num_drafts = num_drafts
        self.confidence = confidence
        self.deterministic = deterministic
        self._traits = DrafterTraits(
            name=name,
            max_draft_tokens=16,
            is_deterministic=deterministic,
            has_confidence=confidence is not None,
            confidence_is_sequential=confidence is not None,
            is_instant=is_instant,
        )

    @property
    def traits(self) -> DrafterTraits:
        return self._traits

    def begin(self, prompt_ids: Sequence[int]) -> None:
        return None

    def propose(self, asks: Sequence[Ask]) -> list[Proposal]:
        return [self._propose_one(ask) for ask in asks]

    def _propose_one(self, ask: Ask) -> Proposal:
        prefix = tuple(ask.token_ids)
        committed = len(prefix)
        rows: list[np.ndarray] = []
        confidence: list[float] = []
        for _ in range(min(self.num_drafts(prefix), ask.num_draft_tokens)):
            row = self.table(prefix)
            if self.confidence is not None:
                confidence.append(self.confidence(prefix))
            if self.deterministic or ask.sampling.is_greedy:
                token_id = int(row.argmax())
            else:
                draws = torch.from_numpy(ask.random.uniforms(len(prefix), 1))[:, Draw.DRAFT]
                token_id = int(sample_rows(torch.from_numpy(row)[None], draws))
            rows.append(row)
            prefix = (*prefix, token_id)
        sampled = rows and not self.deterministic and not ask.sampling.is_greedy
        return Proposal(
            draft_ids=prefix[committed:],
            draft_probs=torch.from_numpy(np.array(rows)) if sampled else None,
            confidence=tuple(confidence) if self.confidence is not None else None,
            drafter=self._traits.name,
        )
