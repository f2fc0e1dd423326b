"""A drafter that is missing, dead or short of context is reported as such; nothing falls back in silence."""

import json
from pathlib import Path

import pytest

from blockdraft.core.sampling import SamplingParams
from blockdraft.drafters.base import Ask, Proposal
from blockdraft.drafters.build import build_drafter
from blockdraft.drafters.config import SpecConfig
from blockdraft.drafters.draft_model import DraftModelDrafter
from blockdraft.drafters.ngram import NgramModDrafter
from blockdraft.engine import Engine, Request
from blockdraft.engine.load import load
from blockdraft.errors import ConfigError, NotFoundError
from blockdraft.testing.scripted import ScriptedDrafter
from blockdraft.testing.tiny_drafters import TinyDrafter, write_tiny_drafter
from blockdraft.testing.tiny_gguf import write_tiny_gguf
from blockdraft.testing.tiny_models import tiny_target, write_tiny_model

PROMPT = (70, 71, 72)


def test_a_missing_drafter_ends_the_start(tmp_path):
    """ds4#468: the server must not come up healthy and slow."""
    model = write_tiny_gguf(tmp_path / "target.gguf", quant="F32")
    with pytest.raises(NotFoundError, match=r"no-such-drafter"):
        load(str(model), str(tmp_path / "no-such-drafter"), device="cpu", dtype="float32", offline=True)


def test_a_drafter_that_never_proposes_is_named_in_the_answer(plain):
    """club-3090 discussion 18: loaded, but never proposing."""
    engine = Engine(plain.target, plain.tokenizer, NgramModDrafter())
    answer = engine.generate(PROMPT, max_tokens=12, ignore_eos=True)
    assert answer.not_speculating == "ngram-mod had nothing to propose in 11 rounds"
    assert answer.stats.rounds_by_drafter == {"none": 11}
    assert answer.to_dict()["not_speculating"] == answer.not_speculating


def test_a_drafter_whose_tokens_are_all_rejected_is_named_in_the_answer(knowing):
    """club-3090#662: 0 % accepted after quantising, and everything else looks well."""
    answer = knowing(PROMPT, num_drafts=3, num_right=0).generate(PROMPT, max_tokens=5, ignore_eos=True)
    assert answer.not_speculating == "the target kept none of the 6 tokens that scripted proposed"
    assert answer.stats.acceptance_rate == 0


def test_an_answer_too_short_to_draft_for_says_so(knowing):
    assert knowing(PROMPT).generate(PROMPT, max_tokens=1).not_speculating == "the answer was too short to draft for"


def test_a_drafter_at_work_is_not_blamed(knowing):
    assert knowing(PROMPT, num_drafts=2).generate(PROMPT, max_tokens=9, ignore_eos=True).not_speculating is None


def test_acceptance_does_not_fade_in_a_long_answer(plain, knowing):
    """vllm#52873, club-3090#1052: after N tokens, acceptance fell to 0. Caches grow several times on the way."""
    num_tokens = 240
    engine = knowing(PROMPT, num_drafts=4, max_tokens=num_tokens)
    answer = engine.generate(PROMPT, max_tokens=num_tokens, ignore_eos=True)
    assert answer.token_ids == plain.generate(PROMPT, max_tokens=num_tokens, ignore_eos=True).token_ids
    assert answer.stats.acceptance_rate == 1
    assert {record.num_emitted for record in answer.rounds[:-1]} == {5}


def test_a_draft_model_that_is_the_target_is_right_to_the_end():
    """The same for a network with a state of its own: every draft of the long answer is kept."""
    target = tiny_target("llama", 0)
    engine = Engine(target, drafter=DraftModelDrafter(tiny_target("llama", 0), max_draft_tokens=4))
    answer = engine.run([Request(prompt_ids=PROMPT, max_tokens=200)])[0]
    assert answer.token_ids == Engine(target).run([Request(prompt_ids=PROMPT, max_tokens=200)])[0].token_ids
    assert answer.stats.acceptance_rate == 1


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_past_its_own_context_a_draft_model_drafts_nothing_and_the_answer_goes_on(temperature):
    """llama.cpp#22554, vllm#57941, #58080, lmstudio#499: the drafter's context is smaller than the target's."""
    target = tiny_target("llama", 0)
    drafter = DraftModelDrafter(tiny_target("llama", 0, max_position_embeddings=24), max_draft_tokens=4)
    sampling = SamplingParams(temperature=temperature, seed=1)
    request = Request(prompt_ids=PROMPT, max_tokens=60, sampling=sampling)
    answer = Engine(target, drafter=drafter).run([request])[0]
    num_tokens = len(PROMPT) + 1
    for record in answer.rounds:
        assert num_tokens + record.num_drafted <= 24 or record.num_drafted == 0
        num_tokens += record.num_emitted
    assert answer.rounds[0].num_drafted == 4
    assert {record.num_drafted for record in answer.rounds[-20:]} == {0}
    if temperature == 0:
        assert answer.token_ids == Engine(target).run([request])[0].token_ids


def test_a_prompt_beyond_the_draft_models_context_is_answered_plainly():
    target = tiny_target("llama", 0)
    drafter = DraftModelDrafter(tiny_target("llama", 0, max_position_embeddings=24), max_draft_tokens=4)
    request = Request(prompt_ids=tuple(range(40)), max_tokens=10)
    answer = Engine(target, drafter=drafter).run([request])[0]
    assert answer.token_ids == Engine(target).run([request])[0].token_ids
    assert answer.not_speculating == "draft-simple had nothing to propose in 9 rounds"


def test_a_smaller_context_of_the_draft_model_is_told_at_the_start(tmp_path):
    folder = write_tiny_model(tmp_path / "small", max_position_embeddings=64)
    told: list[str] = []
    spec = SpecConfig(types=("draft-simple",), draft_model=str(folder))
    build_drafter(spec, tiny_target("llama"), None, notify=told.append)
    assert any("holds 64 tokens, the target's 512" in line for line in told)


def test_every_effective_knob_is_on_record(tmp_path):
    """llama.cpp#25792: a changed default of p_min looked like a broken drafter for weeks."""
    target = tiny_target("qwen3", num_hidden_layers=4)
    drafter = TinyDrafter(method="dspark", packaging="deepspec", block_size=5)
    folder = write_tiny_drafter(tmp_path, target.info, drafter)
    spec = SpecConfig(
        types=("ngram-mod", "auto"), draft_model=str(folder), n_max=3, p_min=0.75, draft_sampling="greedy"
    )
    built = build_drafter(spec, target, None, notify=lambda line: None)
    ngram, dspark = json.loads(json.dumps(built.describe()))["members"]
    assert (ngram["n_match"], ngram["n_min"], ngram["n_max"]) == (24, 48, 64)
    assert (dspark["p_min"], dspark["max_draft_tokens"], dspark["draft_sampling"]) == (0.75, 3, "greedy")
    recorded = json.loads(json.dumps(spec.to_dict()))
    assert (
        recorded.items() >= {"p_min": 0.75, "n_max": 3, "n_min": 0, "rule": "auto", "draft_sampling": "greedy"}.items()
    )
    assert recorded["ngram_mod"]["n_match"] == 24


class Silent(ScriptedDrafter):
    """Forgets one of the sequences it was asked about."""

    def propose(self, asks: list[Ask]) -> list[Proposal]:
        return super().propose(asks)[:-1]


def test_a_drafter_that_skips_a_sequence_is_an_error_and_not_a_shift(plain):
    """The proposals of one request must never be verified as those of another."""
    drafter = Silent({(5,): range(9), (6,): range(9)}, vocab_size=272)
    with pytest.raises(ValueError, match="shorter"):
        Engine(plain.target, drafter=drafter).run([Request(prompt_ids=(n,), max_tokens=8) for n in (5, 6)])


def test_a_floor_for_draft_lengths_that_no_block_can_reach_is_refused(tmp_path: Path):
    target = tiny_target("qwen3", num_hidden_layers=4)
    folder = write_tiny_drafter(tmp_path, target.info, TinyDrafter(block_size=4))
    spec = SpecConfig(types=("draft-dflash",), draft_model=str(folder), n_min=4)
    with pytest.raises(ConfigError, match="n_min is 4, but a block of draft-dflash holds 3"):
        build_drafter(spec, target, None)
