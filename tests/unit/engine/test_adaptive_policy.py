"""Lengths by expected tokens per second: drafts where they pay, plain decoding where they do not."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from blockdraft.core.sampling import SamplingParams
from blockdraft.drafters.base import Drafter, DrafterTraits, Proposal
from blockdraft.drafters.chain import ChainDrafter
from blockdraft.drafters.config import SpecConfig
from blockdraft.engine import Engine, Request
from blockdraft.engine.adaptive_policy import AdaptivePolicy, may_pay
from blockdraft.engine.budget_policy import BudgetPolicy
from blockdraft.engine.kept_slots import Calibration, KeptSlots
from blockdraft.engine.pass_costs import DraftCost, PassCosts
from blockdraft.engine.policy import FixedPolicy, Policy, Situation
from blockdraft.engine.results import Round
from blockdraft.testing.toy import ToyDrafter, ToyTarget, random_table

NGRAM = DrafterTraits(name="ngram-simple", max_draft_tokens=16, is_deterministic=True)
COPIER = DrafterTraits(
    name="ngram-map-k", max_draft_tokens=16, is_deterministic=True, has_confidence=True, is_instant=True
)
MODEL = DrafterTraits(name="draft-dspark", max_draft_tokens=7, is_deterministic=True)


def costs(*, per_row: float = 0.1, draft: float = 0.3) -> PassCosts:
    """A pass takes a second and `per_row` for each row but the first."""
    return PassCosts(
        num_rows=(1, 101),
        depths=(0,),
        target_s=((1.0, 1.0 + 100 * per_row),),
        draft_s={"draft-dspark": DraftCost(first_s=draft)},
    )


def situation(policy: Policy, **more: object) -> Situation:
    base = Situation(state=policy.begin(), room=100, depth=0, num_running=1)
    return replace(base, **more)  # type: ignore[arg-type]


def record(drafter: str, num_drafted: int, num_accepted: int) -> Round:
    return Round(
        drafter=drafter,
        num_drafted=num_drafted,
        num_accepted=num_accepted,
        num_emitted=num_accepted + 1,
        next_kind=None,
    )


def after(policy: AdaptivePolicy, rounds: list[Round], **more: object) -> dict[str, int]:
    here = situation(policy, **more)
    for one in rounds:
        policy.observe(here.state, one)
    return dict(policy.limits(here))


# --- what is known of the slots ---


def test_chances_are_shares_of_the_slots_that_were_reached() -> None:
    slots = KeptSlots()
    for _ in range(500):
        slots.add(4, 4)
        slots.add(4, 1)
        slots.add(4, 0)
    first, second, third, fourth = (chance for chance, _ in zip(slots.chances(), range(4), strict=False))
    assert first == pytest.approx(2 / 3, abs=0.01)
    assert second == pytest.approx(1 / 2, abs=0.01)
    assert third == pytest.approx(1, abs=0.01)
    assert fourth == pytest.approx(1, abs=0.01)


def test_a_slot_that_was_never_reached_is_guessed_to_be_like_the_one_before_it() -> None:
    slots = KeptSlots()
    for _ in range(50):
        slots.add(1, 1)
    first, second, third = (chance for chance, _ in zip(slots.chances(), range(3), strict=False))
    assert first == second == third > 0.9


def test_what_was_learnt_fades_to_the_first_guess() -> None:
    slots = KeptSlots()
    before = next(slots.chances())
    for _ in range(20):
        slots.add(3, 0)
    assert next(slots.chances()) < before / 2
    for _ in range(1000):
        slots.fade()
    assert next(slots.chances()) == pytest.approx(before)


# --- how long drafts become ---


def test_drafts_get_longer_the_more_is_kept() -> None:
    policy = AdaptivePolicy(traits=[NGRAM], costs=costs())
    short = after(policy, [record("ngram-simple", 8, 2)] * 30)["ngram-simple"]
    longer = after(policy, [record("ngram-simple", 8, 5)] * 30)["ngram-simple"]
    assert 0 < short < longer
    assert after(policy, [record("ngram-simple", 16, 16)] * 30) == {"ngram-simple": 16}


def test_drafts_get_shorter_the_more_a_row_costs() -> None:
    rounds = [record("ngram-simple", 8, 3), record("ngram-simple", 8, 8)] * 20
    lengths = [
        after(AdaptivePolicy(traits=[NGRAM], costs=costs(per_row=per_row)), rounds)["ngram-simple"]
        for per_row in (0.01, 0.2, 0.6, 1.0)
    ]
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] == 16
    assert lengths[-1] == 0


def test_a_drafter_whose_drafts_are_rejected_is_parked_and_tried_again_later() -> None:
    policy = AdaptivePolicy(traits=[MODEL], costs=costs())
    here = situation(policy)
    for _ in range(20):
        policy.observe(here.state, record("draft-dspark", 3, 0))
    assert policy.limits(here) == {"draft-dspark": 0}
    waited = 0
    while policy.limits(here)["draft-dspark"] == 0 and waited < 1000:
        policy.observe(here.state, record("", 0, 0))
        waited += 1
    assert 10 < waited < 300


def test_a_guess_alone_parks_nobody() -> None:
    """With half of the slots kept it would not pay; it keeps eight of ten, and is found out to."""
    policy = AdaptivePolicy(traits=[MODEL], costs=costs(per_row=0.1, draft=0.6))
    here = situation(policy)
    assert policy.limits(here) == {"draft-dspark": 2}
    for _ in range(3):
        policy.observe(here.state, record("draft-dspark", 2, 2))
    assert policy.limits(here)["draft-dspark"] > 2


def test_what_is_tried_out_and_bad_is_parked_for_a_hundred_rounds() -> None:
    policy = AdaptivePolicy(traits=[MODEL], costs=costs(per_row=0.1, draft=0.6))
    here = situation(policy)
    drafted = []
    for _ in range(400):
        limit = policy.limits(here)["draft-dspark"]
        drafted.append(limit > 0)
        policy.observe(here.state, record("draft-dspark", limit, 0) if limit else record("", 0, 0))
    assert drafted[:3] == [True] * 3
    assert 4 <= sum(drafted) <= 16


@pytest.mark.parametrize(("per_row", "draft", "pays"), [(0.1, 0.6, True), (0.5, 0.3, False), (0.1, 4.0, False)])
def test_what_would_hardly_pay_if_it_were_good_is_never_tried(per_row: float, draft: float, pays: bool) -> None:
    table = costs(per_row=per_row, draft=draft)
    assert may_pay(MODEL, table) == pays
    assert (after(AdaptivePolicy(traits=[MODEL], costs=table), [])["draft-dspark"] > 0) == pays


def test_a_trial_stands_in_nobodys_way() -> None:
    dear = replace(costs(), draft_s={"draft-dspark": DraftCost(first_s=0.6), "ngram-simple": DraftCost(first_s=0.0)})
    limits = after(AdaptivePolicy(traits=[NGRAM, MODEL], costs=dear), [])
    assert limits["ngram-simple"] > 0
    assert limits["draft-dspark"] == 2


def test_drafts_that_are_cut_to_nothing_are_not_made_for_ever() -> None:
    policy = AdaptivePolicy(traits=[MODEL], costs=costs(per_row=0.3, draft=0.3))
    here = situation(policy)
    made = 0
    while policy.limits(here)["draft-dspark"] and made < 50:
        proposal = Proposal(draft_ids=(1, 2), confidence=(0.01, 0.01), drafter="draft-dspark")
        [cut] = policy.admit([proposal], [here])
        assert len(cut) == 0
        policy.observe(here.state, record("", 0, 0))
        made += 1
    assert 1 <= made < 10


def test_a_draft_that_takes_longer_than_it_saves_is_not_made() -> None:
    rounds = [record("draft-dspark", 3, 1)] * 30
    assert after(AdaptivePolicy(traits=[MODEL], costs=costs(draft=0.1)), rounds)["draft-dspark"] > 0
    assert after(AdaptivePolicy(traits=[MODEL], costs=costs(draft=2.0)), rounds)["draft-dspark"] == 0


def test_in_a_chain_a_worse_drafter_does_not_stand_in_the_way_of_a_better_one() -> None:
    policy = AdaptivePolicy(traits=[NGRAM, MODEL], costs=costs())
    bad_ngram = [record("ngram-simple", 3, 1), record("draft-dspark", 7, 7)] * 30
    limits = after(policy, bad_ngram)
    assert limits["ngram-simple"] == 0
    assert limits["draft-dspark"] == 7
    good_ngram = [record("ngram-simple", 8, 8), record("draft-dspark", 7, 2)] * 30
    limits = after(policy, good_ngram)
    assert limits["ngram-simple"] > 8
    assert limits["draft-dspark"] > 0


def test_room_and_the_drafters_own_limit_are_kept() -> None:
    rounds = [record("draft-dspark", 7, 7)] * 30
    policy = AdaptivePolicy(traits=[MODEL], costs=costs(per_row=0.0))
    assert after(policy, rounds) == {"draft-dspark": 7}
    assert after(policy, rounds, room=2) == {"draft-dspark": 2}


def test_many_running_sequences_pay_for_each_others_rows() -> None:
    flat_to_eight = PassCosts(num_rows=(1, 8, 108), depths=(0,), target_s=((1.0, 1.0, 101.0),))
    policy = AdaptivePolicy(traits=[MODEL], costs=flat_to_eight)
    rounds = [record("draft-dspark", 7, 5)] * 30
    assert after(policy, rounds)["draft-dspark"] == 7
    assert after(policy, rounds, num_running=2)["draft-dspark"] == 3
    assert after(policy, rounds, num_running=8)["draft-dspark"] == 0


def test_depth_counts() -> None:
    rows_dear_when_deep = PassCosts(num_rows=(1, 11), depths=(0, 1000), target_s=((1.0, 1.5), (2.0, 22.0)))
    policy = AdaptivePolicy(traits=[MODEL], costs=rows_dear_when_deep)
    rounds = [record("draft-dspark", 7, 4)] * 30
    assert after(policy, rounds, depth=0)["draft-dspark"] > 0
    assert after(policy, rounds, depth=1000)["draft-dspark"] == 0


# --- which of the drafted slots are verified ---


def admitted(policy: AdaptivePolicy, *confidences: tuple[float, ...]) -> list[int]:
    proposals = [
        Proposal(draft_ids=tuple(range(len(own))), confidence=own, drafter="draft-dspark") for own in confidences
    ]
    situations = [situation(policy, num_running=len(confidences)) for _ in confidences]
    return [len(proposal) for proposal in policy.admit(proposals, situations)]


def test_a_draft_is_cut_before_the_first_slot_that_is_not_worth_its_row() -> None:
    policy = AdaptivePolicy(traits=[MODEL], costs=costs(per_row=0.3, draft=0.0))
    assert admitted(policy, (0.9, 0.9, 0.9)) == [3]
    assert admitted(policy, (0.9, 0.9, 0.01, 0.99)) == [2]
    assert admitted(policy, (0.1, 0.99)) == [0]
    assert admitted(policy, ()) == [0]


def test_rows_go_to_the_sequences_whose_drafts_are_likelier() -> None:
    six_rows = PassCosts(num_rows=(1, 6, 7), depths=(0,), target_s=((1.0, 1.0, 100.0),))
    policy = AdaptivePolicy(traits=[MODEL], costs=six_rows)
    assert admitted(policy, (0.9, 0.9, 0.9, 0.9, 0.9), (0.5, 0.5, 0.5)) == [4, 0]
    assert admitted(policy, (0.6, 0.6), (0.6, 0.6)) == [2, 2]


def test_a_draft_without_confidences_is_verified_whole() -> None:
    policy = AdaptivePolicy(traits=[NGRAM], costs=costs(per_row=5.0))
    draft = Proposal(draft_ids=(1, 2, 3), drafter="ngram-simple")
    assert policy.admit([draft], [situation(policy)]) == [draft]


def test_a_slot_is_admitted_whatever_comes_behind_it() -> None:
    """The rule that keeps sampled output exact: what slot k depends on was known before its token was drawn."""
    jagged = PassCosts(num_rows=(1, 2, 3, 4, 5), depths=(0,), target_s=((1.0, 1.4, 1.45, 2.6, 2.65),))
    policy = AdaptivePolicy(traits=[MODEL], costs=jagged)
    grid = (0.05, 0.3, 0.6, 0.95)
    seen: dict[tuple[float, ...], bool] = {}
    for confidences in product(grid, repeat=4):
        [length] = admitted(policy, confidences)
        for slot in range(4):
            is_kept = length > slot
            assert seen.setdefault(confidences[: slot + 1], is_kept) == is_kept
    assert set(seen.values()) == {True, False}


# --- drafts that take no time ---


def offer(*confidence: float) -> Proposal:
    return Proposal(draft_ids=tuple(range(len(confidence))), confidence=confidence, drafter="ngram-map-k")


def taken(policy: AdaptivePolicy, here: Situation, proposal: Proposal) -> int:
    """How many slots are verified of a draft that was asked for."""
    policy.limits(here)
    [admitted_part] = policy.admit([proposal], [here])
    assert policy.accepts(proposal, here) == bool(admitted_part)
    return len(admitted_part)


def test_what_drafts_in_no_time_is_asked_in_every_round() -> None:
    policy = AdaptivePolicy(traits=[COPIER, MODEL], costs=costs(per_row=5.0))
    here = situation(policy, room=9)
    for _ in range(50):
        assert policy.limits(here) == {"ngram-map-k": 9, "draft-dspark": 0}
        policy.observe(here.state, record("", 0, 0))


def test_as_much_of_an_instant_draft_is_taken_as_pays() -> None:
    policy = AdaptivePolicy(traits=[COPIER], costs=costs(per_row=0.3))
    here = situation(policy)
    assert taken(policy, here, offer(0.9, 0.9, 0.9)) == 3
    assert taken(policy, here, offer(0.9, 0.9, 0.01, 0.99)) == 2
    assert taken(policy, here, offer(0.1, 0.9)) == 0
    # A slot that does not pay for itself is taken for the sake of those behind it.
    jagged = PassCosts(num_rows=(1, 2, 3), depths=(0,), target_s=((1.0, 2.1, 2.1),))
    policy = AdaptivePolicy(traits=[COPIER], costs=jagged)
    assert taken(policy, situation(policy), offer(0.99, 0.99)) == 2


def test_an_offer_is_passed_over_if_the_next_part_promises_more() -> None:
    policy = AdaptivePolicy(traits=[COPIER, MODEL], costs=costs(per_row=0.05, draft=0.1))
    here = situation(policy)
    assert taken(policy, here, offer(0.6)) == 1
    for _ in range(30):
        policy.observe(here.state, record("draft-dspark", 7, 7))
    assert taken(policy, here, offer(0.6)) == 0
    assert taken(policy, here, offer(*[0.95] * 16)) == 16


@pytest.mark.parametrize("policy_type", [AdaptivePolicy, BudgetPolicy])
def test_confidences_are_corrected_by_what_was_kept(policy_type: type[AdaptivePolicy]) -> None:
    policy = policy_type(traits=[COPIER], costs=costs(per_row=0.3))
    here, draft = situation(policy), offer(0.6, 0.6)
    assert taken(policy, here, draft) == 1
    for _ in range(20):
        taken(policy, here, draft)
        policy.observe(here.state, record("ngram-map-k", 1, 0))
    assert taken(policy, here, draft) == 0
    for _ in range(200):
        policy.observe(here.state, record("", 0, 0))
    assert taken(policy, here, draft) == 1


def test_an_offer_that_nothing_was_verified_of_teaches_nothing() -> None:
    policy = AdaptivePolicy(traits=[COPIER], costs=costs(per_row=5.0))
    here = situation(policy)
    assert taken(policy, here, offer(0.6)) == 0
    policy.observe(here.state, record("", 0, 0))
    assert here.state["ngram-map-k"].corrected([0.6]) == [pytest.approx(0.6)]


def test_a_calibration_learns_a_factor_on_the_odds() -> None:
    """Slots said to be 0.5 and kept four times in five end near 0.8; others move with them."""
    calibration = Calibration()
    assert calibration.corrected([0.2, 1.0]) == [pytest.approx(0.2), 1.0]
    for _ in range(400):
        for num_kept in (1, 1, 1, 1, 0):
            calibration.pending = (0.5,)
            calibration.add(1, num_kept)
    assert calibration.corrected([0.5, 0.2]) == pytest.approx([0.8, 0.5], abs=0.01)


def test_a_calibration_counts_the_slots_that_were_tried() -> None:
    calibration = Calibration(pending=(0.9, 0.8, 0.7, 0.6))
    calibration.add(3, 1)
    assert (calibration.kept, calibration.lost) == (1, 1)
    assert calibration.expected_kept == pytest.approx(1.7)
    assert calibration.expected_lost == pytest.approx(0.3)
    assert calibration.pending == ()


def toy(name: str, confidence: float | None = None, num_drafts: int = 1) -> ToyDrafter:
    return ToyDrafter(
        random_table(3, 22),
        lambda prefix: num_drafts,
        confidence=None if confidence is None else lambda prefix: confidence,
        deterministic=True,
        is_instant=confidence is not None,
        name=name,
    )


def parked(drafter: Drafter, target_s: tuple[float, ...]) -> tuple[int, int, str | None]:
    """Run one answer; return how many rounds were parked, how many there were, and why nothing was speculated."""
    table = PassCosts(num_rows=tuple(range(1, len(target_s) + 1)), depths=(0,), target_s=(target_s,))
    spec = SpecConfig(policy="adaptive")
    engine = Engine(ToyTarget(random_table(3, 21), 3), drafter=drafter, spec=spec, costs=table)
    [answer] = engine.run([Request(prompt_ids=(0, 1), max_tokens=6, sampling=SamplingParams())])
    return answer.num_parked, len(answer.rounds), answer.not_speculating


DEAR, CHEAP = (1.0, 9.0), (1.0, 1.001)


def test_rounds_are_parked_behind_an_instant_drafter_too() -> None:
    """Its offers are turned down and the other is not asked; the last round has no room for a draft."""
    num_parked, num_rounds, why = parked(ChainDrafter([toy("instant", 0.4), toy("draft-toy")]), DEAR)
    assert (num_parked, num_rounds) == (4, 5)
    assert why == "drafts of instant,draft-toy would have made it slower in 4 of 5 rounds"


def test_an_offer_that_is_turned_down_is_parked_and_none_is_not() -> None:
    assert parked(toy("instant", 0.4), DEAR)[0] == 4
    assert parked(toy("instant", 0.4, num_drafts=0), DEAR)[0] == 0
    assert parked(toy("instant", 0.4), CHEAP)[0] == 0


def test_an_offer_is_thought_about_once_a_round() -> None:
    policy = AdaptivePolicy(traits=[COPIER], costs=costs(per_row=0.01))
    here = situation(policy)
    policy.limits(here)
    assert policy.accepts(offer(0.9, 0.9), here)
    here.state["ngram-map-k"].kept = -8.0  # were it thought about again, nothing would be taken
    assert len(policy.admit([offer(0.9, 0.9)], [here])[0]) == 2
    policy.limits(here)
    assert not policy.accepts(offer(0.9, 0.9), here)


def test_fixed_lengths_leave_n_grams_alone() -> None:
    """`p_min` and `n_min` are those of a draft model, as in llama.cpp."""
    policy = FixedPolicy(traits=[COPIER, MODEL], p_min=0.5, n_min=3)
    draft = offer(0.1, 0.9)
    assert policy.admit([draft], [situation(policy)]) == [draft]
    assert policy.accepts(draft, situation(policy))
    assert not policy.admit([replace(draft, drafter="draft-dspark")], [situation(policy)])[0]


@pytest.mark.parametrize("rule", ["early stop", "search over all lengths"])
def test_the_counterexample_of_the_paper(rule: str) -> None:
    """A search over all lengths looks at the token it decides about, and gives 0.85 where the target has 0.7.

    Ref: arXiv:2607.05147, App. A.
    """
    steps_per_second = (1.0, 0.5, 0.45)
    policy = AdaptivePolicy(
        traits=[MODEL],
        costs=PassCosts(num_rows=(1, 2, 3), depths=(0,), target_s=(tuple(1 / rate for rate in steps_per_second),)),
    )
    target, draft = (0.7, 0.3), (0.5, 0.5)
    output = [0.0, 0.0]
    for token, probability in enumerate(draft):
        # What the drafter thinks of the second slot depends on the token that it drew for the first.
        confidences = (0.8, 1.0 if token == 0 else 0.0)
        if rule == "early stop":
            [length] = admitted(policy, confidences)
        else:
            survivals = (confidences[0], confidences[0] * confidences[1])
            rates = [(1 + sum(survivals[:k])) * steps_per_second[k] for k in range(3)]
            length = rates.index(max(rates))
        kept = min(1.0, target[token] / probability) if length else 0.0
        residual = [max(p - q, 0.0) for p, q in zip(target, draft, strict=True)] if length else list(target)
        output[token] += probability * kept
        for other, weight in enumerate(residual):
            output[other] += probability * (1 - kept) * weight / sum(residual)
    assert output[0] == pytest.approx(0.7 if rule == "early stop" else 0.85)
