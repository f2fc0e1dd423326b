"""A drafter that follows a script, so that a test can say in advance what every round must do.

It is given the answer that the target will produce for each prompt, and proposes the next tokens of that
answer, wrong on purpose from a chosen slot on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from blockdraft.drafters.base import Ask, Drafter, DrafterTraits, Observation, Proposal

PerRound = int | Callable[[int], int]
"""A number, or a function of the round (counted from 0 for each sequence) that returns one."""


@dataclass(kw_only=True)
class ScriptedState:
    """What the drafter saw of one sequence, for tests to look at."""

    prompt_ids: tuple[int, ...]
    answer_ids: tuple[int, ...]
    num_rounds: int = 0
    """How often it was asked."""
    observations: list[Observation] = field(default_factory=list)


class ScriptedDrafter(Drafter):
    """Proposes a known answer: always right, always wrong, or right for a number of slots.

    Near the end of the answer the proposal is shorter; past the end it is empty.

    Args:
        answers: the reference answer of each prompt, both as token ids.
        vocab_size: size of the target's vocabulary; a wrong token is the right one plus 1, modulo this.
        num_drafts: how many tokens to propose; 0 proposes nothing in that round.
        num_right: how many slots of a proposal are right; None for all, 0 for always wrong.
        draft_probs: rows to hand out as the draft distribution, [at least num_drafts, V].
        confidence: numbers to hand out as confidence, at least num_drafts.
        target_layer_ids: as in `DrafterTraits`, for tests of the feature path.
        max_draft_tokens: as in `DrafterTraits`.
    """

    def __init__(
        self,
        answers: Mapping[tuple[int, ...], Sequence[int]],
        *,
        vocab_size: int,
        num_drafts: PerRound = 4,
        num_right: PerRound | None = None,
        draft_probs: Tensor | None = None,
        confidence: Sequence[float] | None = None,
        target_layer_ids: tuple[int, ...] = (),
        max_draft_tokens: int = 64,
        name: str = "scripted",
    ) -> None:
        self._answers = {tuple(prompt): tuple(answer) for prompt, answer in answers.items()}
        self._vocab_size = vocab_size
        self._num_drafts = num_drafts
        self._num_right = num_right
        self._draft_probs = draft_probs
        self._confidence = confidence
        self._traits = DrafterTraits(
            name=name,
            max_draft_tokens=max_draft_tokens,
            target_layer_ids=target_layer_ids,
            is_deterministic=draft_probs is None,
            has_confidence=confidence is not None,
        )
        self.states: list[ScriptedState] = []
        """The states handed out so far, in the order of `begin`."""

    @property
    def traits(self) -> DrafterTraits:
        return self._traits

    def begin(self, prompt_ids: Sequence[int]) -> ScriptedState:
        """Return fresh state.

        Raises:
            KeyError: there is no answer for this prompt.
        """
        prompt = tuple(prompt_ids)
        state = ScriptedState(prompt_ids=prompt, answer_ids=self._answers[prompt])
        self.states.append(state)
        return state

    def propose(self, asks: Sequence[Ask]) -> list[Proposal]:
        return [self._propose_one(ask) for ask in asks]

    def _propose_one(self, ask: Ask) -> Proposal:
        state: ScriptedState = ask.state
        round_index = state.num_rounds
        state.num_rounds += 1
        num_drafts = min(_in_round(self._num_drafts, round_index), ask.num_draft_tokens)
        num_emitted = len(ask.token_ids) - len(state.prompt_ids)
        right_ids = state.answer_ids[num_emitted : num_emitted + num_drafts]
        num_right = len(right_ids) if self._num_right is None else _in_round(self._num_right, round_index)
        draft_ids = tuple(
            token_id if slot < num_right else (token_id + 1) % self._vocab_size
            for slot, token_id in enumerate(right_ids)
        )
        if not draft_ids:
            return Proposal()
        return Proposal(
            draft_ids=draft_ids,
            draft_probs=None if self._draft_probs is None else self._draft_probs[: len(draft_ids)],
            confidence=None if self._confidence is None else tuple(self._confidence[: len(draft_ids)]),
            drafter=self._traits.name,
        )

    def observe(self, state: ScriptedState, observation: Observation) -> None:
        state.observations.append(observation)


def _in_round(value: PerRound, round_index: int) -> int:
    return value(round_index) if callable(value) else value
