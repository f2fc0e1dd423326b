"""A request as it is asked, and the sequence that serves it."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from time import perf_counter
from typing import Any

from blockdraft.core.random import PositionalRandom
from blockdraft.core.sampling import SamplingParams, TokenCounts
from blockdraft.engine.results import Chunk, Generation, Round, Timings, Token, TokenKind
from blockdraft.engine.stopping import AnswerText
from blockdraft.errors import RequestError


@dataclass(frozen=True, kw_only=True)
class Request:
    """What a caller wants of one prompt.

    Raises:
        RequestError: the prompt is empty, or a limit or stop makes no sense.
    """

    prompt_ids: tuple[int, ...]
    max_tokens: int
    sampling: SamplingParams = field(default_factory=SamplingParams)
    stop: tuple[str, ...] = ()
    stop_ids: frozenset[int] = frozenset()
    """Ids that end the answer, the model's own end tokens among them unless they are to be ignored."""
    logprobs: bool = False
    sample_index: int = 0
    """Tells several samples of one prompt and one seed apart."""

    @cached_property
    def only_greedy(self) -> bool:
        """Whether the most likely token of each position is all that the answer depends on."""
        sampling = self.sampling
        is_shaped = bool(sampling.logit_bias) or sampling.has_penalties
        return sampling.is_greedy and not is_shaped and not self.logprobs

    def __post_init__(self) -> None:
        if not self.prompt_ids:
            raise RequestError("the prompt is empty: there is no token to continue from")
        if self.max_tokens < 1:
            raise RequestError(f"max_tokens must be at least 1, not {self.max_tokens}")
        if any(not text for text in self.stop):
            raise RequestError("a stop string cannot be empty")


@dataclass(kw_only=True, eq=False)
class SequenceState:
    """Everything the engine knows about one running request.

    `token_ids` are prompt and answer; the target's cache holds all but the last of them, the anchor. Caches are
    made when the sequence is admitted, so a long queue holds no memory.
    """

    request: Request
    token_ids: list[int]
    answer: AnswerText
    random: PositionalRandom
    cache: Any = None
    draft_state: Any = None
    policy_state: Any = None
    counts: TokenCounts | None = None
    rounds: list[Round] = field(default_factory=list)
    tokens: list[Token] = field(default_factory=list)
    new_tokens: list[Token] = field(default_factory=list)
    """Emitted since the last `take_chunk`."""
    is_cancelled: bool = False
    """It was dropped before it was finished, and never will be."""
    was_asked: bool = False
    """A drafter was asked for this sequence at least once."""
    num_parked: int = 0
    """Rounds without a draft, as drafting would have been slower."""
    prefill_s: float = 0.0
    draft_s: float = 0.0
    target_s: float = 0.0
    first_token_at: float = 0.0
    last_token_at: float = 0.0

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.request.prompt_ids)

    @property
    def num_left(self) -> int:
        """How many tokens the answer may still get."""
        return self.request.max_tokens - (len(self.token_ids) - self.num_prompt_tokens)

    @property
    def is_finished(self) -> bool:
        return self.answer.finish_reason is not None

    def emit(self, token_id: int, kind: TokenKind, drafter: str, logprob: float | None) -> None:
        """Append one token to the answer."""
        text = self.answer.push(token_id)
        # The record of a round follows its tokens.
        round_index = -1 if kind == "first" else len(self.rounds)
        token = Token(id=token_id, text=text, kind=kind, round_index=round_index, drafter=drafter, logprob=logprob)
        self.token_ids.append(token_id)
        self.tokens.append(token)
        self.new_tokens.append(token)
        self.last_token_at = perf_counter()

    def take_chunk(self) -> Chunk:
        """Return what was emitted since the last call."""
        tokens, self.new_tokens = tuple(self.new_tokens), []
        return Chunk(
            text="".join(token.text for token in tokens), tokens=tokens, finish_reason=self.answer.finish_reason
        )

    def to_generation(self, drafter: str) -> Generation:
        """Return the finished answer; `drafter` names what was configured."""
        assert self.answer.finish_reason is not None
        return Generation(
            prompt_ids=self.request.prompt_ids,
            tokens=tuple(self.tokens),
            finish_reason=self.answer.finish_reason,
            stopped_by=self.answer.stopped_by,
            rounds=tuple(self.rounds),
            timings=Timings(
                prefill_s=self.prefill_s,
                draft_s=self.draft_s,
                target_s=self.target_s,
                decode_s=self.last_token_at - self.first_token_at,
            ),
            drafter=drafter,
            num_parked=self.num_parked,
            not_speculating=self._why_not_speculating(drafter),
        )

    def _why_not_speculating(self, drafter: str) -> str | None:
        if any(record.num_accepted for record in self.rounds):
            return None
        if not drafter:
            return "no drafter is configured"
        num_drafted = sum(record.num_drafted for record in self.rounds)
        if num_drafted == 0 and self.num_parked:
            return f"drafts of {drafter} would have made it slower in {self.num_parked} of {len(self.rounds)} rounds"
        if not self.was_asked:
            return "the answer was too short to draft for"
        if num_drafted == 0:
            return f"{drafter} had nothing to propose in {len(self.rounds)} rounds"
        return f"the target kept none of the {num_drafted} tokens that {drafter} proposed"
