import pytest

from blockdraft.core.random import PositionalRandom
from blockdraft.core.sampling import SamplingParams
from blockdraft.drafters.base import Ask, Observation
from blockdraft.drafters.limit import LimitedDrafter
from blockdraft.testing.scripted import ScriptedDrafter


def test_asks_are_cut_and_everything_else_is_passed_on():
    inner = ScriptedDrafter({(1,): (2, 3, 4, 5, 6)}, vocab_size=10, num_drafts=5, target_layer_ids=(1,))
    drafter = LimitedDrafter(inner, 3)
    assert (drafter.traits.max_draft_tokens, drafter.traits.target_layer_ids) == (3, (1,))
    state = drafter.begin((1,))
    for wanted, given in ((5, 3), (2, 2)):
        request = Ask(
            state=state,
            token_ids=(1,),
            num_draft_tokens=wanted,
            sampling=SamplingParams(),
            random=PositionalRandom(0),
        )
        proposal = drafter.propose([request])[0]
        assert (len(proposal), proposal.drafter) == (given, "scripted")
    drafter.observe(state, Observation(committed_ids=(2,)))
    assert len(state.observations) == 1
    assert drafter.describe() == {"name": "scripted", "max_draft_tokens": 3}


def test_a_limit_cannot_raise_what_the_drafter_can_do():
    inner = ScriptedDrafter({(1,): (2,)}, vocab_size=10, max_draft_tokens=4)
    with pytest.raises(AssertionError):
        LimitedDrafter(inner, 5)
