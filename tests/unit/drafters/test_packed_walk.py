"""DSpark's greedy walk on the native kernels, against the same drafter walking in torch."""

from pathlib import Path

import pytest

from blockdraft.core.random import PositionalRandom
from blockdraft.core.sampling import SamplingParams
from blockdraft.drafters.base import Ask, Observation
from blockdraft.drafters.block_runner import PackedRunner
from blockdraft.drafters.dspark import DSparkDrafter
from blockdraft.models.base import Segment
from blockdraft.testing.tiny_drafters import TinyDrafter, write_tiny_drafter
from blockdraft.testing.tiny_models import tiny_packed_target

pytestmark = pytest.mark.native

SPEC = TinyDrafter(method="dspark", packaging="deepspec", block_size=5, markov_rank=32)
TOKENS = list(range(40, 50))


@pytest.fixture(scope="module")
def target():
    return tiny_packed_target("qwen3")


def proposals(drafter: DSparkDrafter, target, *, walks_in_torch: bool = False, sampling: SamplingParams | None = None):
    """Draft 5, 1 and 3 tokens behind three texts."""
    assert drafter._packed_walk
    if walks_in_torch:
        drafter._packed_walk = None
    asks = []
    for count, length in ((5, 10), (1, 4), (3, 7)):
        state, ids = drafter.begin(TOKENS), TOKENS[:length]
        prompt = Segment(token_ids=ids, cache=target.new_cache(), num_logits=0)
        output = target.forward([prompt], drafter.traits.target_layer_ids)
        drafter.observe(state, Observation(committed_ids=(), target_hidden=output.target_hidden[:-1]))
        asks.append(
            Ask(
                state=state,
                token_ids=ids,
                num_draft_tokens=count,
                sampling=sampling or SamplingParams(),
                random=PositionalRandom(0),
            )
        )
    return drafter.propose(asks)


def test_tokens_and_confidence_are_those_of_torch(target, tmp_path: Path) -> None:
    folder = write_tiny_drafter(tmp_path, target.info, SPEC)
    native = proposals(DSparkDrafter.load(folder, target, with_confidence=True), target)
    torch_walk = proposals(DSparkDrafter.load(folder, target, with_confidence=True), target, walks_in_torch=True)
    assert [len(proposal) for proposal in native] == [5, 1, 3]
    for ours, theirs in zip(native, torch_walk, strict=True):
        assert (ours.draft_ids, ours.draft_probs, ours.drafter) == (theirs.draft_ids, None, theirs.drafter)
        assert ours.confidence == pytest.approx(theirs.confidence, abs=1e-5)


def test_the_draft_ends_before_the_first_slot_below_p_min(target, tmp_path: Path) -> None:
    folder = write_tiny_drafter(tmp_path, target.info, SPEC)
    full = proposals(DSparkDrafter.load(folder, target, with_confidence=True), target)
    p_min = sorted(value for proposal in full for value in proposal.confidence)[3]
    cut = proposals(DSparkDrafter.load(folder, target, p_min=p_min), target)
    kept = [next((slot for slot, value in enumerate(whole.confidence) if value < p_min), len(whole)) for whole in full]
    assert sum(kept) < 9
    assert cut == [whole.cut(count) for whole, count in zip(full, kept, strict=True)]


def test_who_walks_where(target, tmp_path: Path) -> None:
    plain = write_tiny_drafter(tmp_path / "plain", target.info, SPEC)
    gated = write_tiny_drafter(
        tmp_path / "gated", target.info, TinyDrafter(method="dspark", markov_head_type="gated", packaging="deepspec")
    )
    drafter = DSparkDrafter.load(plain, target)
    assert drafter._packed_walk
    capped = write_tiny_drafter(tmp_path / "capped", target.info, SPEC, final_logit_softcapping=20.0)
    assert DSparkDrafter.load(gated, target)._packed_walk is None
    assert DSparkDrafter.load(capped, target)._packed_walk is None
    sampled = proposals(drafter, target, sampling=SamplingParams(temperature=1.0))
    assert all(proposal.draft_probs is not None for proposal in sampled)


def test_the_embedding_is_the_targets_and_no_copy_of_it(target, tmp_path: Path) -> None:
    drafter = DSparkDrafter.load(write_tiny_drafter(tmp_path, target.info, SPEC), target)
    assert isinstance(drafter.runner, PackedRunner)
    assert drafter.runner.network.embedding.data is target.network.embedding.data
