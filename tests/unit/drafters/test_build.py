import json
from dataclasses import replace

import pytest
import torch
from tokenizers import Tokenizer as CoreTokenizer
from tokenizers import decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from blockdraft.core.random import PositionalRandom
from blockdraft.core.sampling import SamplingParams
from blockdraft.drafters.base import Ask, Observation
from blockdraft.drafters.build import build_drafter
from blockdraft.drafters.config import NgramMod, SpecConfig
from blockdraft.drafters.draft_model import DraftModelDrafter
from blockdraft.drafters.dspark import DSparkDrafter
from blockdraft.errors import ConfigError, NotFoundError, PairError, UnsupportedModelError
from blockdraft.models.tokenizer import load_tokenizer
from blockdraft.testing.tiny_drafters import TinyDrafter, write_tiny_drafter
from blockdraft.testing.tiny_eagle3 import TinyEagle3, write_tiny_eagle3
from blockdraft.testing.tiny_models import tiny_target, write_tiny_model


@pytest.fixture(scope="module")
def target():
    return tiny_target("llama")


@pytest.fixture
def told():
    return []


@pytest.fixture
def build(target, told):
    def build_with(config: SpecConfig, tokenizer=None, **options):
        return build_drafter(config, options.pop("target", target), tokenizer, notify=told.append, **options)

    return build_with


def block_folder(tmp_path, target, method="dflash", **options) -> str:
    packaging = "deepspec" if method == "dspark" else "z-lab"
    drafter = TinyDrafter(method=method, packaging=packaging, block_size=8, **options)
    return str(write_tiny_drafter(tmp_path / method, target.info, drafter))


def write_tokenizer(folder, tokens) -> None:
    """Write a tokenizer whose vocabulary is `tokens`."""
    core = CoreTokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=[], unk_token=tokens[0]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=core, unk_token=tokens[0]).save_pretrained(folder)


def test_none_builds_nothing(build):
    assert build(SpecConfig()) is None


def test_ngram_types_take_their_settings(build, told):
    drafter = build(SpecConfig(types=("ngram-mod",), ngram_mod=NgramMod(n_match=8, n_min=2, n_max=5)))
    assert drafter.traits.max_draft_tokens == 5
    assert drafter.describe()["n_match"] == 8
    assert told == []


def test_every_ngram_type_can_be_built_and_chained_in_the_order_of_the_configuration(build):
    types = ("ngram-mod", "ngram-simple", "ngram-map-k4v", "ngram-map-k")
    assert build(SpecConfig(types=types)).traits.name == ",".join(types)


def test_limits_of_draft_models_have_no_effect_on_ngram_and_that_is_said(build, told):
    build(SpecConfig(types=("ngram-mod",), n_max=4))
    assert "no effect on ngram-mod" in told[0]


@pytest.mark.parametrize("method", ["dflash", "dspark"])
def test_auto_finds_the_kind_of_a_block_drafter_and_says_so(build, told, tmp_path, target, method):
    folder = block_folder(tmp_path, target, method)
    drafter = build(SpecConfig(types=("auto",), draft_model=folder))
    assert drafter.traits.name == f"draft-{method}"
    assert told == [f"{folder} is used as draft-{method}"]


def test_auto_takes_an_ordinary_model_as_a_small_draft_model(build, tmp_path, target):
    folder = write_tiny_model(tmp_path / "small", "qwen3", seed=5)
    drafter = build(SpecConfig(types=("auto",), draft_model=str(folder)))
    assert isinstance(drafter, DraftModelDrafter)
    assert drafter.traits.max_draft_tokens == 3
    assert drafter.draft_model.info.dtype == target.info.dtype
    prompt = (1, 2, 3)
    request = Ask(
        state=drafter.begin(prompt),
        token_ids=prompt,
        num_draft_tokens=3,
        sampling=SamplingParams(),
        random=PositionalRandom(0),
    )
    assert len(drafter.propose([request])[0]) == 3


def test_another_kind_than_asked_for_is_refused(build, tmp_path, target):
    folder = block_folder(tmp_path, target, "dspark")
    with pytest.raises(ConfigError, match="made for draft-dspark; write draft-dspark or auto"):
        build(SpecConfig(types=("draft-dflash",), draft_model=folder))


def test_a_known_kind_that_is_not_supported_is_refused_by_name(build, tmp_path):
    folder = write_tiny_model(tmp_path / "mtp", "llama", architectures=["DeepSeekMTPModel"])
    with pytest.raises(UnsupportedModelError, match="is a draft-mtp drafter, which is not supported yet"):
        build(SpecConfig(types=("auto",), draft_model=str(folder)))


def test_a_draft_model_that_does_not_exist(build, tmp_path):
    with pytest.raises(NotFoundError):
        build(SpecConfig(types=("auto",), draft_model=str(tmp_path / "nowhere")))


def test_n_max_above_the_block_is_cut_and_said(build, told, tmp_path, target):
    drafter = build(SpecConfig(types=("draft-dflash",), draft_model=block_folder(tmp_path, target), n_max=20))
    assert drafter.traits.max_draft_tokens == 7
    assert "n_max is 20, but a block of draft-dflash holds 7" in told[0]


def test_n_max_below_the_block_limits_the_drafter(build, told, tmp_path, target):
    drafter = build(SpecConfig(types=("draft-dspark",), draft_model=block_folder(tmp_path, target, "dspark"), n_max=3))
    assert drafter.traits.max_draft_tokens == drafter.describe()["max_draft_tokens"] == 3
    prompt = (1, 2, 3)
    state = drafter.begin(prompt)
    hidden = torch.randn(2, len(drafter.traits.target_layer_ids) * target.info.hidden_size)
    drafter.observe(state, Observation(committed_ids=(3,), target_hidden=hidden))
    request = Ask(
        state=state, token_ids=prompt, num_draft_tokens=8, sampling=SamplingParams(), random=PositionalRandom(0)
    )
    assert len(drafter.propose([request])[0]) == 3
    assert told == []


def test_n_min_above_the_block_is_refused(build, tmp_path, target):
    with pytest.raises(ConfigError, match="no draft could be long enough"):
        build(SpecConfig(types=("draft-dflash",), draft_model=block_folder(tmp_path, target), n_min=8))


def test_p_min_turns_confidence_on_and_needs_a_head(build, tmp_path, target):
    dflash = block_folder(tmp_path, target)
    assert not build(SpecConfig(types=("auto",), draft_model=dflash)).traits.has_confidence
    assert build(SpecConfig(types=("auto",), draft_model=dflash, p_min=0.5)).traits.has_confidence
    assert build(SpecConfig(types=("auto",), draft_model=dflash), with_confidence=True).traits.has_confidence
    headless = block_folder(tmp_path, target, "dspark", confidence_head="none")
    with pytest.raises(ConfigError, match="no confidence head"):
        build(SpecConfig(types=("auto",), draft_model=headless, p_min=0.5))


def test_draft_sampling_reaches_the_drafter(build, tmp_path, target):
    folder = block_folder(tmp_path, target, "dspark")
    drafter = build(SpecConfig(types=("auto",), draft_model=folder, draft_sampling="greedy"))
    assert isinstance(drafter, DSparkDrafter)
    assert drafter.traits.is_deterministic


def test_a_chain_with_a_network_reads_the_networks_layers(build, tmp_path, target):
    folder = block_folder(tmp_path, target)
    drafter = build(SpecConfig(types=("ngram-mod", "draft-dflash"), draft_model=folder, n_max=4))
    assert drafter.traits.name == "ngram-mod,draft-dflash"
    # n_max is for the network; ngram-mod keeps its own 64.
    assert drafter.traits.max_draft_tokens == 64
    assert [member["name"] for member in drafter.describe()["members"]] == ["ngram-mod", "draft-dflash"]
    assert drafter.traits.needs_target_hidden


def test_a_block_drafter_of_another_target_is_refused_with_all_reasons(build, tmp_path, target):
    other = tiny_target("llama", hidden_size=32, head_dim=8, num_hidden_layers=6)
    with pytest.raises(PairError, match=r"(?s)hidden size.*number of target layers"):
        build(SpecConfig(types=("auto",), draft_model=block_folder(tmp_path, other)))


def test_a_small_model_with_another_number_of_tokens_is_refused(build, tmp_path):
    folder = write_tiny_model(tmp_path / "small", "llama", vocab_size=80)
    with pytest.raises(PairError, match=r"small \(llama\) cannot draft .* has 80 tokens, the target's 96"):
        build(SpecConfig(types=("draft-simple",), draft_model=str(folder)))


def test_with_tokenizers_the_tokens_count_and_not_the_padding(build, tmp_path, target):
    tokens = [f"t{number}" for number in range(70)]
    mine, same, other = tmp_path / "target", tmp_path / "same", tmp_path / "other"
    for folder, vocabulary in ((mine, tokens), (same, tokens), (other, [*tokens[:40], "strange", *tokens[41:]])):
        write_tiny_model(folder, "llama", vocab_size=80)
        write_tokenizer(folder, vocabulary)
    tokenizer = load_tokenizer(mine)
    assert build(SpecConfig(types=("draft-simple",), draft_model=str(same)), tokenizer) is not None
    with pytest.raises(PairError, match=r"the vocabularies differ: token 40 is"):
        build(SpecConfig(types=("draft-simple",), draft_model=str(other)), tokenizer)


def test_a_shorter_context_of_the_draft_model_is_said(build, told, tmp_path):
    folder = write_tiny_model(tmp_path / "small", "llama", max_position_embeddings=128)
    build(SpecConfig(types=("draft-simple",), draft_model=str(folder)))
    assert "holds 128 tokens, the target's 512" in told[0]


class Forgetful:
    """A target that can forget only so many tokens."""

    def __init__(self, target, max_rollback):
        self.info = replace(target.info, max_rollback=max_rollback)


def test_drafts_are_cut_to_what_the_target_can_forget(build, told, target):
    drafter = build(SpecConfig(types=("ngram-mod", "ngram-simple")), target=Forgetful(target, 6))
    assert drafter.traits.max_draft_tokens == 6
    assert "can forget 6 tokens" in told[0]


def test_a_target_that_cannot_forget_is_refused(build, target):
    with pytest.raises(PairError, match="cannot forget a token"):
        build(SpecConfig(types=("ngram-mod",)), target=Forgetful(target, 0))


def test_what_was_built_can_be_saved_as_json(build, tmp_path, target):
    folder = block_folder(tmp_path, target)
    json.dumps(build(SpecConfig(types=("ngram-simple", "auto"), draft_model=folder, n_max=4)).describe())


def test_eagle3_drafts_as_many_as_asked_for(build, told, tmp_path, target):
    """There is no block that would end; without n_max it is what the head was trained to unroll."""
    folder = str(write_tiny_eagle3(tmp_path, target.info, TinyEagle3(packaging="speculators", num_trained_tokens=4)))
    drafter = build(SpecConfig(types=("auto",), draft_model=folder))
    assert (drafter.traits.name, drafter.traits.max_draft_tokens) == ("draft-eagle3", 4)
    assert told == [f"{folder} is used as draft-eagle3"]
    by_name = SpecConfig.from_vllm({"method": "eagle3", "model": folder, "num_speculative_tokens": 9})
    assert build(by_name).traits.max_draft_tokens == 9
    assert not build(by_name).traits.has_confidence
    assert build(replace(by_name, p_min=0.3)).traits.has_confidence
    with pytest.raises(ConfigError, match="n_min is 6, but draft-eagle3 drafts 4 tokens"):
        build(SpecConfig(types=("draft-eagle3",), draft_model=folder, n_min=6))
