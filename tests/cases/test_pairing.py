"""A target and a drafter that do not fit are refused with both sides named; what only looks different is accepted."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from blockdraft.core.sampling import SamplingParams
from blockdraft.drafters.config import SpecConfig
from blockdraft.drafters.dflash import DFlashDrafter
from blockdraft.drafters.draft_model import DraftModelDrafter
from blockdraft.engine import Engine, Request
from blockdraft.engine.load import load
from blockdraft.errors import PairError
from blockdraft.testing import tiny_gguf
from blockdraft.testing.tiny_drafters import TinyDrafter, write_tiny_drafter
from blockdraft.testing.tiny_gguf import write_tiny_gguf
from blockdraft.testing.tiny_models import tiny_target

PROMPTS = ((1, 2, 3), (3, 1, 3, 1))


def load_pair(target: Path, draft_model: Path) -> Engine:
    spec = SpecConfig(types=("draft-simple",), draft_model=str(draft_model), n_max=4)
    return load(str(target), spec, device="cpu", dtype="float32", offline=True, notify=lambda line: None)


def test_vocabularies_that_differ_are_refused_with_the_first_difference(tmp_path, monkeypatch):
    """sglang#23838, koboldcpp#2325, vllm#38174: same size, other tokens."""
    target = write_tiny_gguf(tmp_path / "target.gguf", quant="F32")
    tokens = tiny_gguf.tiny_vocabulary()
    other = [*tokens[:-1], "Ġb"]
    monkeypatch.setattr(tiny_gguf, "tiny_vocabulary", lambda: other)
    monkeypatch.setattr(tiny_gguf, "MERGES", (*tiny_gguf.MERGES[:-1], "Ġ b"))
    draft_model = write_tiny_gguf(tmp_path / "draft.gguf", quant="F32")
    with pytest.raises(PairError, match=r"vocabularies differ: token 271 is ' a' in target and ' b' in draft"):
        load_pair(target, draft_model)


@pytest.mark.parametrize(("target_padding", "draft_padding"), [(0, 16), (16, 0), (16, 48)])
def test_padding_at_the_end_of_a_vocabulary_does_not_count(tmp_path, target_padding, draft_padding):
    """vllm#13849, #42775: the same tokens, but wider tables. Drafts are kept, and none is a padding token."""
    size = len(tiny_gguf.tiny_vocabulary())
    paths = [tmp_path / "target.gguf", tmp_path / "draft.gguf"]
    for path, padding in zip(paths, (target_padding, draft_padding), strict=True):
        write_tiny_gguf(path, quant="F32", vocab_size=size + padding)
    engine = load_pair(*paths)
    for sampling in (SamplingParams(), SamplingParams(temperature=1.0, seed=3)):
        answer = engine.generate((9, 80), sampling=sampling, max_tokens=24, ignore_eos=True)
        assert answer.stats.num_drafted > 10
        if sampling.is_greedy:
            plain = engine.without_drafter().generate((9, 80), max_tokens=24, ignore_eos=True)
            assert answer.token_ids == plain.token_ids


def test_a_padding_token_in_the_text_ends_drafting_and_not_the_answer():
    """The target may have rows for ids that no tokenizer knows; a narrower draft model has none for them."""
    target = tiny_target("llama", 0, vocab_size=20)
    drafter = DraftModelDrafter(tiny_target("llama", 0, vocab_size=12), target_vocab_size=20, max_draft_tokens=3)
    plain, engine = Engine(target), Engine(target, drafter=drafter)
    requests = [Request(prompt_ids=prompt, max_tokens=30) for prompt in ((1, 2, 19), (1, 2, 3))]
    answers = engine.run(requests)
    assert [answer.token_ids for answer in answers] == [answer.token_ids for answer in plain.run(requests)]
    assert answers[0].stats.num_drafted == 0
    assert answers[1].rounds[0].num_drafted == (3 if answers[1].token_ids[0] < 12 else 0)


def test_a_wider_draft_model_never_drafts_what_the_target_lacks():
    """Its padding rows are the likeliest here, and must be cut before anything is chosen."""
    target, wide = tiny_target("llama", 0, vocab_size=12), tiny_target("llama", 0, vocab_size=20)
    wide.weights.head[12:] = 50.0 * wide.weights.head[:8]
    wide.weights.head[:12], wide.weights.embedding[:12] = target.weights.head, target.weights.embedding
    engine = Engine(target, drafter=DraftModelDrafter(wide, target_vocab_size=12, max_draft_tokens=4))
    for sampling in (SamplingParams(), SamplingParams(temperature=1.0, seed=1)):
        answer = engine.run([Request(prompt_ids=PROMPTS[0], max_tokens=30, sampling=sampling)])[0]
        assert answer.stats.acceptance_rate == pytest.approx(1, abs=0.05)  # it is the target, but for the padding


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"hidden_size": 64}, "hidden size: the drafter was made for 64, the target has 48"),
        ({"vocab_size": 200}, "vocabulary: the drafter was made for 200, the target has 96"),
        ({"num_target_layers": 36}, "number of target layers: the drafter was made for 36, the target has 4"),
        ({"target_layer_ids": [0, 9]}, r"target layers \[9\] are read by the drafter, the target has layers 0 to 3"),
        ({"mask_token_id": 96}, "mask token 96 is outside the target's vocabulary of 96"),
    ],
)
def test_a_block_drafter_made_for_another_target_is_refused(tmp_path, change, reason):
    target = tiny_target("qwen3", num_hidden_layers=4)
    folder = write_tiny_drafter(tmp_path, target.info, TinyDrafter(), **change)
    with pytest.raises(PairError, match=reason):
        DFlashDrafter.load(folder, target)


@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_a_reduced_vocabulary_is_mapped_to_the_targets_ids(tmp_path, temperature):
    """Draft ids are not target ids: the map must be applied to tokens and to probabilities."""
    target = tiny_target("qwen3", num_hidden_layers=4, vocab_size=12)
    folder = write_tiny_drafter(tmp_path, target.info, TinyDrafter(packaging="speculators", draft_vocab_size=5))
    drafter = DFlashDrafter.load(folder, target)
    own = set(drafter.choice.target_ids.tolist())
    assert own != set(range(5))
    drafted: set[int] = set()
    propose = drafter.propose

    def watched(asks):
        proposals = propose(asks)
        for proposal in proposals:
            drafted.update(proposal.draft_ids)
            if proposal.draft_probs is not None:
                assert set(proposal.draft_probs.sum(0).nonzero()[:, 0].tolist()) <= own
        return proposals

    drafter.propose = watched
    sampling = SamplingParams(temperature=temperature)
    requests = [Request(prompt_ids=prompt, max_tokens=40, sampling=sampling) for prompt in PROMPTS]
    answers = Engine(target, drafter=drafter).run(requests)
    assert drafted <= own
    assert {token for answer in answers for token in answer.token_ids} - own  # the target still says the others
    if temperature == 0:
        assert answers[0].token_ids == Engine(target).run(requests)[0].token_ids
    else:
        assert sum(answer.stats.num_accepted for answer in answers) > 4


def test_speculators_count_layers_from_the_embedding_and_z_lab_from_the_first_layer(tmp_path):
    """atlas#394: the same drafter in both packagings reads the same layers of the same target."""
    target = tiny_target("qwen3", num_hidden_layers=4)
    proposals = []
    for packaging in ("z-lab", "speculators"):
        folder = write_tiny_drafter(tmp_path / packaging, target.info, TinyDrafter(packaging=packaging))
        drafter = DFlashDrafter.load(folder, target)
        assert drafter.traits.target_layer_ids == (0, 2)
        answer = Engine(target, drafter=drafter).run([Request(prompt_ids=PROMPTS[0], max_tokens=12)])[0]
        proposals.append([record.num_accepted for record in answer.rounds])
    assert proposals[0] == proposals[1]


def test_the_targets_own_embedding_and_head_are_shared(tmp_path):
    """No copy: a drafter without tables of its own costs its layers only."""
    target = tiny_target("qwen3", num_hidden_layers=4)
    drafter = DFlashDrafter.load(write_tiny_drafter(tmp_path, target.info, TinyDrafter()), target)
    assert drafter.runner._embedding.data_ptr() == target.embedding_weight.data_ptr()
    assert drafter.runner._head.data_ptr() == target.head_weight.data_ptr()
    ids = torch.tensor([5])
    assert torch.equal(F.embedding(ids, drafter.runner._embedding), target.embedding_weight[ids])
