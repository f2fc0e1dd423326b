import pytest
import torch

from blockdraft.core.random import PositionalRandom
from blockdraft.core.sampling import SamplingParams
from blockdraft.drafters.base import Ask, Observation, Proposal
from blockdraft.testing.scripted import ScriptedDrafter, ScriptedState

PROMPT, ANSWER = (1, 2), (3, 4, 5, 9)
VOCAB = 10


def ask(state: ScriptedState, *answer_ids: int, num_draft_tokens: int = 8) -> Ask:
    return Ask(
        state=state,
        token_ids=[*PROMPT, *answer_ids],
        num_draft_tokens=num_draft_tokens,
        sampling=SamplingParams(),
        random=PositionalRandom(0),
    )


def test_proposes_the_next_tokens_of_the_answer():
    drafter = ScriptedDrafter({PROMPT: ANSWER}, vocab_size=VOCAB, num_drafts=2)
    state = drafter.begin(PROMPT)
    assert drafter.propose([ask(state, 3)])[0].draft_ids == (4, 5)
    assert drafter.propose([ask(state, 3, 4, 5)])[0].draft_ids == (9,)
    assert drafter.propose([ask(state, *ANSWER)]) == [Proposal()]
    assert state.num_rounds == 3


def test_is_wrong_from_the_chosen_slot_on():
    drafter = ScriptedDrafter({PROMPT: ANSWER}, vocab_size=VOCAB, num_right=1)
    assert drafter.propose([ask(drafter.begin(PROMPT), 3)])[0].draft_ids == (4, 6, 0)


def test_counts_follow_the_round_and_the_ask():
    drafter = ScriptedDrafter(
        {PROMPT: ANSWER}, vocab_size=VOCAB, num_drafts=lambda i: (0, 3)[i], num_right=lambda i: i + 1
    )
    state = drafter.begin(PROMPT)
    assert drafter.propose([ask(state, 3)]) == [Proposal()]
    assert drafter.propose([ask(state, 3, num_draft_tokens=1)])[0].draft_ids == (4,)


def test_hands_out_probabilities_and_confidence_of_the_proposed_slots():
    probs = torch.eye(VOCAB)[:4]
    drafter = ScriptedDrafter(
        {PROMPT: ANSWER}, vocab_size=VOCAB, num_drafts=2, draft_probs=probs, confidence=(0.9, 0.5, 0.1, 0.0)
    )
    proposal = drafter.propose([ask(drafter.begin(PROMPT), 3)])[0]
    assert proposal.draft_probs is not None
    assert torch.equal(proposal.draft_probs, probs[:2])
    assert proposal.confidence == (0.9, 0.5)
    assert not drafter.traits.is_deterministic
    assert drafter.traits.has_confidence


def test_keeps_what_it_observed():
    drafter = ScriptedDrafter({PROMPT: ANSWER}, vocab_size=VOCAB)
    drafter.observe(drafter.begin(PROMPT), Observation(committed_ids=[3]))
    assert [seen.committed_ids for seen in drafter.states[0].observations] == [[3]]


def test_an_unknown_prompt_is_a_mistake_of_the_test():
    with pytest.raises(KeyError):
        ScriptedDrafter({PROMPT: ANSWER}, vocab_size=VOCAB).begin((7,))
