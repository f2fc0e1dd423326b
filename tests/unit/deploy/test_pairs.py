"""The registry: its entries agree with themselves, and targets are recognised."""

from __future__ import annotations

from dataclasses import replace

import pytest

from blockdraft.deploy.model_facts import TargetFacts
from blockdraft.deploy.pairs import drafters, drafters_of, find_base, find_drafter, registered_target, target_names
from blockdraft.errors import ConfigError


@pytest.mark.parametrize(
    ("reference", "base", "relation"),
    [
        ("Qwen/Qwen3-8B", "Qwen/Qwen3-8B", "same"),
        ("hf:Qwen/Qwen3-8B@main", "Qwen/Qwen3-8B", "same"),
        ("cyankiwi/Qwen3.6-35B-A3B-AWQ-4bit", "Qwen/Qwen3.6-35B-A3B", "quantised"),
        ("Qwen/Qwen3.6-27B-FP8", "Qwen/Qwen3.6-27B", "quantised"),
        ("MODELS/Qwen3.6-27B-FP8", "Qwen/Qwen3.6-27B", "quantised"),
        ("unsloth/Qwen3.6-35B-A3B-GGUF:Q4_K_M", "Qwen/Qwen3.6-35B-A3B", "quantised"),
        ("./Qwen3.6-35B-A3B-UD-Q6_K_XL.gguf", "Qwen/Qwen3.6-35B-A3B", "quantised"),
        ("Qwen3.6-27B-Q4_0.gguf", "Qwen/Qwen3.6-27B", "quantised"),
        ("someone/Story-Qwen3.6-27B-v2-NVFP4", "Qwen/Qwen3.6-27B", "fine-tune"),
        ("google/gemma-4-31B-it", "google/gemma-4-31B-it", "same"),
    ],
)
def test_a_target_is_recognised_by_its_name(reference, base, relation) -> None:
    found = find_base(reference)
    assert found is not None
    assert (found.name, found.relation) == (base, relation)
    assert base in found.how or relation == "same"


@pytest.mark.parametrize("reference", ["Qwen/Qwen3-80B", "Qwen/Qwen3.5-2B", "TARGET", "Qwen/Qwen3", "org/8B"])
def test_a_name_that_is_only_alike_is_not(reference) -> None:
    assert find_base(reference) is None


def test_sizes_that_differ_rule_a_name_out() -> None:
    other = replace(registered_target("Qwen/Qwen3-8B"), hidden_size=1024)
    with pytest.raises(ConfigError, match="its hidden_size is 1024 and that of Qwen/Qwen3-8B is 4096"):
        find_base("Qwen/Qwen3-8B", other)
    assert find_base("org/Tune-of-Qwen3-8B", other) is None


def test_a_target_is_recognised_by_its_sizes_if_only_one_has_them() -> None:
    unnamed = replace(registered_target("Qwen/Qwen3-8B"), name="mystery")
    found = find_base("./mystery", unnamed)
    assert found is not None
    assert (found.name, found.relation) == ("Qwen/Qwen3-8B", "alike")
    # Qwen3.5, 3.6 and 3.8 of 27B are all alike, so that sizes alone do not tell.
    assert find_base("./mystery", registered_target("Qwen/Qwen3.6-27B")) is None


def test_files_may_name_their_base() -> None:
    facts = registered_target("Qwen/Qwen3.6-27B")
    found = find_base("./mystery", facts, ["https://huggingface.co/Qwen/Qwen3.6-27B"])
    assert found is not None
    assert found.name == "Qwen/Qwen3.6-27B"
    assert "its files name" in found.how


def test_nothing_known_is_no_match_by_sizes() -> None:
    assert find_base("./mystery", TargetFacts(name="mystery", origin="config.json")) is None


def test_a_drafter_is_found_under_its_copies_and_file_names() -> None:
    for name in ("z-lab/Qwen3.6-27B-DFlash", "MODELS/Qwen3.6-27B-DFlash", "./Qwen3.6-27B-DFlash-Q8_0.gguf"):
        found = find_drafter(name)
        assert found is not None
        assert found.reference == "z-lab/Qwen3.6-27B-DFlash"
    copy = find_drafter("modal-labs/Qwen3.6-35B-A3B-DFlash")
    assert copy is not None
    assert copy.reference == "z-lab/Qwen3.6-35B-A3B-DFlash"
    assert find_drafter("org/unknown") is None


@pytest.mark.parametrize("drafter", drafters(), ids=lambda drafter: drafter.reference)
def test_an_entry_agrees_with_its_target(drafter) -> None:
    assert drafter.target in target_names()
    target = registered_target(drafter.target)
    facts = drafter.facts
    if facts.target_layer_ids and target.num_layers:
        assert max(facts.target_layer_ids) < target.num_layers
        assert list(facts.target_layer_ids) == sorted(set(facts.target_layer_ids))
    if facts.num_target_layers and target.num_layers:
        assert facts.num_target_layers == target.num_layers
    if facts.mask_token_id and target.vocab_size:
        assert facts.mask_token_id < target.vocab_size
    if facts.hidden_size and target.hidden_size:
        assert facts.hidden_size == target.hidden_size
    assert all(fault.what and fault.source for fault in drafter.faults)
    assert not {drafter.reference} & {*drafter.also, *drafter.gguf}


def test_references_are_unique() -> None:
    names = [name for drafter in drafters() for name in (drafter.reference, *drafter.also, *drafter.gguf)]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("reference", "millions"),
    [
        ("z-lab/Qwen3-4B-DFlash-b16", 537),
        ("z-lab/Qwen3.6-27B-DFlash", 1730),
        ("z-lab/Qwen3.5-35B-A3B-DFlash", 474),
        ("deepseek-ai/dspark_qwen3_4b_block7", 615),
        ("deepseek-ai/dspark_qwen3_14b_block7", 1860),
    ],
)
def test_parameters_computed_from_sizes_are_the_published_ones(reference, millions) -> None:
    found = find_drafter(reference)
    assert found is not None
    assert round((found.facts.num_parameters or 0) / 1e6) == millions


def test_first_versions() -> None:
    dflash2, dflash = find_drafter("z-lab/Qwen3.8-27B-DFlash2"), find_drafter("z-lab/Qwen3-8B-DFlash-b16")
    assert dflash2 is not None
    assert dflash is not None
    assert (dflash2.first_version("vllm"), dflash.first_version("vllm")) == ("0.28.0", "0.20.0")
    assert dflash.first_version("llamacpp") is None


def test_units_of_the_registry() -> None:
    """15 drafts of a b16 block, 7 of DSpark's block of 7: the anchor counts in one and predicts in the other."""
    assert {d.facts.max_draft_tokens for d in drafters_of("Qwen/Qwen3-8B")} == {15, 7, None}
