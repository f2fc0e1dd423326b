import json

import pytest

from blockdraft.drafters.config import REMOVED_FLAGS, NgramMapK, NgramMod, NgramSimple, SpecConfig
from blockdraft.errors import ConfigError


def llamacpp(*spec_types: str, **options) -> SpecConfig:
    return SpecConfig.from_llamacpp(spec_types=spec_types, **options)


def test_nothing_given_is_plain_decoding():
    config = llamacpp()
    assert config.types == ("none",)
    assert not config.is_enabled


def test_a_draft_model_alone_means_auto():
    config = llamacpp(draft_model="hf:a/b")
    assert config.types == ("auto",)
    assert config.needs_draft_model


def test_lists_and_repeats_add_up_in_llamacpp_order_with_a_note():
    config = llamacpp("draft-dflash, ngram-mod", "ngram-simple,ngram-mod", draft_model="d")
    assert config.types == ("ngram-simple", "ngram-mod", "draft-dflash")
    assert any("llama.cpp's order" in note for note in config.notes)


def test_a_chain_already_in_order_has_no_note():
    assert llamacpp("ngram-mod,draft-dflash", draft_model="d").notes == ()


def test_the_python_interface_keeps_the_order_given():
    assert SpecConfig(types=("draft-dflash", "ngram-mod"), draft_model="d").types == ("draft-dflash", "ngram-mod")


def test_none_makes_its_list_none_but_not_the_others():
    assert llamacpp("ngram-mod,none").types == ("none",)
    assert llamacpp("ngram-mod,none", "ngram-simple").types == ("ngram-simple",)
    assert "whole list none" in llamacpp("ngram-mod,none").notes[0]


def test_none_with_a_draft_model_says_that_it_is_not_loaded():
    assert "not loaded" in llamacpp("none", draft_model="d").notes[0]


@pytest.mark.parametrize(
    ("spec_types", "options", "message"),
    [
        (("draft-dflsh",), {"draft_model": "d"}, "did you mean 'draft-dflash'"),
        (("ngram-mod,none,bogus",), {}, "unknown speculation type 'bogus'"),
        (("draft-eagle3,draft-dflash",), {"draft_model": "d"}, "cannot be chained"),
        (("draft-mtp",), {"draft_model": "d"}, "'draft-mtp' is not supported yet"),
        (("ngram-cache",), {}, "'ngram-cache' is not supported yet"),
        (("draft-dflash",), {}, "needs a draft model"),
        (("draft-dflash,draft-dspark",), {"draft_model": "d"}, "cannot be chained"),
        (("auto,draft-simple",), {"draft_model": "d"}, "cannot be chained"),
        (("ngram-mod",), {"draft_model": "d"}, "uses none"),
        ((), {"draft_model": "d", "n_max": 4, "n_min": 5}, "n_min is 5 but n_max is 4"),
        ((), {"draft_model": "d", "n_max": 0}, "n_max must be at least 1"),
        ((), {"draft_model": "d", "n_min": -1}, "n_min must be at least 0"),
        ((), {"draft_model": "d", "p_min": 1.5}, "p_min is a probability"),
        ((), {"draft_model": "d", "rule": "exact"}, "rule must be one of"),
        ((), {"draft_model": "d", "draft_sampling": "greedi"}, "did you mean 'greedy'"),
    ],
)
def test_what_cannot_be_honoured_is_refused(spec_types, options, message):
    with pytest.raises(ConfigError, match=message):
        llamacpp(*spec_types, **options)


def test_python_configurations_are_checked_too():
    with pytest.raises(ConfigError, match="listed twice"):
        SpecConfig(types=("ngram-mod", "ngram-mod"))
    with pytest.raises(ConfigError, match="cannot be combined"):
        SpecConfig(types=("none", "ngram-mod"))
    with pytest.raises(ConfigError, match="at least one"):
        SpecConfig(types=())


def test_ngram_defaults_are_those_of_llamacpp():
    config = llamacpp("ngram-simple,ngram-map-k,ngram-map-k4v,ngram-mod")
    for kind in (config.ngram_simple, config.ngram_map_k, config.ngram_map_k4v):
        assert (kind.size_n, kind.size_m, kind.min_hits) == (12, 48, 1)
    assert (config.ngram_mod.n_match, config.ngram_mod.n_min, config.ngram_mod.n_max) == (24, 48, 64)
    assert not config.ngram_mod.shared


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: NgramSimple(size_n=0), "NgramSimple.size_n must be from 1 to 1024"),
        (lambda: NgramMapK(min_hits=0), "NgramMapK.min_hits"),
        (lambda: NgramSimple(size_n=4, size_n_min=5), "NgramSimple.size_n_min must be from 1 to 4"),
        (lambda: NgramSimple(size_m=4, min_draft=5), "NgramSimple.min_draft must be from 1 to 4"),
        (lambda: NgramMod(n_match=2000), "NgramMod.n_match must be from 1 to 1024"),
        (lambda: NgramMod(n_min=8, n_max=4), "NgramMod.n_min is 8 but NgramMod.n_max is 4"),
    ],
)
def test_ngram_values_out_of_range_are_refused(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


def test_to_dict_holds_the_knobs_that_have_an_effect_and_is_json():
    values = llamacpp("ngram-mod,draft-dflash", draft_model="d", n_max=7).to_dict()
    assert values["types"] == ["ngram-mod", "draft-dflash"]
    assert values["ngram_mod"] == {"n_match": 24, "n_min": 48, "n_max": 64, "shared": False}
    assert "ngram_simple" not in values
    assert json.loads(json.dumps(values)) == values


def test_every_removed_flag_names_its_successor():
    assert REMOVED_FLAGS["--draft-max"] == "--spec-draft-n-max"
    assert REMOVED_FLAGS["--draft-n-min"] == "--spec-draft-n-min"
    assert set(REMOVED_FLAGS) >= {"--draft", "--draft-n", "--draft-min", "--spec-ngram-size-n", "--spec-ngram-min-hits"}


def test_vllm_dflash():
    config = SpecConfig.from_vllm({"method": "dflash", "model": "hf:z/d", "num-speculative-tokens": 15})
    assert (config.types, config.draft_model, config.n_max) == (("draft-dflash",), "hf:z/d", 15)
    assert (config.rule, config.draft_sampling, config.notes) == ("auto", "probabilistic", ())


def test_vllm_model_alone_means_auto():
    assert SpecConfig.from_vllm({"model": "d", "method": None}).types == ("auto",)


def test_vllm_sampling_methods():
    config = SpecConfig.from_vllm(
        {"model": "d", "draft_sample_method": "greedy", "rejection_sample_method": "standard"}
    )
    assert (config.draft_sampling, config.rule, config.notes) == ("greedy", "rejection", ())
    old = SpecConfig.from_vllm({"model": "d", "rejection_sample_method": "strict"})
    assert old.rule == "match"
    assert "'strict'" in old.notes[0]


@pytest.mark.parametrize(
    ("keys", "lengths"), [({}, (5, 5)), ({"prompt_lookup_max": 4}, (4, 4)), ({"prompt_lookup_min": 2}, (2, 2))]
)
def test_vllm_prompt_lookup(keys, lengths):
    config = SpecConfig.from_vllm({"model": "[ngram]", "num_speculative_tokens": 6, **keys})
    assert config.types == ("ngram-simple",)
    assert config.draft_model is None
    kind = config.ngram_simple
    assert (kind.size_n, kind.size_n_min, kind.size_m, kind.min_draft) == (*lengths, 6, 1)


def test_vllm_values_that_ask_for_nothing_pass():
    SpecConfig.from_vllm({"model": "d", "draft_tensor_parallel_size": 1, "enforce_eager": True, "quantization": None})


@pytest.mark.parametrize(
    ("mapping", "message"),
    [
        ({}, "needs a method or a model"),
        ({"method": "dflash"}, "needs a draft model"),
        ({"method": "eagle", "model": "d"}, "'eagle' is not supported: only its successor EAGLE-3 is"),
        ({"method": "qwen3_5_mtp", "model": "d"}, "'draft-mtp' is not supported yet"),
        ({"method": "suffix"}, "method 'suffix' is not supported: use 'ngram'"),
        ({"method": "dflsh", "model": "d"}, "did you mean 'dflash'"),
        ({"method": 3, "model": "d"}, "method must be one of"),
        ({"model": 3}, "must be a model reference"),
        ({"model": "ngram", "method": "dflash"}, "means n-gram drafting"),
        ({"model": "d", "num_speculative_token": 3}, "did you mean 'num_speculative_tokens'"),
        ({"model": "d", "num_speculative_tokens": 0}, "at least 1"),
        ({"model": "d", "num_speculative_tokens": True}, "whole number"),
        ({"model": "d", "quantization": "fp8"}, "'quantization' .* not supported by blockdraft"),
        ({"model": "d", "enable_adaptive_verification": "yes"}, "enable_adaptive_verification must be true or false"),
        ({"model": "d", "rejection_sample_method": "block"}, "block verification is not supported yet"),
        ({"model": "d", "rejection_sample_method": "synthetic"}, "not the target's"),
        ({"model": "d", "rejection_sample_method": "fly"}, "no lossy mode"),
        ({"model": "d", "draft_sample_method": "top"}, "draft_sample_method must be one of"),
        ({"model": "d", "prompt_lookup_max": 4}, 'belong to "method": "ngram"'),
        ({"method": "ngram", "prompt_lookup_max": 2, "prompt_lookup_min": 3}, "prompt_lookup_min is 3"),
        ({"method": "ngram", "model": "d"}, "uses none"),
    ],
)
def test_vllm_configs_that_cannot_be_honoured_are_refused(mapping, message):
    with pytest.raises(ConfigError, match=message):
        SpecConfig.from_vllm(mapping)
