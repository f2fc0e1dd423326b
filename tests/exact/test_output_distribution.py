"""The engine's answers have exactly the target's joint distribution, whatever is drafted and cut."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Callable

import numpy as np
import pytest
from enumeration import EDGE, GivenRandom, Setup, outcomes, target_joint
from scipy.stats import chisquare

from blockdraft.core.sampling import SamplingParams
from blockdraft.drafters.base import Drafter
from blockdraft.drafters.chain import ChainDrafter
from blockdraft.drafters.config import PolicyName, SpecConfig
from blockdraft.engine import Engine, Request
from blockdraft.engine.adaptive_policy import AdaptivePolicy
from blockdraft.engine.pass_costs import PassCosts
from blockdraft.engine.policy import Situation
from blockdraft.testing.toy import ToyDrafter, ToyTarget, one_hot_table, random_table

PROMPT = (0, 1)


def always(count: int) -> Callable[[tuple[int, ...]], int]:
    return lambda prefix: count


def varying(prefix: tuple[int, ...]) -> int:
    """0, 1 or 2 drafts, by the newest token."""
    return prefix[-1] % 3


def confidence_of(prefix: tuple[int, ...]) -> float:
    """Depends on the tokens drafted before the slot, as a Markov confidence head does."""
    return float(np.random.default_rng([5, *prefix]).random())


PASS_S = {1: 1.0, 2: 1.5, 3: 1.7}
"""Seconds of a toy pass by its rows; a second draft token is cheap, so a greedy stop and a full search differ."""


def pays(confidences: tuple[float, ...]) -> bool:
    """Whether each slot up to the last raises the tokens per second."""
    rate, tokens, survival = 1 / PASS_S[1], 1.0, 1.0
    for num_rows, confidence in enumerate(confidences, start=2):
        survival *= confidence
        tokens += survival
        if tokens / PASS_S[num_rows] < rate:
            return False
        rate = tokens / PASS_S[num_rows]
    return True


class AdmitsByCost(AdaptivePolicy):
    """Drafts as much as it may, so that everything is decided by confidences."""

    def __init__(self, drafter: ToyDrafter) -> None:
        costs = PassCosts(num_rows=tuple(PASS_S), depths=(0,), target_s=(tuple(PASS_S.values()),))
        super().__init__(traits=[drafter.traits], costs=costs)

    def limits(self, situation: Situation) -> dict[str, int]:
        return {"draft-toy": situation.room}


BASE = Setup(target=random_table(3, 1), draft=random_table(3, 2), num_drafts=always(2), max_tokens=4)

SETUPS = {
    "rejection": BASE,
    "rejection, one draft": dataclasses.replace(BASE, num_drafts=always(1)),
    "rejection, drafts of varying length": dataclasses.replace(BASE, num_drafts=varying),
    "rejection, nothing drafted": dataclasses.replace(BASE, num_drafts=always(0)),
    "rejection, impossible tokens in the target": dataclasses.replace(BASE, target=random_table(3, 3, zeros=1)),
    "rejection, truncated draft distribution": dataclasses.replace(BASE, draft=random_table(3, 4, zeros=1)),
    "rejection, both truncated": dataclasses.replace(
        BASE, target=random_table(3, 3, zeros=1), draft=random_table(3, 4, zeros=1)
    ),
    "rejection, one-hot draft distribution": dataclasses.replace(BASE, draft=one_hot_table(3, 6)),
    "rejection, draft equal to the target": dataclasses.replace(BASE, draft=random_table(3, 1)),
    "rejection, chosen drafts": dataclasses.replace(BASE, deterministic=True),
    "rejection, cut by confidence": dataclasses.replace(BASE, confidence=confidence_of, p_min=0.5),
    "rejection, cut by confidence and cost": dataclasses.replace(BASE, confidence=confidence_of, keeps=pays),
    "match, cut by confidence and cost": dataclasses.replace(BASE, rule="match", confidence=confidence_of, keeps=pays),
    "rejection, stop inside the block": dataclasses.replace(BASE, stop_ids=frozenset({2})),
    "match": dataclasses.replace(BASE, rule="match"),
    "match, chosen drafts": dataclasses.replace(BASE, rule="match", deterministic=True),
    "match, cut by confidence": dataclasses.replace(BASE, rule="match", confidence=confidence_of, p_min=0.5),
    "match, stop inside the block": dataclasses.replace(BASE, rule="match", stop_ids=frozenset({2})),
    "rejection, five tokens": Setup(
        target=random_table(5, 7), draft=random_table(5, 8), num_drafts=always(2), max_tokens=3
    ),
    "rejection, three drafts": Setup(
        target=random_table(2, 7), draft=random_table(2, 8), num_drafts=always(3), max_tokens=5
    ),
}


def engine_for(setup: Setup, vocab_size: int) -> Engine:
    drafter = ToyDrafter(setup.draft, setup.num_drafts, confidence=setup.confidence, deterministic=setup.deterministic)
    spec = SpecConfig(rule=setup.rule, p_min=setup.p_min)
    engine = Engine(ToyTarget(setup.target, vocab_size), drafter=drafter, spec=spec)
    if setup.keeps is pays:
        engine._pipeline = dataclasses.replace(engine._pipeline, policy=AdmitsByCost(drafter))
    return engine


def request_for(setup: Setup, **more: object) -> Request:
    options = {"temperature": 1.0, **more}
    return Request(
        prompt_ids=PROMPT,
        max_tokens=setup.max_tokens,
        sampling=SamplingParams(**options),
        stop_ids=setup.stop_ids,
    )


@pytest.mark.parametrize("name", SETUPS)
def test_every_path_of_the_engine_and_the_sum_of_all_paths(name: str) -> None:
    setup = SETUPS[name]
    vocab_size = len(setup.target(PROMPT))
    engine = engine_for(setup, vocab_size)
    totals: dict[tuple[int, ...], float] = defaultdict(float)
    for path in outcomes(setup, PROMPT):
        totals[path.emitted] += path.weight
        for at in (EDGE, 1 - EDGE):
            sequence = engine.submit(request_for(setup))
            sequence.random = GivenRandom(path.intervals, at)  # type: ignore[assignment]
            while not sequence.is_finished:
                engine.step()
            assert tuple(token.id for token in sequence.tokens) == path.emitted
            assert sequence.cache.token_ids == sequence.token_ids[:-1]
    expected = target_joint(setup, PROMPT)
    assert totals.keys() == expected.keys()
    assert max(abs(totals[answer] - expected[answer]) for answer in expected) < 1e-12


def test_a_rule_that_looks_at_the_token_it_decides_about_is_caught() -> None:
    """The enumeration is no tautology: dropping a draft because of its own token bends the distribution."""
    setup = dataclasses.replace(BASE, num_drafts=always(1), confidence=lambda prefix: 1.0)
    totals: dict[tuple[int, ...], float] = defaultdict(float)

    import enumeration

    honest = enumeration._draft

    def peeking(setup, prefix, draft, num_wanted, path):  # type: ignore[no-untyped-def]
        for tokens, longer in honest(setup, prefix, draft, num_wanted, path):
            yield ((), longer) if tokens == (0,) else (tokens, longer)

    enumeration._draft = peeking
    try:
        for path in outcomes(setup, PROMPT):
            totals[path.emitted] += path.weight
    finally:
        enumeration._draft = honest
    expected = target_joint(setup, PROMPT)
    assert max(abs(totals[answer] - expected[answer]) for answer in expected) > 1e-3


@pytest.mark.parametrize("deterministic", [False, True])
def test_greedy_equals_the_argmax_of_every_prefix(deterministic: bool) -> None:
    for seed in range(40):
        setup = dataclasses.replace(
            BASE,
            target=random_table(4, seed),
            draft=random_table(4, seed + 1 if seed % 2 else seed),
            num_drafts=always(3),
            max_tokens=12,
            deterministic=deterministic,
        )
        engine = engine_for(setup, 4)
        answer = engine.run([request_for(setup, temperature=0.0)])[0].token_ids
        prefix = PROMPT
        for token_id in answer:
            assert token_id == setup.target(prefix).argmax()
            prefix = (*prefix, token_id)


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["rejection", "match"])
def test_the_real_sampler_passes_a_chi_square_test(rule: str) -> None:
    """100,000 seeded answers of three tokens through engine, shaping, drafter and generator as users run them."""
    setup = dataclasses.replace(
        BASE, target=random_table(3, 21), draft=random_table(3, 22, zeros=1), max_tokens=3, rule=rule
    )
    engine = engine_for(setup, 3)
    engine._scheduler._max_running = 500
    expected = target_joint(setup, PROMPT)
    counts = dict.fromkeys(expected, 0)
    num_draws = 100_000
    for start in range(0, num_draws, 500):
        requests = [request_for(setup, seed=seed) for seed in range(start, start + 500)]
        for generation in engine.run(requests):
            counts[generation.token_ids] += 1
    observed = np.array([counts[answer] for answer in expected])
    result = chisquare(observed, np.array(list(expected.values())) * num_draws)
    assert result.pvalue > 1e-4, f"chi-square {result.statistic:.1f} over {len(expected)} answers"


@pytest.mark.slow
@pytest.mark.parametrize("with_instant", [False, True], ids=["alone", "behind an instant drafter"])
@pytest.mark.parametrize("policy", ["adaptive", "budget"])
def test_a_policy_that_learns_passes_a_chi_square_test(
    policy: PolicyName, with_instant: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """50,000 seeded answers whose drafts are shortened, cut, passed over and parked by what earlier rounds kept."""
    monkeypatch.setattr("blockdraft.engine.kept_slots.TRIAL_ROUNDS", 0.5)  # five tokens are few to learn from
    setup = dataclasses.replace(
        BASE, target=random_table(3, 21), draft=random_table(3, 22), confidence=confidence_of, max_tokens=5
    )
    drafter: Drafter = ToyDrafter(setup.draft, setup.num_drafts, confidence=setup.confidence)
    if with_instant:
        # Sure where the other is not, so that both are heard.
        instant = ToyDrafter(
            random_table(3, 23),
            always(2),
            confidence=lambda prefix: 1 - confidence_of(prefix),
            deterministic=True,
            is_instant=True,
            name="instant",
        )
        drafter = ChainDrafter([instant, drafter])
    costs = PassCosts(num_rows=(1, 2, 3), depths=(0,), target_s=((1.0, 1.4, 1.6),))
    spec = SpecConfig(rule="rejection", policy=policy)
    engine = Engine(ToyTarget(setup.target, 3), drafter=drafter, spec=spec, costs=costs)
    expected = target_joint(setup, PROMPT)
    counts = dict.fromkeys(expected, 0)
    lengths: set[int] = set()
    winners: set[str] = set()
    num_parked, num_draws = 0, 50_000
    for start in range(0, num_draws, 500):
        requests = [request_for(setup, seed=seed) for seed in range(start, start + 500)]
        for request in requests:
            [generation] = engine.run([request])
            counts[generation.token_ids] += 1
            lengths |= {record.num_drafted for record in generation.rounds}
            winners |= {record.drafter for record in generation.rounds}
            num_parked += generation.num_parked
    assert lengths == {0, 1, 2}
    assert num_parked > 0
    assert winners == ({"", "draft-toy", "instant"} if with_instant else {"", "draft-toy"})
    observed = np.array([counts[answer] for answer in expected])
    result = chisquare(observed, np.array(list(expected.values())) * num_draws)
    assert result.pvalue > 1e-4, f"chi-square {result.statistic:.1f} over {len(expected)} answers"


def test_match_gives_the_seeded_sample_of_plain_decoding() -> None:
    setup = dataclasses.replace(BASE, rule="match", max_tokens=8)
    speculative = engine_for(setup, 3)
    plain = speculative.without_drafter()
    for seed in range(200):
        request = request_for(setup, seed=seed)
        assert speculative.run([request])[0].token_ids == plain.run([request])[0].token_ids


def test_greedy_with_penalties_and_bias_counts_the_drafts_before_each_row() -> None:
    """A row is shaped with its own prefix: the same answer as plain decoding, which sees one token at a time."""
    shaping = {"repetition_penalty": 1.3, "frequency_penalty": 0.4, "presence_penalty": 0.2, "logit_bias": {1: 0.7}}
    for seed in range(40):
        setup = dataclasses.replace(BASE, target=random_table(4, seed), draft=random_table(4, seed), max_tokens=12)
        engine = engine_for(setup, 4)
        for temperature in (0.0, 1.0):
            match = engine_for(dataclasses.replace(setup, rule="match"), 4)
            request = request_for(setup, temperature=temperature, seed=seed, **shaping)
            answer = (engine if temperature == 0 else match).run([request])[0].token_ids
            assert answer == engine.without_drafter().run([request])[0].token_ids


def test_log_probabilities_are_the_targets_for_every_emitted_token() -> None:
    setup = dataclasses.replace(BASE, max_tokens=6)
    for rule in ("match", "rejection"):
        engine = engine_for(dataclasses.replace(setup, rule=rule), 3)
        request = dataclasses.replace(request_for(setup, seed=3), logprobs=True)
        prefix = PROMPT
        for token in engine.run([request])[0].tokens:
            assert token.logprob == pytest.approx(float(np.log(setup.target(prefix)[token.id])), abs=1e-12)
            prefix = (*prefix, token.id)
