from pathlib import Path
from typing import Any

import pytest
import torch
from scipy.stats import chisquare

from blockdraft.core.random import PositionalRandom
from blockdraft.core.sampling import SamplingParams
from blockdraft.drafters.base import Ask, Observation, Proposal
from blockdraft.drafters.dflash import DFlashDrafter
from blockdraft.drafters.dspark import DSparkDrafter
from blockdraft.errors import ConfigError
from blockdraft.testing.tiny_drafters import TinyDrafter, write_tiny_drafter
from blockdraft.testing.tiny_models import tiny_target

TARGET = tiny_target("qwen3", seed=1, num_hidden_layers=4)
TOKENS = list(range(40, 50))
FEATURES = torch.randn(len(TOKENS) - 1, 2 * TARGET.info.hidden_size, generator=torch.Generator().manual_seed(3))
SAMPLED = SamplingParams(temperature=1.0)
DSPARK = TinyDrafter(method="dspark", packaging="deepspec", block_size=5)


def load(tmp_path: Path, spec: TinyDrafter = DSPARK, **options: Any) -> DSparkDrafter:
    return DSparkDrafter.load(write_tiny_drafter(tmp_path, TARGET.info, spec), TARGET, **options)


def ask(
    drafter: DSparkDrafter | DFlashDrafter,
    sampling: SamplingParams | None = None,
    *,
    count: int = 5,
    seed: int = 0,
    length: int = len(TOKENS),
) -> Ask:
    state = drafter.begin(TOKENS)
    drafter.observe(state, Observation(committed_ids=(), target_hidden=FEATURES[: length - 1]))
    return Ask(
        state=state,
        token_ids=TOKENS[:length],
        num_draft_tokens=count,
        sampling=sampling or SamplingParams(),
        random=PositionalRandom(seed),
    )


def many(drafter: DSparkDrafter, sampling: SamplingParams, num_seeds: int, count: int) -> list[Proposal]:
    request = ask(drafter, sampling)
    return drafter.propose(
        [
            Ask(
                state=request.state,
                token_ids=TOKENS,
                num_draft_tokens=count,
                sampling=sampling,
                random=PositionalRandom(seed),
            )
            for seed in range(num_seeds)
        ]
    )


def test_a_block_of_b_rows_drafts_b_tokens(tmp_path: Path) -> None:
    drafter = load(tmp_path)
    assert drafter.traits.max_draft_tokens == 5
    proposal = drafter.propose([ask(drafter, count=99)])[0]
    assert len(proposal) == 5
    assert proposal.drafter == "draft-dspark"
    assert proposal.draft_probs is None
    assert proposal.confidence is None


def test_a_reserved_anchor_row_costs_one_token(tmp_path: Path) -> None:
    folder = write_tiny_drafter(tmp_path, TARGET.info, DSPARK, sample_from_anchor=False)
    drafter = DSparkDrafter.load(folder, TARGET)
    assert drafter.traits.max_draft_tokens == 4
    assert len(drafter.propose([ask(drafter)])[0]) == 4


def test_a_slots_distribution_depends_on_the_token_sampled_before_it(tmp_path: Path) -> None:
    proposals = many(load(tmp_path), SamplingParams(temperature=2.0), 60, count=3)
    by_prefix: dict[tuple[int, ...], list[torch.Tensor]] = {}
    for proposal in proposals:
        assert proposal.draft_probs is not None
        for slot in range(3):
            by_prefix.setdefault(proposal.draft_ids[:slot], []).append(proposal.draft_probs[slot])
    for rows in by_prefix.values():
        for row in rows[1:]:  # the same prefix gives the same distribution
            torch.testing.assert_close(row, rows[0], atol=1e-6, rtol=1e-4)
    second_slots = [rows[0] for prefix, rows in by_prefix.items() if len(prefix) == 1]
    assert len(second_slots) > 5
    assert all((row - second_slots[0]).abs().max() > 1e-3 for row in second_slots[1:])


@pytest.mark.parametrize("slot", [0, 1])
def test_sampled_tokens_follow_the_distribution_of_their_slot(slot: int, tmp_path: Path) -> None:
    sampling = SamplingParams(temperature=1.0, top_k=4)
    proposals = many(load(tmp_path), sampling, 3000, count=slot + 1)
    prefixes = [proposal.draft_ids[:slot] for proposal in proposals]
    common = max(set(prefixes), key=prefixes.count)
    chosen = [proposal for proposal, prefix in zip(proposals, prefixes, strict=True) if prefix == common]
    expected = chosen[0].draft_probs
    assert expected is not None
    row = expected[slot].double()
    counts = torch.bincount(torch.tensor([proposal.draft_ids[slot] for proposal in chosen]), minlength=len(row))
    assert counts[row == 0].sum() == 0
    seen = row > 0
    assert chisquare(counts[seen], row[seen] / row[seen].sum() * len(chosen)).pvalue > 1e-4


@pytest.mark.parametrize("kind", ["vanilla", "gated", "rnn"])
def test_asks_of_different_lengths_and_kinds_equal_single_asks(kind: str, tmp_path: Path) -> None:
    spec = TinyDrafter(method="dspark", packaging="deepspec", block_size=5, markov_head_type=kind)
    drafter = load(tmp_path, spec, with_confidence=True)

    def asks() -> list[Ask]:
        return [
            ask(drafter, count=2, length=4),
            ask(drafter, SAMPLED, count=5, seed=3),
            ask(drafter, count=1),
            ask(drafter, SamplingParams(temperature=0.6), count=4, seed=8, length=7),
            ask(drafter, count=5, length=9),
        ]

    together = drafter.propose(asks())
    assert [len(proposal) for proposal in together] == [2, 5, 1, 4, 5]
    for proposal, alone in zip(together, asks(), strict=True):
        single = drafter.propose([alone])[0]
        assert proposal.draft_ids == single.draft_ids
        assert proposal.confidence == pytest.approx(single.confidence, abs=1e-5)
        if single.draft_probs is not None:
            torch.testing.assert_close(proposal.draft_probs, single.draft_probs, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("sampling", [SamplingParams(), SAMPLED])
def test_the_walk_stops_before_the_first_slot_below_p_min(sampling: SamplingParams, tmp_path: Path) -> None:
    full = many(load(tmp_path / "a", with_confidence=True), sampling, 8, count=5)
    values = sorted(value for proposal in full for value in proposal.confidence or ())
    p_min = values[len(values) // 3]
    cut = many(load(tmp_path / "a", p_min=p_min), sampling, 8, count=5)
    lengths = set()
    for whole, short in zip(full, cut, strict=True):
        assert whole.confidence is not None
        kept = next((slot for slot, value in enumerate(whole.confidence) if value < p_min), 5)
        lengths.add(kept)
        assert short.draft_ids == whole.draft_ids[:kept]
        assert short.confidence == pytest.approx(whole.confidence[:kept])
        assert (short.draft_probs is None) == (sampling.is_greedy or kept == 0)
    assert min(lengths) < 5


def test_stopping_never_depends_on_the_token_it_decides_about(tmp_path: Path) -> None:
    """Whether slot k is drafted is a function of the tokens before k: equal prefixes, equal decisions."""
    sampling = SamplingParams(temperature=2.0)
    full = many(load(tmp_path, with_confidence=True), sampling, 50, count=3)
    middle = sorted(proposal.confidence[1] for proposal in full if proposal.confidence)[25]
    first = full[0].confidence
    assert first is not None
    proposals = many(load(tmp_path, p_min=min(middle, first[0])), sampling, 200, count=3)
    decisions: dict[tuple[int, ...], set[bool]] = {}
    for proposal in proposals:
        for slot in range(min(len(proposal) + 1, 3)):
            decisions.setdefault(proposal.draft_ids[:slot], set()).add(len(proposal) > slot)
    assert all(len(outcomes) == 1 for outcomes in decisions.values())
    assert {True, False} == set().union(*decisions.values())


def test_nothing_is_drafted_if_the_first_slot_is_below_p_min(tmp_path: Path) -> None:
    drafter = load(tmp_path, p_min=1.0)
    assert drafter.propose([ask(drafter, SAMPLED), ask(drafter)]) == [
        Proposal(confidence=(), drafter="draft-dspark"),
        Proposal(confidence=(), drafter="draft-dspark"),
    ]


@pytest.mark.parametrize(("head", "sequential"), [("hidden", False), ("hidden+markov", True)])
def test_confidence_with_markov_input_depends_on_the_tokens_before(head: Any, sequential: bool, tmp_path: Path) -> None:
    spec = TinyDrafter(method="dspark", packaging="deepspec", confidence_head=head)
    drafter = load(tmp_path, spec, with_confidence=True)
    assert drafter.traits.confidence_is_sequential == sequential
    proposals = many(drafter, SAMPLED, 20, count=4)
    second = {round(proposal.confidence[1], 5) for proposal in proposals if proposal.confidence}
    assert (len(second) > 1) == sequential
    assert len({round(proposal.confidence[0], 5) for proposal in proposals if proposal.confidence}) == 1


def test_without_a_markov_head_the_slots_are_those_of_dflash(tmp_path: Path) -> None:
    spec = TinyDrafter(method="dspark", packaging="deepspec", markov_rank=0, confidence_head="hidden")
    drafter = load(tmp_path / "a", spec, with_confidence=True)
    bare = TinyDrafter(packaging="deepspec")
    dflash = DFlashDrafter.load(write_tiny_drafter(tmp_path / "b", TARGET.info, bare), TARGET)
    assert drafter.propose([ask(drafter)])[0].draft_ids == dflash.propose([ask(dflash)])[0].draft_ids


def test_the_soft_cap_applies_to_base_logits_and_not_to_the_bias(tmp_path: Path) -> None:
    folder = write_tiny_drafter(tmp_path, TARGET.info, DSPARK, final_logit_softcapping=0.01)
    drafter = DSparkDrafter.load(folder, TARGET)
    assert drafter._markov is not None
    # With base logits capped to almost nothing, only the bias of the token before decides.
    ids = [TOKENS[-1], *drafter.propose([ask(drafter)])[0].draft_ids]
    biases = drafter._markov.w1[torch.tensor(ids[:-1])] @ drafter._markov.w2.T
    assert ids[1:] == biases.argmax(-1).tolist()


def test_a_reduced_vocabulary_feeds_target_ids_back(tmp_path: Path) -> None:
    spec = TinyDrafter(method="dspark", packaging="speculators", draft_vocab_size=10, block_size=5)
    drafter = load(tmp_path, spec)
    proposal = drafter.propose([ask(drafter, SAMPLED)])[0]
    assert drafter.choice.target_ids is not None
    assert proposal.draft_probs is not None
    assert set(proposal.draft_ids) <= set(drafter.choice.target_ids.tolist())
    assert proposal.draft_probs.shape == (5, TARGET.info.vocab_size)
    assert (proposal.draft_probs > 0).sum(-1).max() <= 10


def test_describe_says_which_key_settled_the_anchor(tmp_path: Path) -> None:
    spec = TinyDrafter(method="dspark", packaging="speculators")
    anchor = load(tmp_path, spec).describe()["anchor"]
    assert anchor == {"anchor_predicts": True, "source": "speculative_tokens 4 of block_size 4"}


def test_options_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    bare = TinyDrafter(method="dspark", packaging="deepspec", confidence_head="none")
    for options in ({"with_confidence": True}, {"p_min": 0.4}):
        with pytest.raises(ConfigError, match="no confidence head"):
            load(tmp_path / "a", bare, **options)
    with pytest.raises(ConfigError, match="p_min must be in"):
        load(tmp_path / "b", p_min=1.5)
    with pytest.raises(ConfigError, match="use --spec-type draft-dflash"):
        load(tmp_path / "c", TinyDrafter())
