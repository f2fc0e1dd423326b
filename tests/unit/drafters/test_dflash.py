from pathlib import Path
from typing import Any

import pytest
import torch
from scipy.stats import chisquare

from blockdraft.core.random import PositionalRandom
from blockdraft.core.sampling import SamplingParams, shape_probs
from blockdraft.drafters.base import Ask, Observation, Proposal
from blockdraft.drafters.dflash import DFlashDrafter
from blockdraft.errors import ConfigError
from blockdraft.testing.tiny_drafters import TinyDrafter, write_tiny_drafter
from blockdraft.testing.tiny_models import tiny_target

TARGET = tiny_target("qwen3", seed=1, num_hidden_layers=4)
TOKENS = list(range(40, 50))
FEATURES = torch.randn(len(TOKENS) - 1, 2 * TARGET.info.hidden_size, generator=torch.Generator().manual_seed(3))
SAMPLED = SamplingParams(temperature=1.0)


def load(tmp_path: Path, spec: TinyDrafter | None = None, **options: Any) -> DFlashDrafter:
    return DFlashDrafter.load(write_tiny_drafter(tmp_path, TARGET.info, spec or TinyDrafter()), TARGET, **options)


def ask(drafter: DFlashDrafter, sampling: SamplingParams | None = None, count: int = 3, seed: int = 0) -> Ask:
    state = drafter.begin(TOKENS)
    drafter.observe(state, Observation(committed_ids=[TOKENS[-1]], target_hidden=FEATURES))
    return Ask(
        state=state,
        token_ids=TOKENS,
        num_draft_tokens=count,
        sampling=sampling or SamplingParams(),
        random=PositionalRandom(seed),
    )


def propose(drafter: DFlashDrafter, sampling: SamplingParams | None = None, count: int = 3, seed: int = 0) -> Proposal:
    return drafter.propose([ask(drafter, sampling, count, seed)])[0]


def test_a_greedy_request_gets_the_likeliest_tokens_and_no_distribution(tmp_path: Path) -> None:
    proposal = propose(load(tmp_path))
    assert len(proposal) == 3
    assert proposal.draft_probs is None
    assert proposal.confidence is None
    assert proposal.drafter == "draft-dflash"


def test_greedy_drafting_gives_a_sampled_request_the_same_tokens(tmp_path: Path) -> None:
    drafter = load(tmp_path, draft_sampling="greedy")
    assert drafter.traits.is_deterministic
    assert propose(drafter, SAMPLED) == propose(load(tmp_path))


def test_drafts_never_exceed_what_the_trained_block_predicts(tmp_path: Path) -> None:
    drafter = load(tmp_path, TinyDrafter(block_size=5))
    assert drafter.traits.max_draft_tokens == 4
    assert len(propose(drafter, count=50)) == 4
    assert len(propose(drafter, count=1)) == 1


def test_anchor_first_checkpoints_predict_from_the_anchors_row(tmp_path: Path) -> None:
    """DeepSpec's DFlash: one token more from the same block, and the first is the anchor row's."""
    drafter = load(tmp_path, TinyDrafter(packaging="deepspec", block_size=4))
    assert drafter.traits.max_draft_tokens == 4
    request = ask(drafter, count=4)
    proposal = drafter.propose([request])[0]
    ids = torch.tensor([TOKENS[-1], 3, 3, 3])
    with torch.inference_mode():
        hidden = drafter.runner.network.run_block(TARGET.embedding_weight[ids], [request.state.cache], [4])
    assert proposal.draft_ids == tuple((hidden @ TARGET.head_weight.T).argmax(-1).tolist())


def test_all_packagings_of_the_same_weights_draft_the_same(tmp_path: Path) -> None:
    drafts = {
        propose(load(tmp_path / packaging, TinyDrafter(packaging=packaging))).draft_ids
        for packaging in ("z-lab", "z-lab-nested", "speculators", "specforge")
    }
    assert len(drafts) == 1


def test_stored_copies_of_the_targets_tables_are_not_read(tmp_path: Path) -> None:
    """The tiny DeepSpec checkpoint stores noise under their names."""
    reserved = propose(load(tmp_path / "a"), count=3)
    copied = DFlashDrafter.load(
        write_tiny_drafter(tmp_path / "b", TARGET.info, TinyDrafter(packaging="deepspec"), sample_from_anchor=False),
        TARGET,
    )
    assert propose(copied, count=3) == reserved


def test_confidence_is_the_untempered_mass_of_the_likeliest_token(tmp_path: Path) -> None:
    drafter = load(tmp_path, with_confidence=True)
    assert drafter.traits.has_confidence
    assert not drafter.traits.confidence_is_sequential
    proposal = propose(drafter, SamplingParams(temperature=1.0))
    assert proposal.draft_probs is not None
    assert proposal.confidence == pytest.approx(proposal.draft_probs.amax(-1).tolist())
    assert propose(drafter, SamplingParams(temperature=0.3)).confidence == proposal.confidence


@pytest.mark.parametrize("reduced", [None, 12])
def test_sampled_tokens_follow_the_reported_distribution(reduced: int | None, tmp_path: Path) -> None:
    drafter = load(tmp_path, TinyDrafter(packaging="speculators", draft_vocab_size=reduced))
    sampling = SamplingParams(temperature=1.3, top_k=8)
    request = ask(drafter, sampling)
    counts = torch.zeros(3, TARGET.info.vocab_size)
    for seed in range(600):
        again = Ask(
            state=request.state,
            token_ids=TOKENS,
            num_draft_tokens=3,
            sampling=sampling,
            random=PositionalRandom(seed),
        )
        proposal = drafter.propose([again])[0]
        counts[torch.arange(3), torch.tensor(proposal.draft_ids)] += 1
    probs = proposal.draft_probs
    assert probs is not None
    torch.testing.assert_close(probs.sum(-1), torch.ones(3))
    for row, expected in zip(counts, probs, strict=True):
        assert row[expected == 0].sum() == 0
        seen = expected > 0
        assert chisquare(row[seen], expected[seen].double() / expected[seen].double().sum() * 600).pvalue > 1e-4


def test_reported_distributions_are_shaped_like_the_request(tmp_path: Path) -> None:
    drafter = load(tmp_path)
    sampling = SamplingParams(temperature=0.8, top_k=10, top_p=0.9, min_p=0.01)
    request = ask(drafter, sampling)
    proposal = drafter.propose([request])[0]
    with torch.inference_mode():
        _, logits = drafter._run_block([request], [3])
    torch.testing.assert_close(proposal.draft_probs, shape_probs(logits, sampling))


def test_the_draw_of_a_position_does_not_depend_on_the_batch(tmp_path: Path) -> None:
    drafter = load(tmp_path)
    greedy, first, second = (
        ask(drafter),
        ask(drafter, SAMPLED, seed=5),
        ask(drafter, SamplingParams(temperature=0.5), count=2, seed=6),
    )
    together = drafter.propose([second, greedy, first])
    for proposal, alone in zip(together, (second, greedy, first), strict=True):
        single = drafter.propose([alone])[0]
        assert proposal.draft_ids == single.draft_ids
        assert (proposal.draft_probs is None) == (single.draft_probs is None)


def test_a_reduced_vocabulary_drafts_only_its_own_tokens(tmp_path: Path) -> None:
    drafter = load(tmp_path, TinyDrafter(packaging="speculators", draft_vocab_size=12))
    assert drafter.choice.target_ids is not None
    allowed = set(drafter.choice.target_ids.tolist())
    for seed in range(20):
        assert set(propose(drafter, SAMPLED, seed=seed).draft_ids) <= allowed
    assert set(propose(drafter).draft_ids) <= allowed


def test_no_asks_no_proposals(tmp_path: Path) -> None:
    assert load(tmp_path).propose([]) == []


def test_describe_says_what_was_resolved(tmp_path: Path) -> None:
    described = load(tmp_path, TinyDrafter(packaging="deepspec")).describe()
    assert described["name"] == "draft-dflash"
    assert described["max_draft_tokens"] == 4
    assert described["anchor"] == {
        "anchor_predicts": True,
        "source": "family default: DeepSpec DSpark predicts from the anchor's row",
    }


def test_options_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'probabilistic' or 'greedy', not 'both'"):
        load(tmp_path / "a", draft_sampling="both")
    dspark = write_tiny_drafter(tmp_path / "b", TARGET.info, TinyDrafter(method="dspark", packaging="deepspec"))
    with pytest.raises(ConfigError, match="use --spec-type draft-dspark"):
        DFlashDrafter.load(dspark, TARGET)
