"""With every drafter, over every kind of cache, alone and in a batch: the answer is plain decoding's, and after each
round the state is the one that a fresh pass over the committed tokens would leave."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from blockdraft.drafters.base import Drafter
from blockdraft.drafters.build import build_drafter
from blockdraft.drafters.chain import ChainDrafter
from blockdraft.drafters.config import NgramMapK, NgramMapK4v, NgramMod, NgramSimple, SpecConfig
from blockdraft.drafters.dflash import DFlashDrafter
from blockdraft.drafters.draft_model import DraftModelDrafter
from blockdraft.drafters.dspark import DSparkDrafter
from blockdraft.drafters.eagle3 import Eagle3Drafter
from blockdraft.engine import Engine, Request
from blockdraft.models.base import Segment, Target
from blockdraft.models.transformers_adapter import load_with_transformers
from blockdraft.testing.scripted import ScriptedDrafter
from blockdraft.testing.tiny_drafters import TinyDrafter, write_tiny_drafter
from blockdraft.testing.tiny_eagle3 import TinyEagle3, write_tiny_eagle3
from blockdraft.testing.tiny_models import tiny_packed_target, tiny_target, write_tiny_model

PROMPTS = ((5, 9, 5, 9, 5, 9, 5, 9, 5, 9), (1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3), (7,))
MAX_TOKENS = 24

TINY_NGRAMS = SpecConfig(
    types=("ngram-simple",),
    ngram_simple=NgramSimple(size_n=2, size_n_min=1, size_m=5, min_draft=1),
    ngram_map_k=NgramMapK(size_n=2, size_m=5),
    ngram_map_k4v=NgramMapK4v(size_n=2, size_m=5),
    ngram_mod=NgramMod(n_match=2, n_min=1, n_max=6),
)


def _ngram(name: str) -> Callable[[Target, Path], Drafter]:
    def build(target: Target, folder: Path) -> Drafter:
        from dataclasses import replace

        drafter = build_drafter(replace(TINY_NGRAMS, types=(name,)), target, None)
        assert drafter is not None
        return drafter

    return build


def _dflash(**options: object) -> Callable[[Target, Path], Drafter]:
    def build(target: Target, folder: Path) -> Drafter:
        path = write_tiny_drafter(folder, target.info, TinyDrafter(method="dflash", **options))
        return DFlashDrafter.load(path, target)

    return build


def _dspark(**options: object) -> Callable[[Target, Path], Drafter]:
    def build(target: Target, folder: Path) -> Drafter:
        path = write_tiny_drafter(folder, target.info, TinyDrafter(method="dspark", packaging="deepspec", **options))
        return DSparkDrafter.load(path, target)

    return build


def _eagle3(**options: object) -> Callable[[Target, Path], Drafter]:
    def build(target: Target, folder: Path) -> Drafter:
        return Eagle3Drafter.load(write_tiny_eagle3(folder, target.info, TinyEagle3(**options)), target)

    return build


def _draft_model(seed: int) -> Callable[[Target, Path], Drafter]:
    def build(target: Target, folder: Path) -> Drafter:
        return DraftModelDrafter(tiny_target("llama", seed, vocab_size=target.info.vocab_size), max_draft_tokens=4)

    return build


def _scripted(target: Target, folder: Path) -> Drafter:
    """Right for 0, 1, 2, ... slots in turn, and nothing at all in every fourth round."""
    answers = {prompt: plain_answer(target, prompt) for prompt in PROMPTS}
    return ScriptedDrafter(
        answers,
        vocab_size=target.info.vocab_size,
        num_drafts=lambda index: index % 4,
        num_right=lambda index: index % 3,
    )


def _chain(target: Target, folder: Path) -> Drafter:
    return ChainDrafter([_ngram("ngram-simple")(target, folder), _dflash()(target, folder)])


DRAFTERS: dict[str, Callable[[Target, Path], Drafter]] = {
    "ngram-simple": _ngram("ngram-simple"),
    "ngram-map-k": _ngram("ngram-map-k"),
    "ngram-map-k4v": _ngram("ngram-map-k4v"),
    "ngram-mod": _ngram("ngram-mod"),
    "draft-simple, another model": _draft_model(1),
    "draft-simple, the target itself": _draft_model(0),
    "dflash": _dflash(),
    "dflash, sliding causal": _dflash(sliding_window=6),
    "dflash, sliding non-causal": _dflash(sliding_window=6, is_causal=False),
    "dspark": _dspark(),
    "dspark, gated": _dspark(markov_head_type="gated"),
    "dspark, rnn": _dspark(markov_head_type="rnn"),
    "eagle3": _eagle3(),
    "eagle3, reduced vocabulary": _eagle3(draft_vocab_size=40),
    "eagle3, speculators, two layers": _eagle3(packaging="speculators", num_layers=2),
    "chain": _chain,
    "scripted": _scripted,
}


def _own(family: str) -> Callable[[Path], Target]:
    return lambda folder: tiny_target(family, 0)


def _generic(folder: Path) -> Target:
    path = write_tiny_model(folder / "target", "llama", 0)
    return load_with_transformers(path, device=torch.device("cpu"), dtype=torch.float32, notify=lambda message: None)


TARGETS: dict[str, Callable[[Path], Target]] = {
    "llama": _own("llama"),
    "qwen3": _own("qwen3"),
    "native": lambda folder: tiny_packed_target("qwen3"),
    "transformers": _generic,
}


TARGET_NAMES = [pytest.param(name, marks=pytest.mark.native) if name == "native" else name for name in TARGETS]


def requests_for(prompts: tuple[tuple[int, ...], ...]) -> list[Request]:
    return [Request(prompt_ids=prompt, max_tokens=MAX_TOKENS) for prompt in prompts]


def plain_answer(target: Target, prompt: tuple[int, ...]) -> tuple[int, ...]:
    return Engine(target).run(requests_for((prompt,)))[0].token_ids


@pytest.mark.parametrize("batch_size", [1, 3])
@pytest.mark.parametrize("target_name", TARGET_NAMES)
@pytest.mark.parametrize("drafter_name", DRAFTERS)
def test_greedy_answers_equal_plain_decoding(
    drafter_name: str, target_name: str, batch_size: int, tmp_path: Path
) -> None:
    target = TARGETS[target_name](tmp_path)
    drafter = DRAFTERS[drafter_name](target, tmp_path / "drafter")
    prompts = PROMPTS[:batch_size]
    # Small prefill chunks, so that features reach the drafter in pieces.
    generations = Engine(target, drafter=drafter, prefill_chunk=4).run(requests_for(prompts))
    assert [generation.token_ids for generation in generations] == [plain_answer(target, prompt) for prompt in prompts]
    assert sum(generation.stats.num_drafted for generation in generations) > 0


@pytest.mark.parametrize("target_name", TARGET_NAMES)
@pytest.mark.parametrize("drafter_name", ["ngram-mod", "dflash", "dspark", "eagle3", "chain", "scripted"])
def test_after_every_round_the_state_is_that_of_the_committed_tokens(
    drafter_name: str, target_name: str, tmp_path: Path
) -> None:
    """The next logits from the rolled-back cache equal those of a fresh cache, for each sequence of a batch."""
    target = TARGETS[target_name](tmp_path)
    engine = Engine(target, drafter=DRAFTERS[drafter_name](target, tmp_path / "drafter"))
    sequences = [engine.submit(request) for request in requests_for(PROMPTS)]
    while not all(sequence.is_finished for sequence in sequences):
        engine.step()
        for sequence in sequences:
            assert sequence.cache.length == len(sequence.token_ids) - 1
            anchor = sequence.token_ids[-1]
            kept = target.forward([Segment(token_ids=[anchor], cache=sequence.cache, num_logits=1)]).logits
            sequence.cache.rollback(len(sequence.token_ids) - 1)
            fresh = target.forward(
                [Segment(token_ids=sequence.token_ids, cache=target.new_cache(), num_logits=1)]
            ).logits
            torch.testing.assert_close(kept, fresh, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("num_drafts", "num_right", "rounds"),
    [
        (0, 0, 23),  # nothing drafted: a round for each token after the first
        (4, 0, 23),  # always wrong: the target's own token in each round
        (4, None, 5),  # always right: 5 tokens a round, 23 in 5 rounds
        (4, 2, 8),  # two right: 3 tokens a round, 23 in 8 rounds
        (7, None, 3),
    ],
)
def test_scripted_drafts_take_the_exact_number_of_rounds(num_drafts: int, num_right: int | None, rounds: int) -> None:
    target = tiny_target("llama", 0)
    answer = plain_answer(target, PROMPTS[0])
    drafter = ScriptedDrafter(
        {PROMPTS[0]: answer}, vocab_size=target.info.vocab_size, num_drafts=num_drafts, num_right=num_right
    )
    generation = Engine(target, drafter=drafter).run(requests_for(PROMPTS[:1]))[0]
    assert generation.token_ids == answer
    assert generation.stats.num_rounds == rounds
    assert generation.stats.num_emitted == MAX_TOKENS - 1
    if num_right is None:
        assert generation.stats.acceptance_rate == 1.0


def test_sequences_with_different_draft_lengths_share_a_pass() -> None:
    """Lengths 0, 1 and 3 in one batch, swapped every round; each sequence takes as many rounds as alone."""
    target = tiny_target("llama", 0)
    answers = {prompt: plain_answer(target, prompt) for prompt in PROMPTS}

    def drafter() -> ScriptedDrafter:
        return ScriptedDrafter(
            answers, vocab_size=target.info.vocab_size, num_drafts=lambda index: (0, 1, 3)[index % 3]
        )

    together = Engine(target, drafter=drafter()).run(requests_for(PROMPTS))
    for prompt, generation in zip(PROMPTS, together, strict=True):
        alone = Engine(target, drafter=drafter()).run(requests_for((prompt,)))[0]
        assert generation.token_ids == alone.token_ids == answers[prompt]
        assert generation.rounds == alone.rounds
