"""The memory account against numbers computed by hand and published ones."""

from __future__ import annotations

from dataclasses import replace

import pytest
from situations import DFLASH, FOR_MIXTURE, HYBRID, MIXED, MIXTURE, drafter, llama, sglang, situation

from blockdraft.deploy.bits import kv_bits, quantization_in_config, quantization_in_name, weight_bits
from blockdraft.deploy.memory import account, kv_bytes_per_token, num_states, probabilistic_bytes
from blockdraft.deploy.pairs import registered_target
from blockdraft.deploy.rules import Situation
from blockdraft.errors import ConfigError

GIB, MIB = 1 << 30, 1 << 20


def items(situation: Situation) -> dict[str, int]:
    return {item.name: item.num_bytes for item in counted(situation).items}


def counted(seen: Situation):
    return account(seen.deployment, seen.target_facts, seen.draft_facts, seen.devices)


def test_draft_distributions_of_256_sequences() -> None:
    """256 x 15 x 248320 x 2 B = 1.78 GiB."""
    assert probabilistic_bytes(256, 15, 248320) == 1_907_097_600
    assert round(probabilistic_bytes(256, 15, 248320) / GIB, 2) == 1.78
    asked = situation(target=HYBRID, draft=MIXED, options={"draft_sampling": "probabilistic"}, on="h200")
    assert items(asked)["draft distributions"] == 1_907_097_600
    assert "draft distributions" not in items(situation(target=HYBRID, draft=MIXED, on="h200"))


@pytest.mark.parametrize(
    ("reference", "kib"),
    [("z-lab/Qwen3-8B-DFlash-b16", 20), ("z-lab/Qwen3.5-27B-DFlash", 20), ("z-lab/Qwen3.5-35B-A3B-DFlash", 16)],
)
def test_keys_and_values_of_published_drafters(reference, kib) -> None:
    facts = drafter(reference)
    assert kv_bytes_per_token(facts.num_layers, facts.num_kv_heads, facts.head_dim) == kib * 1024


def test_the_example_in_sglangs_help() -> None:
    """5 layers, 10240 bytes a token in 16 bits: 4 heads of 128."""
    assert kv_bytes_per_token(5, 4, 128) == 10240


def test_recurrent_state_of_a_mixture_with_seven_snapshots() -> None:
    """502 MiB: reported for a Qwen3.5 MoE with 7 snapshots and one sequence in llama.cpp (#26499)."""
    assert int(8 * MIXTURE.state_bytes / MIB) == 502
    # 30 layers x 4 B x (32 heads x 128 x 128, and 3 inputs of 2 x 16 x 128 + 32 x 128 channels)
    assert MIXTURE.state_bytes == 30 * 4 * (32 * 128 * 128 + 3 * (2 * 16 * 128 + 32 * 128))


def test_states_are_kept_for_each_draft_token() -> None:
    assert num_states(situation(num_drafts=15).deployment) == 16
    assert num_states(situation(method=None).deployment) == 1
    assert num_states(llama(num_drafts=8).deployment) == 9
    assert num_states(llama(method="ngram-mod").deployment) == 1  # without a network llama.cpp keeps none
    account_of = items(sglang(target=HYBRID, draft=MIXED, num_drafts=7, num_sequences=2, context_length=4096))
    assert account_of["recurrent state"] == 2 * 8 * HYBRID.state_bytes


def test_target_keys_and_values_count_full_attention_layers_only() -> None:
    """16 of 64 layers, 4 heads of 256, keys and values in 2 B: 65536 B a token; q8_0 keys take 34 of 64 bytes."""
    one = situation(target=HYBRID, method=None, num_sequences=1, context_length=1000)
    assert items(one)["target keys and values"] == 65536 * 1000
    mixed = llama(target=HYBRID, method=None, num_sequences=3, context_length=1000, kv_dtype="q8_0", value_dtype="f16")
    assert items(mixed)["target keys and values"] == 3 * 1000 * 16 * 4 * 256 * (8.5 + 16) / 8
    fp8 = situation(target=HYBRID, method=None, num_sequences=1, context_length=1000, kv_dtype="fp8")
    assert items(fp8)["target keys and values"] == 65536 * 500


def test_sliding_layers_of_a_drafter_stop_growing() -> None:
    """4 of 5 layers see 2048 tokens: 4 KiB a token grow, 16 KiB x 2048 do not."""
    seen = situation(target=HYBRID, draft=MIXED, num_sequences=1, context_length=10_000)
    assert items(seen)["drafter keys and values"] == 4096 * 10_000 + 16384 * 2048


def test_weights_by_quantisation() -> None:
    """8.2 G parameters: 16.4 GB in bf16; in 4 bit the embedding and the head (1.2 G) stay in bf16."""
    target = registered_target("Qwen/Qwen3-8B")
    assert target.weight_bytes == pytest.approx(16.38e9, rel=0.005)
    awq = replace(target, quantization="awq")
    embedding = 2 * 151936 * 4096
    assert awq.weight_bytes == int((target.num_parameters - embedding) * 4.25 / 8 + embedding * 2)
    assert replace(target, file_bytes=123).weight_bytes == 123


def test_tensor_parallel_divides_what_it_can() -> None:
    four = situation(num_sequences=1, context_length=1000, tensor_parallel=4, on="h100x4")
    one = situation(num_sequences=1, context_length=1000)
    assert items(four)["target weights"] == items(one)["target weights"] // 4
    assert items(four)["target keys and values"] == items(one)["target keys and values"] // 4
    more_than_heads = situation(num_sequences=1, context_length=1000, tensor_parallel=16, on="h100x16")
    assert items(more_than_heads)["target keys and values"] == items(one)["target keys and values"] // 8


def test_output_rows_of_llama_cpp() -> None:
    """4 slots with ngram-mod's 64 reserve 260 rows of logits."""
    seen = items(llama(method="ngram-mod", num_drafts=None, num_sequences=4))
    assert seen["output rows"] == 260 * 151936 * 4
    assert items(llama(num_drafts=15, num_sequences=1))["output rows"] == 16 * 151936 * 4


def test_experts_in_main_memory_do_not_count() -> None:
    on_device = items(llama(target=MIXTURE, draft=FOR_MIXTURE))["target weights"]
    with_experts_away = items(llama(target=MIXTURE, draft=FOR_MIXTURE, own={"cpu-moe": True}))
    left = with_experts_away["target weights (experts stay in main memory)"]
    assert on_device - left == pytest.approx(2 * MIXTURE.num_expert_parameters, rel=1e-6)
    half = items(llama(target=MIXTURE, draft=FOR_MIXTURE, own={"n-cpu-moe": 20}))
    assert half["target weights (experts stay in main memory)"] == pytest.approx((on_device + left) / 2, rel=1e-6)


def test_context_that_fits_uses_the_memory_up() -> None:
    seen = situation(on="rtx3090", num_sequences=1, context_length=4096, memory_fraction=0.95)
    found = counted(seen)
    assert found.context_with_drafts is not None
    filled = replace(seen.deployment, context_length=found.context_with_drafts)
    full = account(filled, seen.target_facts, seen.draft_facts, seen.devices)
    assert 0 <= full.budget_bytes - full.total_bytes < 2 * full.bytes_per_token
    assert found.context_without_drafts > found.context_with_drafts
    assert full.fits


def test_a_model_too_large_does_not_fit_and_has_no_context() -> None:
    found = counted(situation(target=HYBRID, draft=MIXED, on="rtx3090"))
    assert found.fits is False
    assert found.context_with_drafts == 0


def test_what_is_unknown_is_named_and_never_counted_as_nothing() -> None:
    found = counted(situation(target=None, draft=None))
    assert found.fits is None
    assert found.context_with_drafts is None
    assert "the size of the target's weights" in found.unknown
    assert "the size of the drafter's weights" in counted(situation(draft=replace(DFLASH, num_parameters=None))).unknown


def test_estimates_are_marked() -> None:
    marks = {item.name: item.is_estimate for item in counted(situation()).items}
    assert marks["activations"]
    assert marks["captured graphs"]
    assert marks["target weights"]
    assert not marks["target keys and values"]
    assert "captured graphs" not in items(situation(own={"enforce-eager": True}))


@pytest.mark.parametrize(
    ("name", "scheme"),
    [
        ("cyankiwi/Qwen3.6-35B-A3B-AWQ-4bit", "awq"),
        ("Qwen3.6-27B-Q4_0.gguf", "q4_0"),
        ("Model-UD-Q5_K_XL.gguf", "q5_k_m"),
        ("Model-FP8", "fp8"),
        ("Model-w4a16", "int4"),
        ("Qwen/Qwen3-8B", None),
        ("org/model:Q6_K", None),
    ],
)
def test_quantisation_in_a_name(name, scheme) -> None:
    expected = "q6_k" if name.endswith("Q6_K") else scheme
    assert quantization_in_name(name.replace(":", "-")) == expected


@pytest.mark.parametrize(
    ("declared", "scheme"),
    [
        ({"quant_method": "awq"}, "awq"),
        ({"quant_method": "fp8"}, "fp8"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "nvfp4"),
        (
            {"quant_method": "compressed-tensors", "config_groups": {"a": {"weights": {"num_bits": 4, "type": "int"}}}},
            "int4",
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"a": {"weights": {"num_bits": 8, "type": "float"}}},
            },
            "fp8",
        ),
    ],
)
def test_quantisation_in_a_config(declared, scheme) -> None:
    assert quantization_in_config({"quantization_config": declared}) == scheme
    assert quantization_in_config({}) is None


def test_unknown_types_are_errors_with_the_nearest_name() -> None:
    with pytest.raises(ConfigError, match="did you mean 'q8_0'"):
        kv_bits("q8_1")
    with pytest.raises(ConfigError, match="did you mean"):
        weight_bits("q4_k_x")
