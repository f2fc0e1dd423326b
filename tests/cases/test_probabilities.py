"""Sampled drafts are checked against the distribution they were really drawn from, so answers keep the target's.

z-lab/dflash#74, DeepSpec#31, transformers#47932: with a wrong q every answer looks fine and the distribution is
off. `tests/exact` enumerates toy models; here real networks draft, and the answers are counted.
"""

from collections import Counter
from collections.abc import Callable
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

from blockdraft.core.acceptance import AcceptanceStats
from blockdraft.core.sampling import SamplingParams, shape_probs
from blockdraft.drafters.base import Drafter
from blockdraft.drafters.chain import ChainDrafter
from blockdraft.drafters.config import NgramSimple, SpecConfig
from blockdraft.drafters.dflash import DFlashDrafter
from blockdraft.drafters.draft_model import DraftModelDrafter
from blockdraft.drafters.dspark import DSparkDrafter
from blockdraft.drafters.ngram import NgramSimpleDrafter
from blockdraft.engine import Engine
from blockdraft.models.base import Segment
from blockdraft.testing.tiny_drafters import TinyDrafter, write_tiny_drafter
from blockdraft.testing.tiny_models import tiny_target

VOCAB = 5
PROMPT = (1, 4, 2, 1, 4)
NUM_SAMPLES = 900
P_MIN = 0.4
TARGET = tiny_target("llama", vocab_size=VOCAB)
SAMPLING = SamplingParams(temperature=2.0, min_p=0.02)


def dflash(folder: Path) -> DFlashDrafter:
    return DFlashDrafter.load(write_tiny_drafter(folder, TARGET.info, TinyDrafter(block_size=4)), TARGET)


def dflash_reduced(folder: Path) -> DFlashDrafter:
    """Two tokens of the target cannot be drafted at all."""
    drafter = TinyDrafter(packaging="speculators", draft_vocab_size=3)
    return DFlashDrafter.load(write_tiny_drafter(folder, TARGET.info, drafter), TARGET)


def dspark(folder: Path) -> DSparkDrafter:
    """q is the Markov-corrected distribution of the token before, and the walk stops at low confidence."""
    drafter = TinyDrafter(method="dspark", packaging="deepspec", block_size=4)
    return DSparkDrafter.load(write_tiny_drafter(folder, TARGET.info, drafter), TARGET, p_min=P_MIN)


def draft_simple(folder: Path) -> DraftModelDrafter:
    return DraftModelDrafter(tiny_target("llama", 1, vocab_size=VOCAB), max_draft_tokens=3, p_min=P_MIN)


def chain(folder: Path) -> ChainDrafter:
    """Copied tokens have no q and are verified by `match`; sampled ones by rejection, in the same answer."""
    ngram = NgramSimple(size_n=1, size_m=3, min_draft=1)
    return ChainDrafter([NgramSimpleDrafter(ngram), dflash(folder)])


def expected_counts() -> np.ndarray:
    """The joint distribution of the second and third token of the answer, [V * V], by passes over all prefixes."""
    prefixes = [[*PROMPT, *rest] for size in range(3) for rest in product(range(VOCAB), repeat=size)]
    segments = [Segment(token_ids=prefix, cache=TARGET.new_cache(), num_logits=1) for prefix in prefixes]
    rows = shape_probs(TARGET.forward(segments).logits.double(), SAMPLING).numpy()
    first, second, third = rows[0], rows[1 : 1 + VOCAB], rows[1 + VOCAB :].reshape(VOCAB, VOCAB, VOCAB)
    joint = np.einsum("a,ab,abc->bc", first, second, third)
    assert joint.sum() == pytest.approx(1)
    return joint.ravel()


BUILDS = [dflash, dflash_reduced, dspark, draft_simple, chain]


@pytest.mark.parametrize(
    ("build", "rule"),
    [*((build, "auto") for build in BUILDS), (chain, "rejection")],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_sampled_answers_have_the_targets_distribution(build: Callable[[Path], Drafter], rule, tmp_path):
    engine = Engine(TARGET, drafter=build(tmp_path), spec=SpecConfig(rule=rule, p_min=P_MIN), max_running=100)
    answers = engine.generate_batch([PROMPT], num_samples=NUM_SAMPLES, max_tokens=4, sampling=SAMPLING)
    stats = AcceptanceStats.merge(answer.stats for answer in answers)
    assert 0.1 < stats.acceptance_rate < 0.9  # both branches are taken
    if build is chain:
        assert min(stats.rounds_by_drafter.values()) > 100  # of both members, and of rounds without a draft
    counts = Counter(answer.token_ids[1:3] for answer in answers)
    observed = np.array([counts[pair] for pair in product(range(VOCAB), repeat=2)])
    expected = expected_counts()
    assert observed[expected == 0].sum() == 0
    seen = expected > 4 / NUM_SAMPLES
    folded = [np.append(values[seen], values[~seen].sum()) for values in (observed, expected * NUM_SAMPLES)]
    assert chisquare(*folded).pvalue > 1e-3


@pytest.mark.parametrize("build", [dflash, dspark, draft_simple], ids=lambda build: build.__name__)
def test_reported_probabilities_are_those_of_the_drawn_tokens(build: Callable[[Path], Drafter], tmp_path):
    """Rows and tokens stay together, also in drafts that were cut: no drawn token has probability zero."""
    drafter = build(tmp_path)
    rows: list[tuple[int, torch.Tensor]] = []
    propose = drafter.propose

    def watched(asks):
        proposals = propose(asks)
        for proposal in proposals:
            if proposal:
                assert len(proposal.draft_probs) == len(proposal)
                rows.extend(zip(proposal.draft_ids, proposal.draft_probs, strict=True))
        return proposals

    drafter.propose = watched
    Engine(TARGET, drafter=drafter).generate_batch([PROMPT], num_samples=20, max_tokens=12, sampling=SAMPLING)
    assert len(rows) > 100
    for draft_id, probs in rows:
        assert probs.shape == (VOCAB,)
        assert float(probs.sum()) == pytest.approx(1, abs=1e-5)
        assert probs[draft_id] > 0
