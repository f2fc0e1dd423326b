import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from blockdraft.drafters.block_config import BlockDraftConfig, LayerAttention, check_pair, read_block_config
from blockdraft.drafters.dflash import DFlashDrafter
from blockdraft.drafters.draft_checkpoint import load_draft_checkpoint
from blockdraft.errors import CheckpointError, NotFoundError, PairError, UnsupportedModelError
from blockdraft.testing.tiny_drafters import TinyDrafter, tiny_drafter_config, write_tiny_drafter
from blockdraft.testing.tiny_models import tiny_target

TARGET = tiny_target("qwen3", seed=1, num_hidden_layers=4)
INFO = TARGET.info


def config_of(spec: TinyDrafter, **overrides: Any) -> dict[str, Any]:
    return tiny_drafter_config(INFO, spec) | overrides


def read(spec: TinyDrafter | None = None, **overrides: Any) -> BlockDraftConfig:
    return read_block_config(config_of(spec or TinyDrafter(), **overrides))


def nested(spec: TinyDrafter, **keys: Any) -> dict[str, Any]:
    config = config_of(spec)
    return config | {"dflash_config": config["dflash_config"] | keys}


def without(config: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in config.items() if key not in keys}


def rewrite(folder: Path, **changes: torch.Tensor | None) -> Path:
    """Replace or remove tensors; a `__` in a name stands for a dot."""
    tensors = load_file(folder / "model.safetensors")
    for name, tensor in changes.items():
        tensors.pop(name.replace("__", "."), None)
        if tensor is not None:
            tensors[name.replace("__", ".")] = tensor
    save_file(tensors, folder / "model.safetensors")
    return folder


SPECULATORS = config_of(TinyDrafter(method="dspark", packaging="speculators"))
OLD_SPECULATORS = without(SPECULATORS, "sample_from_anchor", "speculators_config")
DFLASH_SPECULATORS = config_of(TinyDrafter(packaging="speculators"))


def _width(count: int) -> dict[str, Any]:
    return {"speculators_config": {"proposal_methods": [{"speculative_tokens": count}]}}


@pytest.mark.parametrize(
    ("config", "anchor_predicts", "source"),
    [
        (config_of(TinyDrafter()), False, "family default: Z Lab DFlash reserves"),
        (config_of(TinyDrafter(packaging="z-lab-nested")), False, "family default: Z Lab"),
        (config_of(TinyDrafter(packaging="specforge")), False, "family default: Z Lab"),
        (config_of(TinyDrafter(), sample_from_anchor=True), True, "sample_from_anchor true"),
        (nested(TinyDrafter(packaging="z-lab-nested"), sample_from_anchor=True), True, "sample_from_anchor true"),
        (config_of(TinyDrafter(packaging="deepspec")), True, "family default: DeepSpec"),
        (config_of(TinyDrafter(method="dspark", packaging="deepspec")), True, "family default: DeepSpec DSpark"),
        (
            config_of(TinyDrafter(method="dspark", packaging="deepspec"), sample_from_anchor=False),
            False,
            "sample_from_anchor false",
        ),
        (config_of(TinyDrafter(method="dspark", packaging="specforge")), True, "family default: SpecForge DSpark"),
        (SPECULATORS, True, "speculative_tokens 4 of block_size 4"),
        (OLD_SPECULATORS | _width(3), False, "speculative_tokens 3 of block_size 4"),
        (OLD_SPECULATORS | _width(2) | {"sample_from_anchor": True}, True, "sample_from_anchor true"),
        (DFLASH_SPECULATORS, False, "speculative_tokens 3 of block_size 4"),
        (
            without(DFLASH_SPECULATORS, "sample_from_anchor", "speculators_config"),
            False,
            "family default: speculators DFlash reserves",
        ),
    ],
)
def test_the_anchor_layout_is_settled_by_evidence(config: dict[str, Any], anchor_predicts: bool, source: str) -> None:
    parsed = read_block_config(config)
    assert parsed.anchor.anchor_predicts == anchor_predicts
    assert parsed.anchor.source.startswith(source)
    assert parsed.max_draft_tokens == (4 if anchor_predicts else 3)


def test_a_contradiction_about_the_anchor_is_an_error() -> None:
    with pytest.raises(CheckpointError, match=r"speculative_tokens 3 of block_size 4, but sample_from_anchor true"):
        read_block_config(SPECULATORS | _width(3))


@pytest.mark.parametrize("config", [OLD_SPECULATORS, OLD_SPECULATORS | _width(2)])
def test_no_evidence_about_the_anchor_is_an_error_that_names_the_key(config: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError, match="set `sample_from_anchor`"):
        read_block_config(config)


def test_an_unnamed_architecture_is_no_evidence() -> None:
    with pytest.raises(CheckpointError, match="set `sample_from_anchor`"):
        read_block_config(without(config_of(TinyDrafter()), "architectures"))


def test_speculators_layer_ids_count_the_embedding() -> None:
    assert SPECULATORS["aux_hidden_state_layer_ids"] == [1, 3]
    assert read_block_config(SPECULATORS).target_layer_ids == (0, 2)


def test_layer_ids_follow_the_published_rule_if_none_are_named() -> None:
    config = without(config_of(TinyDrafter()), "target_layer_ids") | {"num_target_layers": 36}
    five = config | {"num_hidden_layers": 5, "layer_types": ["full_attention"] * 5}
    assert read_block_config(five).target_layer_ids == (1, 9, 17, 25, 33)
    one = config | {"num_hidden_layers": 1, "layer_types": ["full_attention"]}
    assert read_block_config(one).target_layer_ids == (18,)


def test_nested_keys_win_over_flat_ones() -> None:
    config = nested(TinyDrafter(packaging="z-lab-nested"), block_size=6) | {"block_size": 9, "mask_token_id": 7}
    parsed = read_block_config(config)
    assert (parsed.block_size, parsed.mask_token_id) == (6, 3)


def test_a_published_config_without_block_size_has_sixteen() -> None:
    assert read_block_config(without(config_of(TinyDrafter()), "block_size")).block_size == 16


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ({}, LayerAttention(causal=False)),
        ({"is_causal": True}, LayerAttention(causal=True)),
        ({"layer_types": None}, LayerAttention(causal=False)),
    ],
)
def test_full_layers_see_both_directions_unless_told_otherwise(
    overrides: dict[str, Any], expected: LayerAttention
) -> None:
    assert set(read(**overrides).layers) == {expected}


@pytest.mark.parametrize(
    ("packaging", "is_causal", "expected"),
    [("z-lab", None, True), ("z-lab", False, False), ("speculators", False, False)],
)
def test_sliding_layers_are_causal_unless_told_otherwise(
    packaging: Any, is_causal: bool | None, expected: bool
) -> None:
    parsed = read(TinyDrafter(packaging=packaging, sliding_window=7, is_causal=is_causal))
    assert set(parsed.layers) == {LayerAttention(causal=expected, window=7)}


@pytest.mark.parametrize("overrides", [{"use_sliding_window": False}, {"sliding_window": None}])
def test_sliding_layers_without_a_window_are_an_error(overrides: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError, match="set `use_sliding_window`"):
        read(TinyDrafter(sliding_window=7), **overrides)


def test_a_window_narrower_than_the_block_is_an_error() -> None:
    with pytest.raises(CheckpointError, match="narrower than the block of 4"):
        read(TinyDrafter(sliding_window=3))


@pytest.mark.parametrize("key", ["hidden_size", "vocab_size", "mask_token_id", "num_attention_heads"])
def test_a_missing_key_is_named(key: str) -> None:
    with pytest.raises(CheckpointError, match=f"lacks `{key}`"):
        read_block_config(without(config_of(TinyDrafter()), key))


def test_markov_confidence_without_a_markov_head_is_a_contradiction() -> None:
    with pytest.raises(CheckpointError, match="`confidence_head_with_markov` is true but `markov_rank` is 0"):
        read(TinyDrafter(method="dspark", packaging="deepspec", markov_rank=0))


@pytest.mark.parametrize(
    ("overrides", "name"),
    [
        ({"conv_kernel_size": 2}, "DFlash 2"),
        ({"selector_rank": 256}, "DFlash 2"),
        ({"architectures": ["DFlash2DraftModel"]}, "DFlash 2"),
        ({"speculators_model_type": "dflash2", "transformer_layer_config": {}}, "DFlash 2"),
        ({"dflash_config": {"projector_type": "domino"}}, "Domino"),
        ({"dflash_config": {"attention_mode": "mla"}}, "MLA"),
        ({"kv_lora_rank": 512}, "MLA"),
        ({"model_type": "gemma4_text"}, "Gemma 4"),
        ({"model_type": "deepseek_v4"}, "DeepSeek"),
        ({"model_type": "qwen3_moe"}, "mixture-of-experts"),
        ({"model_type": "mamba"}, "the backbone 'mamba'"),
        ({"attention_sink_bias": True}, "attention sinks"),
        ({"attention_value_scale": 0.6}, "MiMo"),
        ({"dflash_config": {"use_swa": True}}, "MiMo"),
        ({"dspark_block_size": 5}, "inside a DeepSeek-V4 target"),
        ({"log_snr_conditioning": True}, "Bonsai"),
        ({"rope_is_neox_style": False}, "interleaved rotary"),
        ({"quantization_config": {"bits": 4}}, "quantised drafter weights"),
        ({"attention_bias": True}, "biases"),
        ({"target_hidden_size": 99}, "hidden size other than the target's"),
    ],
)
def test_known_variants_are_refused_by_name(overrides: dict[str, Any], name: str) -> None:
    with pytest.raises(UnsupportedModelError, match=name):
        read(**overrides)


@pytest.mark.parametrize(
    ("overrides", "key"), [({"hidden_act": "relu"}, "hidden_act"), ({"target_layer_ids": [-1, 2]}, "target layers")]
)
def test_values_outside_the_known_ones_are_refused(overrides: dict[str, Any], key: str) -> None:
    with pytest.raises(UnsupportedModelError, match=key):
        read(**overrides)


def test_missing_surplus_and_misshapen_tensors_are_listed(tmp_path: Path) -> None:
    folder = write_tiny_drafter(tmp_path, INFO, TinyDrafter())
    rewrite(folder, norm__weight=None, extra__weight=torch.zeros(2), hidden_norm__weight=torch.zeros(3))
    with pytest.raises(CheckpointError) as caught:
        load_draft_checkpoint(folder, INFO)
    for part in ("missing: norm.weight", "surplus: extra.weight", "misshapen: hidden_norm.weight is [3], not [48]"):
        assert part in str(caught.value)


def test_a_fusion_of_the_wrong_width_names_both_numbers(tmp_path: Path) -> None:
    folder = write_tiny_drafter(tmp_path, INFO, TinyDrafter())
    rewrite(folder, fc__weight=torch.zeros(48, 144))
    with pytest.raises(CheckpointError, match=r"reads 144 features.* 2 target layers of width 48, which makes 96"):
        load_draft_checkpoint(folder, INFO)


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("candidate_selector.hidden_projection.weight", "DFlash 2"),
        ("layers.0.mlp.experts.0.up_proj.weight", "mixture-of-experts"),
        ("layers.0.self_attn.attention_sink_bias", "attention sinks"),
    ],
)
def test_tensors_of_known_variants_are_refused_by_name(name: str, what: str, tmp_path: Path) -> None:
    folder = rewrite(write_tiny_drafter(tmp_path, INFO, TinyDrafter()), **{name.replace(".", "__"): torch.zeros(1)})
    with pytest.raises(UnsupportedModelError, match=what):
        load_draft_checkpoint(folder, INFO)


def test_a_reduced_vocabulary_without_its_head_is_not_filled_up_from_the_target(tmp_path: Path) -> None:
    folder = write_tiny_drafter(tmp_path, INFO, TinyDrafter(packaging="speculators", draft_vocab_size=40))
    tensors = load_file(folder / "model.safetensors")
    del tensors["lm_head.weight"]
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"missing: lm_head\.weight"):
        load_draft_checkpoint(folder, INFO)


def test_copies_of_the_targets_tables_are_checked_and_dropped(tmp_path: Path) -> None:
    folder = write_tiny_drafter(tmp_path, INFO, TinyDrafter(packaging="deepspec"))
    assert "embed_tokens.weight" not in load_draft_checkpoint(folder, INFO).tensors
    rewrite(folder, lm_head__weight=torch.zeros(5, 48))
    with pytest.raises(CheckpointError, match=r"lm_head.weight is \[5, 48\], not \[96, 48\]"):
        load_draft_checkpoint(folder, INFO)


def test_heads_of_early_specforge_exports_are_found(tmp_path: Path) -> None:
    folder = write_tiny_drafter(tmp_path, INFO, TinyDrafter(method="dspark", packaging="specforge"))
    tensors = load_file(folder / "model.safetensors")
    renamed = {f"logit_head.{name}" if "_head." in name else name: tensor for name, tensor in tensors.items()}
    save_file(renamed, folder / "model.safetensors")
    assert "markov_head.markov_w1.weight" in load_draft_checkpoint(folder, INFO).tensors


def test_sharded_checkpoints_load(tmp_path: Path) -> None:
    folder = write_tiny_drafter(tmp_path, INFO, TinyDrafter())
    whole = load_draft_checkpoint(folder, INFO).tensors
    names = sorted(whole)
    (folder / "model.safetensors").unlink()
    for index, part in enumerate((names[::2], names[1::2])):
        save_file({name: whole[name] for name in part}, folder / f"model-{index}-of-2.safetensors")
    again = load_draft_checkpoint(folder, INFO).tensors
    assert all(torch.equal(again[name], whole[name]) for name in names)


def test_weights_take_the_targets_dtype_and_tables_keep_theirs(tmp_path: Path) -> None:
    half = tiny_target("qwen3", dtype=torch.bfloat16, num_hidden_layers=4)
    spec = TinyDrafter(packaging="speculators", draft_vocab_size=10)
    tensors = load_draft_checkpoint(write_tiny_drafter(tmp_path, INFO, spec), half.info).tensors
    assert tensors["fc.weight"].dtype == torch.bfloat16
    assert tensors["d2t"].dtype == torch.int64


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (torch.full((10,), 90), "must hold offsets"),  # beyond the vocabulary
        (-torch.arange(10), "must hold offsets"),  # all on one token
        (torch.arange(10), "`d2t` and `t2d` name different tokens"),
    ],
)
def test_a_vocabulary_map_that_is_none_is_an_error(table: torch.Tensor, message: str, tmp_path: Path) -> None:
    spec = TinyDrafter(packaging="speculators", draft_vocab_size=10, seed=1)
    folder = rewrite(write_tiny_drafter(tmp_path, INFO, spec), d2t=table)
    with pytest.raises(CheckpointError, match=message):
        load_draft_checkpoint(folder, INFO)


def test_a_pair_that_does_not_fit_is_refused_with_both_sides_named(tmp_path: Path) -> None:
    other = tiny_target("llama", hidden_size=64, vocab_size=80, num_hidden_layers=2)
    parsed = read(TinyDrafter(mask_token_id=90))
    assert check_pair(parsed, INFO) == []
    assert check_pair(parsed, other.info) == [
        "hidden size: the drafter was made for 48, the target has 64",
        "vocabulary: the drafter was made for 96, the target has 80",
        "number of target layers: the drafter was made for 4, the target has 2",
        "target layers [2] are read by the drafter, the target has layers 0 to 1",
        "mask token 90 is outside the target's vocabulary of 80",
    ]
    with pytest.raises(PairError, match=r"does not fit the target \(llama\): hidden size"):
        DFlashDrafter.load(write_tiny_drafter(tmp_path, INFO, TinyDrafter()), other)


def test_folders_without_the_files_say_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"no config\.json"):
        load_draft_checkpoint(tmp_path, INFO)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match="not valid JSON"):
        load_draft_checkpoint(tmp_path, INFO)
    (tmp_path / "config.json").write_text(json.dumps(config_of(TinyDrafter())))
    with pytest.raises(NotFoundError, match=r"no \.safetensors"):
        load_draft_checkpoint(tmp_path, INFO)
    (tmp_path / "model.safetensors").write_bytes(b"cut off")
    with pytest.raises(CheckpointError, match="damaged"):
        load_draft_checkpoint(tmp_path, INFO)
    with pytest.raises(NotFoundError, match=r"draft\.gguf"):
        load_draft_checkpoint(tmp_path / "draft.gguf", INFO)
