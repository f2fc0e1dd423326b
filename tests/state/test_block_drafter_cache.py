"""The context of a block drafter after many rounds equals the context computed at once."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from blockdraft.core.random import PositionalRandom
from blockdraft.core.sampling import SamplingParams
from blockdraft.drafters import block_drafter, block_network
from blockdraft.drafters.base import Ask, Observation
from blockdraft.drafters.dflash import DFlashDrafter
from blockdraft.models.base import Segment
from blockdraft.testing.tiny_drafters import TinyDrafter, write_tiny_drafter
from blockdraft.testing.tiny_models import tiny_target

TARGET = tiny_target("qwen3", seed=2, num_hidden_layers=4)
TOKENS = torch.randint(0, 96, (150,), generator=torch.Generator().manual_seed(0)).tolist()


def _ask(state: object, num_tokens: int, count: int = 3) -> Ask:
    return Ask(
        state=state,
        token_ids=TOKENS[:num_tokens],
        num_draft_tokens=count,
        sampling=SamplingParams(),
        random=PositionalRandom(0),
    )


def _features(drafter: DFlashDrafter) -> Tensor:
    cache = TARGET.new_cache()
    segment = Segment(token_ids=TOKENS, cache=cache, num_logits=0)
    hidden = TARGET.forward([segment], drafter.traits.target_layer_ids).target_hidden
    assert hidden is not None
    return hidden


def _observe(drafter: DFlashDrafter, state: object, rows: Tensor) -> None:
    drafter.observe(state, Observation(committed_ids=(), target_hidden=rows))


@pytest.mark.parametrize("window", [None, 8])
def test_context_after_many_rounds_equals_context_computed_at_once(window: int | None, tmp_path: Path) -> None:
    folder = write_tiny_drafter(tmp_path, TARGET.info, TinyDrafter(sliding_window=window))
    drafter = DFlashDrafter.load(folder, TARGET)
    features = _features(drafter)
    state, done = drafter.begin(TOKENS[:5]), 0
    for num_tokens in (6, 7, 11, 12, 40, 44, 45, 90, 130, 131):  # grows past the cache's first capacity
        _observe(drafter, state, features[done : num_tokens - 1])
        proposal = drafter.propose([_ask(state, num_tokens)])[0]
        done = num_tokens - 1
        fresh = drafter.begin(TOKENS)
        _observe(drafter, fresh, features[:done])
        assert drafter.propose([_ask(fresh, num_tokens)])[0] == proposal
        assert state.cache.length == fresh.cache.length == done
        for layer in range(2):
            for ours, theirs in zip(state.cache.read(layer, done), fresh.cache.read(layer, done), strict=True):
                torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)


def test_block_rows_leave_no_trace(tmp_path: Path) -> None:
    drafter = DFlashDrafter.load(write_tiny_drafter(tmp_path, TARGET.info, TinyDrafter()), TARGET)
    state = drafter.begin(TOKENS[:5])
    _observe(drafter, state, _features(drafter)[:20])
    first = drafter.propose([_ask(state, 21)])
    assert state.cache.length == 20
    drafter.propose([_ask(state, 21, count=1)])  # a shorter block sees fewer masks and may draft otherwise
    assert drafter.propose([_ask(state, 21)]) == first


def test_prompt_features_may_arrive_in_chunks(tmp_path: Path) -> None:
    drafter = DFlashDrafter.load(write_tiny_drafter(tmp_path, TARGET.info, TinyDrafter()), TARGET)
    features = _features(drafter)
    whole, chunked = drafter.begin(TOKENS), drafter.begin(TOKENS)
    _observe(drafter, whole, features[:60])
    for start, end in ((0, 25), (25, 25), (25, 26), (26, 60)):
        _observe(drafter, chunked, features[start:end])
    assert drafter.propose([_ask(whole, 61)]) == drafter.propose([_ask(chunked, 61)])


def test_features_cost_nothing_until_a_proposal_is_asked_for(tmp_path: Path) -> None:
    drafter = DFlashDrafter.load(write_tiny_drafter(tmp_path, TARGET.info, TinyDrafter()), TARGET)
    state = drafter.begin(TOKENS)
    _observe(drafter, state, _features(drafter)[:30])
    assert (state.cache.length, state.num_pending) == (0, 30)


def test_long_prompts_are_projected_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drafter = DFlashDrafter.load(write_tiny_drafter(tmp_path, TARGET.info, TinyDrafter()), TARGET)
    features = _features(drafter)
    whole, pieces = drafter.begin(TOKENS), drafter.begin(TOKENS)
    _observe(drafter, whole, features[:100])
    expected = drafter.propose([_ask(whole, 101)])
    monkeypatch.setattr(block_network, "MAX_CONTEXT_ROWS", 16)
    monkeypatch.setattr(block_drafter, "MAX_PENDING_ROWS", 40)
    for start in range(0, 100, 25):
        _observe(drafter, pieces, features[start : start + 25])
    assert (pieces.cache.length, pieces.num_pending) == (100, 0)
    assert drafter.propose([_ask(pieces, 101)]) == expected


def test_missing_features_are_an_error_and_not_a_guess(tmp_path: Path) -> None:
    drafter = DFlashDrafter.load(write_tiny_drafter(tmp_path, TARGET.info, TinyDrafter()), TARGET)
    state = drafter.begin(TOKENS[:5])
    _observe(drafter, state, _features(drafter)[:20])
    for num_tokens in (20, 22):
        with pytest.raises(RuntimeError, match=f"features of 20 tokens, but {num_tokens - 1} precede the anchor"):
            drafter.propose([_ask(state, num_tokens)])


def test_sequences_of_different_lengths_in_one_call_equal_single_calls(tmp_path: Path) -> None:
    folder = write_tiny_drafter(tmp_path, TARGET.info, TinyDrafter(sliding_window=8, block_size=6))
    drafter = DFlashDrafter.load(folder, TARGET)
    features = _features(drafter)

    def states() -> list[object]:
        made = [drafter.begin(TOKENS[:4]) for _ in range(4)]
        for state, length in zip(made, (1, 7, 64, 149), strict=True):
            _observe(drafter, state, features[:length])
        return made

    shapes = [(2, 5), (8, 1), (65, 3), (150, 4)]
    batched = drafter.propose([_ask(s, n, k) for s, (n, k) in zip(states(), shapes, strict=True)])
    single = [drafter.propose([_ask(s, n, k)])[0] for s, (n, k) in zip(states(), shapes, strict=True)]
    assert batched == single
    assert [len(proposal) for proposal in batched] == [5, 1, 3, 4]
