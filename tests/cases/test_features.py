"""What a drafter is told about the target: the right layers, one row per committed token, none twice, none missing."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from blockdraft.core.sampling import SamplingParams
from blockdraft.drafters import block_drafter
from blockdraft.drafters.base import Ask, Drafter, DrafterTraits, Observation, Proposal
from blockdraft.drafters.chain import ChainDrafter
from blockdraft.drafters.dflash import DFlashDrafter
from blockdraft.drafters.draft_model import DraftModelDrafter
from blockdraft.drafters.dspark import DSparkDrafter
from blockdraft.engine import Engine, Request
from blockdraft.models.base import Segment
from blockdraft.testing.scripted import ScriptedDrafter
from blockdraft.testing.tiny_drafters import TinyDrafter, write_tiny_drafter
from blockdraft.testing.tiny_models import tiny_target

TARGET = tiny_target("qwen3", seed=2, num_hidden_layers=4, vocab_size=12)  # few tokens: random drafts are often kept
PROMPTS = ((1, 2, 3), (4, 4, 5, 6, 7, 8, 9, 10, 11, 0, 1), (3,))
MAX_TOKENS = 30
LAYERS = (1, 2)


def hidden_of(tokens: Sequence[int], layers: Sequence[int]) -> torch.Tensor:
    """The tapped states of all tokens but the last, in one fresh pass."""
    segment = Segment(token_ids=tokens[:-1], cache=TARGET.new_cache(), num_logits=0)
    hidden = TARGET.forward([segment], layers).target_hidden
    assert hidden is not None
    return hidden


def asked(prompts: Sequence[tuple[int, ...]] = PROMPTS) -> list[Request]:
    return [Request(prompt_ids=prompt, max_tokens=MAX_TOKENS) for prompt in prompts]


def plain_answers(prompts: Sequence[tuple[int, ...]] = PROMPTS) -> dict[tuple[int, ...], tuple[int, ...]]:
    return {answer.prompt_ids: answer.token_ids for answer in Engine(TARGET).run(asked(prompts))}


@pytest.mark.parametrize("prefill_chunk", [2, 512])
def test_features_are_the_outputs_of_the_named_layers_once_per_token(prefill_chunk):
    """atlas#394: layer ids off by one cost acceptance and nothing else shows it. vllm#52942: rounds without a draft.

    Sequences draft 0 to 4 tokens in turn and are right for some; the features of each, put together, are those of
    one pass over its tokens, in order.
    """
    answers = plain_answers()
    drafter = ScriptedDrafter(
        answers,
        vocab_size=TARGET.info.vocab_size,
        num_drafts=lambda index: (3, 0, 4, 1, 0)[index % 5],
        num_right=lambda index: (1, 0, 4, 0)[index % 4],
        target_layer_ids=LAYERS,
    )
    generations = Engine(TARGET, drafter=drafter, prefill_chunk=prefill_chunk).run(asked())
    for state, generation in zip(drafter.states, generations, strict=True):
        tokens = [*generation.prompt_ids, *generation.token_ids]
        seen = torch.cat([observation.target_hidden for observation in state.observations])
        torch.testing.assert_close(seen, hidden_of(tokens, LAYERS), atol=1e-4, rtol=1e-3)
        for shift in (-1, 1):
            assert (seen - hidden_of(tokens, [layer + shift for layer in LAYERS])).abs().max() > 0.1
        assert {len(observation.committed_ids) for observation in state.observations} >= {1, 2}
        assert {record.num_drafted for record in generation.rounds} >= {0, 1, 3}


class Rechecked(Drafter):
    """Proposes as its inner drafter does, and compares each proposal with that of a state made afresh."""

    def __init__(self, inner: Drafter) -> None:
        self.inner = inner
        self.num_compared = 0

    @property
    def traits(self) -> DrafterTraits:
        return self.inner.traits

    def begin(self, prompt_ids: Sequence[int]) -> Any:
        return self.inner.begin(prompt_ids)

    def observe(self, state: Any, observation: Observation) -> None:
        self.inner.observe(state, observation)

    def propose(self, asks: Sequence[Ask]) -> list[Proposal]:
        proposals = self.inner.propose(asks)
        for ask, proposal in zip(asks, proposals, strict=True):
            fresh = self.inner.begin(ask.token_ids[:-1])
            layers = self.traits.target_layer_ids
            hidden = hidden_of(ask.token_ids, layers) if layers else None
            self.inner.observe(fresh, Observation(committed_ids=ask.token_ids[-1:], target_hidden=hidden))
            expected = self.inner.propose([Ask(**{**vars(ask), "state": fresh})])[0]
            assert proposal.draft_ids == expected.draft_ids
            self.num_compared += 1
        return proposals


def dflash(folder: Path, **options: Any) -> DFlashDrafter:
    return DFlashDrafter.load(write_tiny_drafter(folder, TARGET.info, TinyDrafter(**options)), TARGET)


def sliding(folder: Path) -> DFlashDrafter:
    return dflash(folder, sliding_window=6)


def dspark(folder: Path) -> DSparkDrafter:
    drafter = TinyDrafter(method="dspark", packaging="deepspec", markov_head_type="rnn")
    return DSparkDrafter.load(write_tiny_drafter(folder, TARGET.info, drafter), TARGET, p_min=0.2)


def draft_simple(_: Path) -> DraftModelDrafter:
    return DraftModelDrafter(tiny_target("llama", 1, vocab_size=12), max_draft_tokens=4)


@pytest.mark.parametrize("build", [dflash, sliding, dspark, draft_simple], ids=lambda build: build.__name__)
def test_after_every_rollback_a_drafter_proposes_what_a_fresh_one_would(build: Callable[[Path], Drafter], tmp_path):
    """rMLX#436: a rollback into a scratch buffer inflates acceptance, and only this shows it.

    Also vllm#52942: with p_min and near the length limit, rounds without a draft come between others.
    """
    drafter = Rechecked(build(tmp_path))
    sampling = SamplingParams(temperature=2.0, seed=1)  # sampled drafts are kept more often
    requests = [replace(request, sampling=sampling) for request in asked()]
    generations = Engine(TARGET, drafter=drafter, prefill_chunk=4).run(requests)
    assert drafter.num_compared > 30
    assert sum(generation.stats.num_accepted for generation in generations) > 10


@pytest.mark.parametrize("build", [dflash, draft_simple], ids=lambda build: build.__name__)
def test_a_network_behind_another_drafter_is_ready_when_its_turn_comes(build: Callable[[Path], Drafter], tmp_path):
    """In a chain it observes rounds it did not draft; its context must hold these tokens too."""
    answers = plain_answers()
    first = ScriptedDrafter(
        answers, vocab_size=12, num_drafts=lambda index: 3 * (index % 2), num_right=lambda index: index % 3
    )
    second = Rechecked(build(tmp_path))
    generations = Engine(TARGET, drafter=ChainDrafter([first, second])).run(asked())
    assert {generation.prompt_ids: generation.token_ids for generation in generations} == answers
    winners = {name for generation in generations for name in generation.stats.rounds_by_drafter}
    assert winners >= {"scripted", second.traits.name}
    assert second.num_compared > 20


def test_the_block_begins_with_the_anchor_and_goes_on_with_masks(tmp_path, monkeypatch):
    """hipfire#483: without the anchor in slot 0, 1.46 tokens were accepted instead of 6.34."""
    drafter = dflash(tmp_path, block_size=5)
    blocks: list[torch.Tensor] = []
    run_block = drafter.runner.network.run_block

    def watched(embeddings, caches, counts):
        blocks.append(embeddings)
        return run_block(embeddings, caches, counts)

    monkeypatch.setattr(drafter.runner.network, "run_block", watched)
    answer = Engine(TARGET, drafter=drafter).run(asked(PROMPTS[:1]))[0]
    done = 0
    for block, record in zip(blocks, answer.rounds, strict=False):
        assert torch.equal(block[0], TARGET.embedding_weight[answer.token_ids[done]])
        assert torch.equal(block[1:], TARGET.embedding_weight[drafter.config.mask_token_id].expand(len(block) - 1, -1))
        done += record.num_emitted


def test_only_a_full_attention_layer_sees_past_the_window(tmp_path):
    """z-lab/dflash#66, Rapid-MLX#2586: a sliding drafter run with full attention fails once the context is longer.

    Layers with a window of 6 forget all features but the newest; how many depends on the number of layers.
    """
    tokens = [place % 12 for place in range(40)]
    features = hidden_of(tokens, (0, 2))
    changed = features.clone()
    changed[:20] += 1.0
    for window, is_forgotten in ((6, True), (None, False)):
        drafter = dflash(tmp_path / str(window), sliding_window=window)
        assert {layer.window for layer in drafter.config.layers} == {window}
        rows = []
        for given in (features, changed):
            state = drafter.begin(tokens)
            drafter.observe(state, Observation(committed_ids=tokens[-1:], target_hidden=given))
            with torch.inference_mode():
                drafter._absorb([state])
                embeddings = TARGET.embedding_weight[torch.tensor([tokens[-1], 3, 3, 3])]
                rows.append(drafter.runner.network.run_block(embeddings, [state.cache], [4]))
        assert torch.equal(rows[0], rows[1]) == is_forgotten


def test_features_that_nobody_asks_for_do_not_pile_up(tmp_path, monkeypatch):
    """They are several times as wide as what is made of them."""
    monkeypatch.setattr(block_drafter, "MAX_PENDING_ROWS", 5)
    monkeypatch.setattr(block_drafter, "TAIL_ROWS", 3)
    answers = plain_answers()
    busy = ScriptedDrafter(answers, vocab_size=12, num_drafts=3, num_right=0)
    idle = dflash(tmp_path)
    engine = Engine(TARGET, drafter=ChainDrafter([busy, idle]))
    sequence = engine.submit(asked()[0])
    while not sequence.is_finished:
        engine.step()
        state = sequence.draft_state[1]
        assert state.num_pending <= 5
        assert state.cache.length + state.num_pending == len(sequence.token_ids) - 1
    assert state.cache.length > 20
    assert sequence.to_generation("").token_ids == answers[PROMPTS[0]]
