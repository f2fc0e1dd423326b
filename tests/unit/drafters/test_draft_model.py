"""A tiny random model drafts; its own plain continuation is what it must propose."""

from dataclasses import replace

import pytest
import torch

from blockdraft.core.random import Draw, PositionalRandom
from blockdraft.core.sampling import SamplingParams, sample_rows, shape_probs
from blockdraft.drafters import draft_model
from blockdraft.drafters.base import Ask, Observation
from blockdraft.drafters.draft_model import DraftModelDrafter
from blockdraft.models.base import Segment, TargetInfo, TargetOutput
from blockdraft.testing.tiny_models import tiny_target

PROMPT = (1, 17, 33, 5, 60, 17, 33)
SAMPLED = SamplingParams(temperature=0.9, top_k=20, top_p=0.9, min_p=0.01, repetition_penalty=1.2, logit_bias={3: 1.0})


@pytest.fixture(scope="module")
def model():
    return tiny_target("llama", seed=3)


def ask(state, tokens, num_draft_tokens=4, sampling=None, seed=0) -> Ask:
    return Ask(
        state=state,
        token_ids=tuple(tokens),
        num_draft_tokens=num_draft_tokens,
        sampling=sampling or SamplingParams(),
        random=PositionalRandom(seed),
    )


def committed(*token_ids: int, num_drafted=0) -> Observation:
    return Observation(committed_ids=token_ids, num_drafted=num_drafted, num_accepted=len(token_ids) - 1)


def last_logits(model, tokens):
    """Logits of one fresh pass over all tokens."""
    return model.forward([Segment(token_ids=tuple(tokens), cache=model.new_cache(), num_logits=1)]).logits


def continuation(model, tokens, num_tokens):
    tokens = list(tokens)
    for _ in range(num_tokens):
        tokens.append(int(last_logits(model, tokens).argmax()))
    return tuple(tokens[-num_tokens:])


class Watched:
    """A draft model that counts the rows of its passes."""

    def __init__(self, model, **info):
        self.model = model
        self.info: TargetInfo = replace(model.info, **info)
        self.passes: list[list[int]] = []

    def new_cache(self, capacity=0):
        return self.model.new_cache(capacity)

    def forward(self, segments, target_layer_ids=()) -> TargetOutput:
        self.passes.append([len(segment.token_ids) for segment in segments])
        return self.model.forward(segments, target_layer_ids)


def test_greedy_drafts_are_the_models_own_continuation(model):
    drafter = DraftModelDrafter(model, max_draft_tokens=5)
    proposal = drafter.propose([ask(drafter.begin(PROMPT), PROMPT, 5)])[0]
    assert proposal.draft_ids == continuation(model, PROMPT, 5)
    assert proposal.draft_probs is None
    assert proposal.drafter == "draft-simple"


def test_sequences_are_drafted_together_in_one_pass_per_slot(model):
    watched = Watched(model)
    drafter = DraftModelDrafter(watched, max_draft_tokens=4)
    prompts = [PROMPT, PROMPT[:3], (9, 9)]
    wanted = [4, 1, 2]
    asks = [ask(drafter.begin(prompt), prompt, n) for prompt, n in zip(prompts, wanted, strict=True)]
    proposals = drafter.propose(asks)
    assert [p.draft_ids for p in proposals] == [continuation(model, p, n) for p, n in zip(prompts, wanted, strict=True)]
    assert watched.passes == [[7, 3, 2], [1, 1], [1], [1]]


def test_number_of_drafts_is_bounded_by_the_ask_and_by_the_drafter(model):
    drafter = DraftModelDrafter(model, max_draft_tokens=3)
    assert drafter.traits.max_draft_tokens == 3
    assert len(drafter.propose([ask(drafter.begin(PROMPT), PROMPT, 9)])[0]) == 3
    assert len(drafter.propose([ask(drafter.begin(PROMPT), PROMPT, 2)])[0]) == 2


def test_confidence_is_the_largest_untempered_probability(model):
    drafter = DraftModelDrafter(model, max_draft_tokens=3)
    proposal = drafter.propose([ask(drafter.begin(PROMPT), PROMPT, 3, sampling=SAMPLED)])[0]
    for slot, confidence in enumerate(proposal.confidence):
        probs = last_logits(model, (*PROMPT, *proposal.draft_ids[:slot])).softmax(-1)
        assert confidence == pytest.approx(float(probs.max()), abs=1e-5)


def test_sampled_drafts_come_from_the_distribution_that_is_handed_out(model):
    drafter = DraftModelDrafter(model, max_draft_tokens=4)
    plain = SamplingParams(temperature=0.9, top_k=20, top_p=0.9, min_p=0.01)
    for seed in range(5):
        proposal = drafter.propose([ask(drafter.begin(PROMPT), PROMPT, 4, sampling=SAMPLED, seed=seed)])[0]
        assert proposal.draft_probs.shape == (4, model.info.vocab_size)
        uniforms = PositionalRandom(seed).uniforms(len(PROMPT), 4)[:, Draw.DRAFT]
        assert sample_rows(proposal.draft_probs, torch.from_numpy(uniforms)).tolist() == list(proposal.draft_ids)
        for slot in range(4):
            # Temperature, top-k, top-p and min-p shape the draft; penalties and bias do not.
            logits = last_logits(model, (*PROMPT, *proposal.draft_ids[:slot]))
            torch.testing.assert_close(proposal.draft_probs[slot : slot + 1], shape_probs(logits, plain))


def test_sampled_drafts_do_not_depend_on_the_batch(model):
    drafter = DraftModelDrafter(model, max_draft_tokens=4)
    alone = drafter.propose([ask(drafter.begin(PROMPT), PROMPT, 4, sampling=SAMPLED, seed=7)])[0]
    greedy = ask(drafter.begin(PROMPT), PROMPT, 4)
    other = ask(drafter.begin((4, 4)), (4, 4), 2, sampling=SAMPLED, seed=8)
    beside = drafter.propose([other, greedy, ask(drafter.begin(PROMPT), PROMPT, 4, sampling=SAMPLED, seed=7)])
    assert beside[2].draft_ids == alone.draft_ids
    torch.testing.assert_close(beside[2].draft_probs, alone.draft_probs)
    assert beside[1].draft_ids == continuation(model, PROMPT, 4)
    assert beside[1].draft_probs is None


def test_greedy_draft_sampling_takes_the_most_likely_token_for_sampled_requests(model):
    drafter = DraftModelDrafter(model, max_draft_tokens=3, draft_sampling="greedy")
    proposal = drafter.propose([ask(drafter.begin(PROMPT), PROMPT, 3, sampling=SAMPLED)])[0]
    assert proposal.draft_ids == continuation(model, PROMPT, 3)
    assert proposal.draft_probs is None
    assert drafter.traits.is_deterministic
    assert not DraftModelDrafter(model).traits.is_deterministic


@pytest.mark.parametrize("num_accepted", [0, 1, 2, 3, 4])
def test_after_any_verdict_the_next_draft_is_that_of_a_fresh_state(model, num_accepted):
    drafter = DraftModelDrafter(model, max_draft_tokens=4)
    state = drafter.begin(PROMPT)
    drafts = drafter.propose([ask(state, PROMPT)])[0].draft_ids
    emitted = (*drafts[:num_accepted], (*drafts, 0)[num_accepted] ^ 1)
    drafter.observe(state, committed(*emitted, num_drafted=4))
    # Rows of accepted drafts stay; the last draft token was never run.
    assert state.cache.length == len(PROMPT) + min(num_accepted, 3)
    tokens = (*PROMPT, *emitted)
    assert drafter.propose([ask(state, tokens)])[0].draft_ids == continuation(model, tokens, 4)


def test_rows_are_kept_only_for_tokens_that_were_committed(model):
    watched = Watched(model)
    drafter = DraftModelDrafter(watched, max_draft_tokens=4)
    state = drafter.begin(PROMPT)
    drafts = drafter.propose([ask(state, PROMPT)])[0].draft_ids
    watched.passes.clear()
    tokens = (*PROMPT, *drafts, 11)
    drafter.observe(state, committed(*drafts, 11, num_drafted=4))
    drafter.propose([ask(state, tokens, 1)])
    assert watched.passes == [[2]]


def test_an_anchor_that_equals_the_next_draft_is_run_again(model):
    # Only 2 of 4 drafts were verified, and the bonus token happened to be the third.
    drafter = DraftModelDrafter(model, max_draft_tokens=4)
    state = drafter.begin(PROMPT)
    drafts = drafter.propose([ask(state, PROMPT)])[0].draft_ids
    drafter.observe(state, committed(*drafts[:3], num_drafted=2))
    tokens = (*PROMPT, *drafts[:3])
    assert drafter.propose([ask(state, tokens)])[0].draft_ids == continuation(model, tokens, 4)


def test_catches_up_on_tokens_that_another_drafter_won(model):
    watched = Watched(model)
    drafter = DraftModelDrafter(watched, max_draft_tokens=3)
    state = drafter.begin(PROMPT)
    drafter.propose([ask(state, PROMPT, 1)])
    drafter.observe(state, committed(8, num_drafted=1))
    drafter.observe(state, Observation(committed_ids=(2, 3, 4), drafter="ngram-mod", num_drafted=2, num_accepted=2))
    tokens = (*PROMPT, 8, 2, 3, 4)
    watched.passes.clear()
    assert drafter.propose([ask(state, tokens, 3)])[0].draft_ids == continuation(model, tokens, 3)
    assert watched.passes == [[4], [1], [1]]


def test_a_proposal_that_nobody_observed_leaves_no_trace(model):
    drafter = DraftModelDrafter(model, max_draft_tokens=3)
    state = drafter.begin(PROMPT)
    first = drafter.propose([ask(state, PROMPT, 3)])
    assert drafter.propose([ask(state, PROMPT, 3)])[0].draft_ids == first[0].draft_ids


def test_long_prompts_are_taken_in_piece_by_piece(model, monkeypatch):
    monkeypatch.setattr(draft_model, "CATCH_UP_ROWS", 4)
    watched = Watched(model)
    drafter = DraftModelDrafter(watched, max_draft_tokens=2)
    prompt = (*PROMPT, 3, 4)
    proposals = drafter.propose([ask(drafter.begin(p), p, 2) for p in (prompt, PROMPT[:3])])
    assert watched.passes == [[4], [4], [1, 3], [1, 1]]
    assert proposals[0].draft_ids == continuation(model, prompt, 2)
    assert proposals[1].draft_ids == continuation(model, PROMPT[:3], 2)


def test_drafting_stops_after_the_first_slot_below_p_min(model):
    free = DraftModelDrafter(model, max_draft_tokens=6)
    proposal = free.propose([ask(free.begin(PROMPT), PROMPT, 6)])[0]
    p_min = sorted(proposal.confidence)[2]
    first_below = next(slot for slot, value in enumerate(proposal.confidence) if value < p_min)
    drafter = DraftModelDrafter(model, max_draft_tokens=6, p_min=p_min)
    stopped = drafter.propose([ask(drafter.begin(PROMPT), PROMPT, 6)])[0]
    assert stopped.draft_ids == proposal.draft_ids[: first_below + 1]
    assert stopped.confidence == pytest.approx(proposal.confidence[: first_below + 1])


def test_nothing_is_drafted_past_the_context_of_the_draft_model(model):
    watched = Watched(model, context_length=len(PROMPT) + 1)
    drafter = DraftModelDrafter(watched, max_draft_tokens=3)
    state = drafter.begin(PROMPT)
    assert len(drafter.propose([ask(state, PROMPT, 3)])[0]) == 1
    assert len(drafter.propose([ask(state, (*PROMPT, 3), 3)])[0]) == 0


@pytest.mark.parametrize("target_vocab_size", [90, 100])
def test_draft_probabilities_span_the_targets_vocabulary(model, target_vocab_size):
    drafter = DraftModelDrafter(model, max_draft_tokens=2, target_vocab_size=target_vocab_size)
    for seed in range(20):
        proposal = drafter.propose([ask(drafter.begin(PROMPT), PROMPT, 2, SamplingParams(temperature=3.0), seed)])[0]
        assert proposal.draft_probs.shape == (2, target_vocab_size)
        torch.testing.assert_close(proposal.draft_probs.sum(-1), torch.ones(2))
        assert max(proposal.draft_ids) < min(target_vocab_size, 96)


def test_describe_names_the_effective_settings(model):
    values = DraftModelDrafter(model, max_draft_tokens=2, p_min=0.25).describe()
    assert (values["max_draft_tokens"], values["p_min"], values["family"]) == (2, 0.25, "llama")
