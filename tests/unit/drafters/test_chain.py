from dataclasses import replace

import pytest
import torch

from blockdraft.core.random import PositionalRandom
from blockdraft.core.sampling import SamplingParams
from blockdraft.drafters.base import Ask, Observation
from blockdraft.drafters.chain import ChainDrafter
from blockdraft.drafters.config import NgramSimple
from blockdraft.drafters.draft_model import DraftModelDrafter
from blockdraft.drafters.ngram import NgramSimpleDrafter
from blockdraft.errors import ConfigError, PairError
from blockdraft.testing.scripted import ScriptedDrafter
from blockdraft.testing.tiny_models import tiny_target

FIRST, SECOND = (1, 2), (3, 4)
ANSWERS = {FIRST: (10, 11, 12, 13, 14), SECOND: (20, 21, 22, 23, 24)}


def scripted(name, answers=None, **options) -> ScriptedDrafter:
    return ScriptedDrafter(answers or ANSWERS, vocab_size=100, name=name, **options)


def ask(state, tokens, num_draft_tokens=4) -> Ask:
    return Ask(
        state=state,
        token_ids=tokens,
        num_draft_tokens=num_draft_tokens,
        sampling=SamplingParams(),
        random=PositionalRandom(0),
    )


def test_the_first_member_with_a_draft_wins_and_is_named():
    chain = ChainDrafter([scripted("front", num_drafts=2), scripted("back", num_drafts=3)])
    proposal = chain.propose([ask(chain.begin(FIRST), FIRST)])[0]
    assert (proposal.drafter, proposal.draft_ids) == ("front", (10, 11))


def test_later_members_are_asked_only_for_sequences_that_are_still_open():
    # The front member knows nothing about the answer to the second prompt.
    front = scripted("front", {FIRST: ANSWERS[FIRST], SECOND: ()})
    back = scripted("back")
    chain = ChainDrafter([front, back])
    states = [chain.begin(SECOND), chain.begin(FIRST)]
    proposals = chain.propose([ask(states[0], SECOND), ask(states[1], FIRST)])
    assert [proposal.drafter for proposal in proposals] == ["back", "front"]
    assert proposals[0].draft_ids == (20, 21, 22, 23)
    assert [state.num_rounds for state in back.states] == [1, 0]


def test_an_offer_that_is_not_accepted_leaves_the_sequence_to_the_next_member():
    chain = ChainDrafter([scripted("front"), scripted("back")])
    for name in ("front", "back"):
        request = replace(ask(chain.begin(FIRST), FIRST), accepts=lambda offer, name=name: offer.drafter == name)
        assert chain.propose([request])[0].drafter == name


def test_a_sequence_nobody_has_anything_for_gets_an_empty_proposal():
    chain = ChainDrafter([scripted("front", num_drafts=0), scripted("back", num_drafts=0)])
    proposal = chain.propose([ask(chain.begin(FIRST), FIRST)])[0]
    assert (len(proposal), proposal.drafter) == (0, "")


def test_all_members_observe_every_round_with_its_hidden_states():
    front, back = scripted("front"), scripted("back", target_layer_ids=(0, 2))
    chain = ChainDrafter([front, back])
    observation = Observation(committed_ids=(10,), target_hidden=torch.ones(2, 8), drafter="front")
    chain.observe(chain.begin(FIRST), observation)
    assert front.states[0].observations == [observation]
    assert back.states[0].observations == [observation]


def test_a_member_is_never_asked_for_more_than_it_can_draft():
    front = scripted("front", num_drafts=9, max_draft_tokens=3)
    chain = ChainDrafter([front, scripted("back", max_draft_tokens=5)])
    assert chain.traits.max_draft_tokens == 5
    assert len(chain.propose([ask(chain.begin(FIRST), FIRST, 5)])[0]) == 3


def test_traits_combine():
    plain = scripted("plain")
    sampled = scripted("sampled", target_layer_ids=(1, 2), draft_probs=torch.eye(100)[:4], confidence=(0.5,) * 4)
    traits = ChainDrafter([plain, sampled]).traits
    assert (traits.name, traits.target_layer_ids) == ("plain,sampled", (1, 2))
    assert traits.has_confidence
    assert not traits.is_deterministic
    assert ChainDrafter([plain, scripted("other")]).traits.is_deterministic


def test_members_that_cannot_be_chained_are_refused():
    with pytest.raises(ConfigError, match="at least two"):
        ChainDrafter([scripted("only")])
    with pytest.raises(ConfigError, match="listed twice"):
        ChainDrafter([scripted("same"), scripted("same")])
    with pytest.raises(PairError, match=r"a reads \[1\]; b reads \[2\]"):
        ChainDrafter([scripted("a", target_layer_ids=(1,)), scripted("b", target_layer_ids=(2,))])


def test_describe_lists_the_members():
    chain = ChainDrafter([NgramSimpleDrafter(NgramSimple(size_n=2)), scripted("back")])
    described = chain.describe()
    assert described["name"] == "ngram-simple,back"
    assert [member["name"] for member in described["members"]] == ["ngram-simple", "back"]


def test_a_draft_model_behind_ngram_drafts_what_it_would_draft_alone():
    model = tiny_target("llama", seed=1)
    ngram = NgramSimpleDrafter(NgramSimple(size_n=2, size_m=4, min_draft=1))
    chain = ChainDrafter([ngram, DraftModelDrafter(model, max_draft_tokens=3)])
    tokens = (5, 6, 7, 8, 5, 6)
    state = chain.begin(tokens[:4])
    assert chain.propose([ask(state, tokens[:4])])[0].drafter == "draft-simple"
    chain.observe(state, Observation(committed_ids=tokens[4:], drafter="draft-simple", num_drafted=3, num_accepted=1))
    assert chain.propose([ask(state, tokens)])[0].draft_ids == (7, 8, 5)
    chain.observe(state, Observation(committed_ids=(7, 9), drafter="ngram-simple", num_drafted=3, num_accepted=1))
    alone = DraftModelDrafter(model, max_draft_tokens=3)
    final = (*tokens, 7, 9)
    assert chain.propose([ask(state, final)])[0] == alone.propose([ask(alone.begin(final), final)])[0]
