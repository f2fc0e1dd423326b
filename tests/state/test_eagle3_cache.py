"""The rows of an EAGLE-3 drafter after many rounds equal the rows computed at once."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from blockdraft.core.random import PositionalRandom
from blockdraft.core.sampling import SamplingParams
from blockdraft.drafters import eagle3
from blockdraft.drafters.base import Ask, Observation
from blockdraft.drafters.eagle3 import Eagle3Drafter
from blockdraft.engine import Engine, Request
from blockdraft.models.base import Segment
from blockdraft.testing.tiny_eagle3 import TinyEagle3, write_tiny_eagle3
from blockdraft.testing.tiny_models import tiny_target

TARGET = tiny_target("qwen3", seed=2, num_hidden_layers=4)
TOKENS = torch.randint(0, 96, (150,), generator=torch.Generator().manual_seed(0)).tolist()
HEADS = {
    "one layer": TinyEagle3(),
    "window": TinyEagle3(sliding_window=8),
    "two layers": TinyEagle3(packaging="speculators", num_layers=2, feature_norm="each"),
}


def _drafter(folder: Path, head: TinyEagle3 = HEADS["one layer"]) -> Eagle3Drafter:
    return Eagle3Drafter.load(write_tiny_eagle3(folder, TARGET.info, head), TARGET, max_draft_tokens=4)


def _ask(state: object, num_tokens: int, count: int = 4) -> Ask:
    return Ask(
        state=state,
        token_ids=TOKENS[:num_tokens],
        num_draft_tokens=count,
        sampling=SamplingParams(),
        random=PositionalRandom(0),
    )


def _features(drafter: Eagle3Drafter) -> Tensor:
    segment = Segment(token_ids=TOKENS, cache=TARGET.new_cache(), num_logits=0)
    hidden = TARGET.forward([segment], drafter.traits.target_layer_ids).target_hidden
    assert hidden is not None
    return hidden


def _observe(drafter: Eagle3Drafter, state: object, rows: Tensor) -> None:
    drafter.observe(state, Observation(committed_ids=(), target_hidden=rows))


def _assert_same_rows(drafter: Eagle3Drafter, ours: eagle3.Eagle3State, theirs: eagle3.Eagle3State) -> None:
    assert ours.cache.length == theirs.cache.length
    for layer in range(len(drafter.network.layers)):
        pairs = zip(ours.cache.read(layer, ours.cache.length), theirs.cache.read(layer, ours.cache.length), strict=True)
        for kept, fresh in pairs:
            torch.testing.assert_close(kept, fresh, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(ours.last_hidden, theirs.last_hidden, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", HEADS)
def test_rows_after_many_rounds_equal_rows_computed_at_once(name: str, tmp_path: Path) -> None:
    drafter = _drafter(tmp_path, HEADS[name])
    features = _features(drafter)
    state, done = drafter.begin(TOKENS[:5]), 0
    for num_tokens in (6, 7, 11, 12, 40, 44, 45, 90, 130, 131):  # grows past the cache's first capacity
        _observe(drafter, state, features[done : num_tokens - 1])
        proposal = drafter.propose([_ask(state, num_tokens)])[0]
        done = num_tokens - 1
        fresh = drafter.begin(TOKENS)
        _observe(drafter, fresh, features[:done])
        assert drafter.propose([_ask(fresh, num_tokens)])[0] == proposal
        assert state.cache.length == done
        _assert_same_rows(drafter, state, fresh)


def test_in_the_engine_the_rows_after_every_round_are_those_of_the_committed_tokens(tmp_path: Path) -> None:
    """Real rounds, a batch of three: accepted drafts are computed again from the target's own features."""
    drafter = _drafter(tmp_path)
    engine = Engine(TARGET, drafter=drafter, prefill_chunk=4)
    prompts = [TOKENS[:9], TOKENS[20:27], TOKENS[40:41]]
    sequences = [engine.submit(Request(prompt_ids=tuple(prompt), max_tokens=20)) for prompt in prompts]
    num_checked = 0
    while not all(sequence.is_finished for sequence in sequences):
        engine.step()
        for sequence in sequences:
            if sequence.is_finished:
                continue
            state, tokens = sequence.draft_state, sequence.token_ids
            assert state.num_held == len(tokens) - 1
            segment = Segment(token_ids=tokens[:-1], cache=TARGET.new_cache(), num_logits=0)
            fresh = drafter.begin(tokens)
            _observe(drafter, fresh, TARGET.forward([segment], drafter.traits.target_layer_ids).target_hidden)
            asks = [
                Ask(
                    state=own,
                    token_ids=tokens,
                    num_draft_tokens=4,
                    sampling=SamplingParams(),
                    random=PositionalRandom(0),
                )
                for own in (state, fresh)
            ]
            ours, theirs = (drafter.propose([ask])[0] for ask in asks)
            assert ours == theirs
            _assert_same_rows(drafter, state, fresh)
            num_checked += 1
    assert num_checked > 20


def test_the_walk_leaves_no_trace(tmp_path: Path) -> None:
    drafter = _drafter(tmp_path)
    state = drafter.begin(TOKENS[:5])
    _observe(drafter, state, _features(drafter)[:20])
    first = drafter.propose([_ask(state, 21)])
    assert state.cache.length == 20
    assert drafter.propose([_ask(state, 21, count=1)])[0].draft_ids == first[0].draft_ids[:1]
    assert drafter.propose([_ask(state, 21)]) == first


def test_long_prompts_are_taken_in_by_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drafter = _drafter(tmp_path)
    features = _features(drafter)
    whole, pieces = drafter.begin(TOKENS), drafter.begin(TOKENS)
    _observe(drafter, whole, features[:100])
    expected = drafter.propose([_ask(whole, 101)])
    monkeypatch.setattr(eagle3, "CATCH_UP_ROWS", 16)
    monkeypatch.setattr(eagle3, "MAX_PENDING_PIECES", 2)
    for start in range(0, 100, 10):
        _observe(drafter, pieces, features[start : start + 10])
    assert pieces.num_held == 100
    assert len(pieces.pending) <= 2
    assert drafter.propose([_ask(pieces, 101)]) == expected
    _assert_same_rows(drafter, pieces, whole)


def test_missing_features_are_an_error_and_not_a_guess(tmp_path: Path) -> None:
    drafter = _drafter(tmp_path)
    state = drafter.begin(TOKENS[:5])
    _observe(drafter, state, _features(drafter)[:20])
    for num_tokens in (20, 22):
        with pytest.raises(RuntimeError, match=f"features of 20 tokens, but {num_tokens - 1} precede the anchor"):
            drafter.propose([_ask(state, num_tokens)])


def test_sequences_of_different_lengths_in_one_call_equal_single_calls(tmp_path: Path) -> None:
    drafter = _drafter(tmp_path, TinyEagle3(sliding_window=8, draft_vocab_size=40))
    features = _features(drafter)

    def states() -> list[object]:
        made = [drafter.begin(TOKENS[:4]) for _ in range(4)]
        for state, length in zip(made, (1, 7, 64, 149), strict=True):
            _observe(drafter, state, features[:length])
        return made

    shapes = [(2, 4), (8, 1), (65, 3), (150, 4)]
    batched = drafter.propose([_ask(s, n, k) for s, (n, k) in zip(states(), shapes, strict=True)])
    single = [drafter.propose([_ask(s, n, k)])[0] for s, (n, k) in zip(states(), shapes, strict=True)]
    assert batched == single
    assert [len(proposal) for proposal in batched] == [4, 1, 3, 4]
