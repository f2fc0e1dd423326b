"""Reading config.json and GGUF metadata."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from blockdraft.errors import CheckpointError, UnsupportedModelError
from blockdraft.models.config import DecoderConfig, read_hf_config
from blockdraft.models.families import FAMILIES, find_gguf_family, find_hf_family
from blockdraft.testing.tiny_models import tiny_config


def read(family: str, **overrides: Any) -> DecoderConfig:
    config = tiny_config(family, **overrides)
    return FAMILIES[family].config_from_hf({key: value for key, value in config.items() if value is not None})


def test_configurations_are_read_without_torch() -> None:
    modules = "blockdraft.models.families, blockdraft.models.weights.gguf_header"
    code = f"import sys, {modules}; print('torch' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "False"


def test_each_family_has_its_own_options() -> None:
    options = {name: read(name) for name in FAMILIES}
    assert [name for name, config in options.items() if config.qkv_bias] == ["qwen2"]
    assert [name for name, config in options.items() if config.qk_norm] == ["qwen3", "qwen3_moe"]
    assert [name for name, config in options.items() if config.moe] == ["qwen3_moe"]
    moe = options["qwen3_moe"].moe
    assert moe is not None
    assert moe.layers == {0, 2}  # layer 1 is declared dense


def test_missing_keys_get_the_defaults_of_transformers() -> None:
    assert read("llama", head_dim=None, num_key_value_heads=None).head_dim == 12
    assert read("llama", num_key_value_heads=None).num_kv_heads == 4
    assert read("qwen3", head_dim=None).head_dim == 128
    assert read("llama", tie_word_embeddings=None).tie_embeddings is False


def test_a_stored_window_counts_only_where_it_is_used() -> None:
    window = {"sliding_window": 8, "max_window_layers": 2}
    assert read("qwen2", **window).windows == (None, None, None)
    assert read("qwen2", **window, use_sliding_window=True).windows == (None, None, 8)
    kinds = ["sliding_attention", "full_attention", "full_attention"]
    assert read("qwen2", **window, use_sliding_window=True, layer_types=kinds).windows == (8, None, None)
    assert read("qwen3_moe", **window, use_sliding_window=True).windows == (8, 8, 8)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"layer_types": ["linear_attention"] * 3}, "linear_attention"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope type 'dynamic'"),
    ],
)
def test_an_unsupported_feature_is_named(overrides: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedModelError, match=message):
        read("llama", **overrides)


def test_a_missing_size_is_named() -> None:
    with pytest.raises(CheckpointError, match="'hidden_size'"):
        read("llama", hidden_size=None)


def test_families_are_found_by_architecture() -> None:
    assert find_hf_family({"architectures": ["Qwen3MoeForCausalLM"]}) is FAMILIES["qwen3_moe"]
    assert find_hf_family({"architectures": ["GPT2LMHeadModel"]}) is None
    assert find_hf_family({}) is None
    assert find_gguf_family("qwen3moe") is FAMILIES["qwen3_moe"]
    with pytest.raises(UnsupportedModelError, match=r"'qwen35' is not supported.*llama, qwen2, qwen3, qwen3moe"):
        find_gguf_family("qwen35")


def gguf_metadata(**more: Any) -> dict[str, Any]:
    keys = {
        "attention.head_count": 4,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "block_count": 2,
        "context_length": 128,
        "embedding_length": 64,
        "feed_forward_length": 96,
        **more,
    }
    return {"general.architecture": "llama", **{f"llama.{key}": value for key, value in keys.items()}}


def test_gguf_metadata_gives_sizes_and_rope() -> None:
    scaling = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 32}
    shapes = {"token_embd.weight": (100, 64), "blk.0.attn_q.bias": (64,)}
    config = FAMILIES["llama"].config_from_gguf(gguf_metadata(**scaling, **{"rope.freq_base": 5e5}), shapes)
    assert (config.vocab_size, config.num_kv_heads, config.head_dim, config.tie_embeddings) == (100, 4, 16, True)
    assert (config.qkv_bias, config.output_bias) == (True, False)
    assert (config.rope.rope_type, config.rope.factor, config.rope.original_context) == ("yarn", 4.0, 32)
    assert config.rope.theta == 5e5


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"expert_count": 8}, "experts"),
        ({"attention.sliding_window": 4096}, "sliding window"),
        ({"rope.scaling.type": "longrope"}, "longrope"),
        ({"rope.scaling.type": "yarn", "rope.scaling.yarn_attn_factor": 0.5}, "yarn_attn_factor"),
        ({"rope.dimension_count": 8}, "rotate only a part"),
    ],
)
def test_unsupported_gguf_features_are_named(more: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedModelError, match=message):
        FAMILIES["llama"].config_from_gguf(gguf_metadata(**more), {"token_embd.weight": (100, 64)})


def test_a_gguf_without_embedding_is_no_model() -> None:
    with pytest.raises(CheckpointError, match=r"token_embd\.weight"):
        FAMILIES["llama"].config_from_gguf(gguf_metadata(), {})


def test_config_json_must_be_there_and_be_json(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no config\.json"):
        read_hf_config(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match="not valid JSON"):
        read_hf_config(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps([1]))
    with pytest.raises(CheckpointError, match="no JSON object"):
        read_hf_config(tmp_path)
