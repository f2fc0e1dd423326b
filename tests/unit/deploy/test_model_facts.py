"""Facts of models from config.json, from GGUF metadata, and with the registry's help."""

from __future__ import annotations

from dataclasses import replace

import pytest

from blockdraft.deploy.gguf_facts import draft_from_gguf, target_from_gguf
from blockdraft.deploy.model_facts import draft_from_hf, target_from_hf, with_registry
from blockdraft.deploy.pairs import find_drafter, registered_target

QWEN35 = {
    "architectures": ["Qwen3_5ForConditionalGeneration"],
    "model_type": "qwen3_5",
    "vision_config": {},
    "text_config": {
        "model_type": "qwen3_5_text",
        "num_hidden_layers": 64,
        "hidden_size": 5120,
        "intermediate_size": 17408,
        "num_attention_heads": 24,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "vocab_size": 248320,
        "max_position_embeddings": 262144,
        "layer_types": ["linear_attention", "linear_attention", "linear_attention", "full_attention"] * 16,
        "linear_num_value_heads": 48,
        "linear_num_key_heads": 16,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "mtp_num_hidden_layers": 1,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e7},
    },
}
ZLAB = {
    "architectures": ["DFlashDraftModel"],
    "num_hidden_layers": 5,
    "hidden_size": 5120,
    "intermediate_size": 17408,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "block_size": 16,
    "num_target_layers": 64,
    "layer_types": ["sliding_attention"] * 4 + ["full_attention"],
    "sliding_window": 2048,
    "max_position_embeddings": 32768,
    "dflash_config": {"mask_token_id": 248070, "target_layer_ids": [1, 16, 31, 46, 61]},
}


def test_a_hybrid_target() -> None:
    facts = target_from_hf(QWEN35, "mine")
    assert (facts.num_layers, facts.num_full_layers, facts.num_linear_layers) == (64, 16, 48)
    assert (facts.is_hybrid, facts.is_multimodal, facts.num_mtp_layers, facts.num_experts) == (True, True, 1, 0)
    assert facts.state_bytes == registered_target("Qwen/Qwen3.5-27B").state_bytes
    assert facts.num_parameters == pytest.approx(27e9, rel=0.02)


def test_quantisation_of_a_target_and_what_it_left_alone() -> None:
    declared = {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head", "mtp.*"]}
    facts = target_from_hf({**QWEN35, "quantization_config": declared}, "mine")
    assert (facts.quantization, facts.unquantized_parts) == ("nvfp4", ("lm_head", "mtp.*"))


def test_an_unknown_kind_of_target_leaves_sizes_open() -> None:
    facts = target_from_hf({"model_type": "odd"}, "mine")
    assert (facts.num_layers, facts.num_full_layers, facts.num_parameters, facts.weight_bytes) == (None,) * 4


def test_a_z_lab_drafter() -> None:
    facts = draft_from_hf(ZLAB, "mine", shapes={"fc.weight": (5120, 25600)}, file_names=["mask_embedding.pt"])
    assert (facts.method, facts.block_size, facts.max_draft_tokens) == ("dflash", 16, 15)
    assert facts.target_layer_ids == (1, 16, 31, 46, 61)
    assert (facts.num_sliding_layers, facts.sliding_window, facts.mask_token_id) == (4, 2048, 248070)
    assert (facts.fc_width, facts.file_names) == (25600, frozenset({"mask_embedding.pt"}))


def test_a_nested_block_size_wins() -> None:
    nested = {**ZLAB, "dflash_config": {**ZLAB["dflash_config"], "block_size": 8}}
    assert draft_from_hf(nested, "mine").block_size == 8


def test_a_speculators_drafter_counts_layers_from_one() -> None:
    config = {
        "speculators_model_type": "dspark",
        "transformer_layer_config": {"num_hidden_layers": 3, "hidden_size": 64, "num_attention_heads": 2},
        "aux_hidden_state_layer_ids": [2, 10],
        "block_size": 8,
        "speculators_config": {
            "proposal_methods": [{"speculative_tokens": 7}],
            "verifier": {"name_or_path": "org/target"},
        },
    }
    facts = draft_from_hf(config, "mine")
    assert (facts.method, facts.target_layer_ids, facts.verifier) == ("dspark", (1, 9), "org/target")
    assert facts.max_draft_tokens == 7  # its proposal says that the anchor is reserved
    assert (facts.num_layers, facts.hidden_size, facts.head_dim) == (3, 64, 32)


@pytest.mark.parametrize(("rank", "method", "most"), [(256, "dspark", 7), (0, "dflash", 7)])
def test_a_deepspec_drafter_is_dflash_without_a_markov_head(rank, method, most) -> None:
    facts = draft_from_hf({"architectures": ["Qwen3DSparkModel"], "block_size": 7, "markov_rank": rank}, "mine")
    assert (facts.method, facts.max_draft_tokens) == (method, most)


def test_a_language_model_is_no_block_drafter() -> None:
    assert draft_from_hf({"architectures": ["LlamaForCausalLM"], "vocab_size": 32000}, "mine").method is None


def test_the_registry_adds_what_files_do_not_say_and_changes_nothing() -> None:
    registered = find_drafter("z-lab/Qwen3-8B-DFlash-b16")
    assert registered is not None
    read = replace(registered.facts, block_size=8, thinking=None, trained_context=None, origin="config.json")
    both = with_registry(read, registered.facts)
    assert (both.block_size, both.thinking, both.trained_context, both.origin) == (8, "off", 4096, "config.json")
    assert with_registry(read, None) is read


GGUF = {
    "general.architecture": "qwen35moe",
    "qwen35moe.block_count": 41,
    "qwen35moe.nextn_predict_layers": 1,
    "qwen35moe.embedding_length": 2048,
    "qwen35moe.attention.head_count": 16,
    "qwen35moe.attention.head_count_kv": [0, 0, 0, 2] * 10,
    "qwen35moe.attention.key_length": 256,
    "qwen35moe.context_length": 262144,
    "qwen35moe.full_attention_interval": 4,
    "qwen35moe.ssm.state_size": 128,
    "qwen35moe.ssm.inner_size": 4096,
    "qwen35moe.ssm.group_count": 16,
    "qwen35moe.ssm.conv_kernel": 4,
    "qwen35moe.expert_count": 256,
    "qwen35moe.expert_used_count": 8,
}


def test_a_hybrid_mixture_in_gguf_is_the_registered_one() -> None:
    shapes = {"token_embd.weight": (248320, 2048), "blk.0.ffn_up_exps.weight": (256, 512, 2048)}
    facts = target_from_gguf(GGUF, shapes, "x-Q6_K.gguf", file_bytes=1000)
    known = registered_target("Qwen/Qwen3.6-35B-A3B")
    for name in ("num_layers", "num_full_layers", "num_linear_layers", "num_kv_heads", "head_dim", "state_bytes"):
        assert getattr(facts, name) == getattr(known, name), name
    assert (facts.num_mtp_layers, facts.num_experts, facts.vocab_size) == (1, 256, 248320)
    assert (facts.quantization, facts.weight_bytes) == ("q6_k", 1000)
    assert facts.num_expert_parameters == 256 * 512 * 2048


def test_a_drafter_in_gguf_counts_layers_from_one() -> None:
    metadata = {
        "general.architecture": "dflash",
        "dflash.block_size": 16,
        "dflash.target_layers": [2, 10, 18, 26, 34],
        "dflash.block_count": 5,
        "dflash.embedding_length": 4096,
        "tokenizer.ggml.mask_token_id": 151669,
    }
    shapes = {"fc.weight": (4096, 20480)}
    facts = draft_from_gguf(metadata, shapes, "x.gguf")
    assert (facts.method, facts.target_layer_ids) == ("dflash", (1, 9, 17, 25, 33))
    assert (facts.max_draft_tokens, facts.fc_width, facts.mask_token_id) == (15, 20480, 151669)
    dspark = draft_from_gguf(metadata, {**shapes, "markov_w1.weight": (151936, 256)}, "x.gguf")
    assert (dspark.method, dspark.max_draft_tokens, dspark.markov_rank) == ("dspark", 16, 256)
