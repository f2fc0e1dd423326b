"""A budget from confidences that are two rounds old, filled with the likeliest slots of now."""

from __future__ import annotations

from itertools import product

import pytest

from blockdraft.drafters.base import DrafterTraits, Proposal
from blockdraft.drafters.config import SpecConfig
from blockdraft.engine import Engine
from blockdraft.engine.budget_policy import BudgetPolicy
from blockdraft.engine.pass_costs import PassCosts
from blockdraft.engine.policy import Situation
from blockdraft.errors import ConfigError
from blockdraft.testing.toy import ToyDrafter, ToyTarget, random_table

MODEL = DrafterTraits(name="draft-dspark", max_draft_tokens=7, is_deterministic=False)
JAGGED = (1.0, 1.4, 1.45, 2.6, 2.65)
"""Seconds of a pass by its rows: a second and a fourth draft token are cheap, the first and the third are dear."""


class Rounds:
    """Sequences that go through rounds together."""

    def __init__(self, num_sequences: int = 1, target_s: tuple[float, ...] = JAGGED) -> None:
        num_rows = tuple(range(1, len(target_s) + 1))
        self.policy = BudgetPolicy(
            traits=[MODEL], costs=PassCosts(num_rows=num_rows, depths=(0,), target_s=(target_s,))
        )
        self.situations = [
            Situation(state=self.policy.begin(), room=100, depth=0, num_running=num_sequences)
            for _ in range(num_sequences)
        ]

    def admit(self, *confidences: tuple[float, ...] | None) -> list[int]:
        """Return how many slots of each draft are verified; None has no confidences and three slots."""
        proposals = [
            Proposal(draft_ids=tuple(range(3 if own is None else len(own))), confidence=own, drafter="draft-dspark")
            for own in confidences
        ]
        return [len(proposal) for proposal in self.policy.admit(proposals, self.situations)]


def test_at_first_a_sequence_counts_as_sure_of_its_slots() -> None:
    assert Rounds().admit((0.01, 0.01, 0.01, 0.01)) == [2]  # 3 / 1.45, against 2 / 1.4 and 5 / 2.65


def test_the_budget_is_that_of_two_rounds_ago() -> None:
    rounds = Rounds()
    sure, unsure = (0.99, 0.99), (0.2, 0.2)
    assert rounds.admit(sure) == [2]
    assert rounds.admit(unsure) == [2]
    assert rounds.admit(unsure) == [2]  # as sure as two rounds before
    assert rounds.admit(sure) == [0]  # as unsure as then
    assert rounds.admit(sure) == [0]
    assert rounds.admit(sure) == [2]


def test_a_step_that_early_stop_would_shy_at_is_taken() -> None:
    """The second token is cheap, the first is not: 1.6 / 1.4 < 1.2 < 2.2 / 1.45."""
    rounds = Rounds(target_s=(1 / 1.2, 1.4, 1.45))
    for _ in range(3):
        lengths = rounds.admit((0.6, 1.0))
    assert lengths == [2]


def test_the_likeliest_slots_of_now_fill_the_budget() -> None:
    six_rows = (1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 100.0)
    rounds = Rounds(2, six_rows)
    for _ in range(3):
        assert rounds.admit((0.9, 0.9, 0.9, 0.9, 0.9), (0.5, 0.5, 0.5)) == [4, 0]
    assert rounds.admit((0.5, 0.5, 0.5), (0.9, 0.9, 0.9, 0.9, 0.9)) == [0, 4]


def test_drafts_without_confidences_are_verified_whole_and_count_as_rows() -> None:
    five_rows = (1.0, 1.0, 1.0, 1.0, 1.0, 100.0, 100.0)
    rounds = Rounds(2, five_rows)
    assert rounds.admit(None, (0.9, 0.9)) == [3, 0]
    assert rounds.admit(None, None) == [3, 3]


def test_a_longer_draft_than_two_rounds_ago_continues_as_that_one_ended() -> None:
    rounds = Rounds(target_s=(1.0,) * 9)
    rounds.admit((0.5,))
    rounds.admit((0.5,))
    assert rounds.admit((0.9, 0.9, 0.9)) == [3]


def test_a_slot_is_admitted_whatever_comes_behind_it() -> None:
    """The rule that keeps sampled output exact, in every state that earlier rounds can leave behind."""
    grid = (0.05, 0.3, 0.6, 0.95)
    outcomes = set()
    for older in product((0.05, 0.6, 0.99), repeat=2):
        for other in (0.1, 0.7):
            seen: dict[tuple[float, ...], bool] = {}
            for confidences in product(grid, repeat=3):
                rounds = Rounds(2, (*JAGGED, 2.7, 3.9, 4.0))
                rounds.admit((older[0],) * 3, (older[1],) * 3)
                rounds.admit((older[0],) * 3, (older[1],) * 3)
                length, _ = rounds.admit(confidences, (other,) * 3)
                for slot in range(3):
                    is_kept = length > slot
                    assert seen.setdefault(confidences[: slot + 1], is_kept) == is_kept
            outcomes |= set(seen.values())
    assert outcomes == {True, False}


@pytest.mark.parametrize("older", [(1.0, 1.0), (0.8, 0.8), (0.8, 0.0), (0.1, 0.1)])
def test_the_counterexample_of_the_paper(older: tuple[float, float]) -> None:
    """What the current second slot looks like does not say whether the first is verified: 0.7, never 0.85.

    Ref: arXiv:2607.05147, App. A.
    """
    target, draft = (0.7, 0.3), (0.5, 0.5)
    output = [0.0, 0.0]
    for token, probability in enumerate(draft):
        rounds = Rounds(target_s=(1 / 1.0, 1 / 0.5, 1 / 0.45))
        rounds.admit(older)
        rounds.admit(older)
        [length] = rounds.admit((0.8, 1.0 if token == 0 else 0.0))
        kept = min(1.0, target[token] / probability) if length else 0.0
        residual = [max(p - q, 0.0) for p, q in zip(target, draft, strict=True)] if length else list(target)
        output[token] += probability * kept
        for other, weight in enumerate(residual):
            output[other] += probability * (1 - kept) * weight / sum(residual)
    assert output[0] == pytest.approx(0.7)


def test_without_confidences_it_is_refused() -> None:
    drafter = ToyDrafter(random_table(3, 2), lambda _: 2)
    with pytest.raises(ConfigError, match="goes by confidences"):
        Engine(ToyTarget(random_table(3, 1), 3), drafter=drafter, spec=SpecConfig(policy="budget"))
