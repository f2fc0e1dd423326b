"""Loading targets from files, describing them, and refusing what cannot be run."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from blockdraft.errors import CheckpointError, ConfigError, NotFoundError, UnsupportedModelError
from blockdraft.models.base import Segment, Target
from blockdraft.models.decoder import Decoder
from blockdraft.models.describe import describe
from blockdraft.models.load import load_model, load_target
from blockdraft.models.references import DEFAULT_MODEL
from blockdraft.testing.tiny_gguf import write_tiny_gguf
from blockdraft.testing.tiny_models import tiny_target, write_tiny_model

IDS = list(range(3, 20))


def logits_of(target: Target) -> torch.Tensor:
    return target.forward([Segment(token_ids=IDS, cache=target.new_cache(), num_logits=len(IDS))]).logits


def edit_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "qwen3_moe"])
def test_a_tiny_model_is_the_same_on_disk_and_in_memory(family: str, tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path, family, seed=5)
    expected = logits_of(tiny_target(family, seed=5))
    torch.testing.assert_close(logits_of(load_target(folder, dtype="float32")), expected, rtol=0, atol=0)
    assert not torch.equal(expected, logits_of(tiny_target(family, seed=6)))


def test_dtype_and_stored_type_are_reported_apart(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path, dtype=torch.bfloat16)
    info = load_target(folder, device="cpu", dtype="float32").info
    assert (info.dtype, info.quantization) == (torch.float32, "bf16")
    assert info.weight_bytes == 4 * info.num_parameters


def test_tied_heads_are_one_tensor_and_a_stored_duplicate_is_ignored(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path, tie_word_embeddings=True)
    path = folder / "model.safetensors"
    tensors = load_file(path)
    assert "lm_head.weight" not in tensors
    extra = {"lm_head.weight": tensors["model.embed_tokens.weight"].clone()}
    extra["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(6)
    save_file(tensors | extra, path)
    target = load_target(folder, dtype="float32")
    assert target.head_weight is target.embedding_weight
    assert target.info.num_parameters == sum(tensor.numel() for tensor in tensors.values())


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path, tie_word_embeddings=True)
    edit_config(folder, tie_word_embeddings=False)
    with pytest.raises(CheckpointError, match=r"lacks lm_head\.weight"):
        load_target(folder)


@pytest.mark.parametrize("method", ["awq", "gptq", "fp8"])
def test_a_quantised_folder_is_refused_by_name(method: str, tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path)
    edit_config(folder, quantization_config={"quant_method": method})
    with pytest.raises(UnsupportedModelError, match=f"quantised with '{method}'.*GGUF"):
        load_target(folder)


def test_integer_weights_are_refused_by_name(tmp_path: Path) -> None:
    path = write_tiny_model(tmp_path) / "model.safetensors"
    save_file(load_file(path) | {"model.norm.weight": torch.ones(48, dtype=torch.int8)}, path)
    with pytest.raises(UnsupportedModelError, match=r"model\.norm\.weight as I8"):
        load_target(tmp_path)


def test_wrong_options_and_absent_models_are_errors(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"no model at .*nothing"):
        load_target(tmp_path / "nothing")
    with pytest.raises(ConfigError, match="did you mean 'float16'"):
        load_target(tmp_path, dtype="flot16")


def save_generic(folder: Path, model_type: str, **options: Any) -> Any:
    sizes = {"vocab_size": 96, "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, **options}
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **sizes)).eval()
    model.save_pretrained(folder)
    return model


def test_another_architecture_goes_to_transformers_and_says_so(tmp_path: Path) -> None:
    reference = save_generic(tmp_path, "gpt2")
    told: list[str] = []
    target = load_target(tmp_path, device="cpu", dtype="float32", notify=told.append)
    assert target.info.family == "transformers:gpt2"
    assert "GPT2LMHeadModel has no own implementation" in told[0]
    assert "slower" in told[1]
    with torch.no_grad():
        expected = reference(torch.tensor([IDS]), output_hidden_states=True)
    output = target.forward([Segment(token_ids=IDS, cache=target.new_cache(), num_logits=3)], [0])
    torch.testing.assert_close(output.logits, expected.logits[0, -3:])
    torch.testing.assert_close(output.target_hidden, expected.hidden_states[1][0])
    assert target.info.num_parameters == reference.num_parameters()


def test_without_a_listener_the_slower_path_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    save_generic(tmp_path, "gpt2")
    with caplog.at_level(logging.WARNING, logger="blockdraft"):
        load_target(tmp_path, device="cpu", dtype="float32")
    assert "slower" in caplog.text


def test_a_feature_that_own_code_lacks_goes_to_transformers_with_the_reason(tmp_path: Path) -> None:
    rope = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
    save_generic(tmp_path, "llama", rope_parameters=rope, intermediate_size=64, max_position_embeddings=64)
    told: list[str] = []
    assert load_target(tmp_path, dtype="float32", notify=told.append).info.family == "transformers:llama"
    assert "rope type 'dynamic' is not supported" in told[0]


def test_transformers_may_not_invent_missing_weights(tmp_path: Path) -> None:
    save_generic(tmp_path, "gpt2")
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    del tensors["transformer.h.1.mlp.c_fc.weight"]
    save_file(tensors, path, metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=r"lacks transformer\.h\.1\.mlp\.c_fc\.weight"):
        load_target(tmp_path, notify=lambda line: None)


def test_an_architecture_nobody_knows_is_unsupported(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path)
    edit_config(folder, architectures=["NobodyForCausalLM"], model_type="nobody")
    with pytest.raises(UnsupportedModelError, match="nobody"):
        load_target(folder, notify=lambda line: None)


def test_describe_reads_no_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gguf_path = write_tiny_gguf(tmp_path / "tiny.gguf", "qwen3_moe", "Q4_1")
    folder = write_tiny_model(
        tmp_path / "folder", "qwen2", sliding_window=9, use_sliding_window=True, max_window_layers=1
    )
    expected = load_target(gguf_path, dtype="float32").info
    monkeypatch.setattr(torch, "empty", None)
    found = describe(gguf_path)
    assert found["family"] == "qwen3_moe"
    assert found["num_parameters"] == expected.num_parameters
    assert max(found["stored_as"], key=lambda kind: found["stored_as"][kind]["num_elements"]) == "Q4_1"
    assert found["experts"] == {"num_experts": 6, "num_active": 2, "intermediate_size": 32, "num_layers": 2}
    assert found["file_bytes"] == gguf_path.stat().st_size
    found = describe(folder)
    assert (found["family"], found["sliding_window"], list(found["stored_as"])) == ("qwen2", 9, ["f32"])
    assert json.loads(json.dumps(found)) == found


def test_describe_says_why_a_model_takes_the_generic_path(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path)
    edit_config(folder, hidden_act="gelu")
    assert "hidden_act 'gelu'" in describe(folder)["why_generic"]
    edit_config(folder, architectures=["GPT2LMHeadModel"], model_type="gpt2")
    assert describe(folder)["family"] == "transformers:gpt2"


def test_a_tiny_gguf_loads_with_its_tokenizer(tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "tiny.gguf", "llama")
    loaded = load_model(str(path), dtype="float32")
    assert loaded.path == path
    assert isinstance(loaded.target, Decoder)
    ids = loaded.tokenizer.encode("hello the world")
    assert max(ids) < loaded.target.info.vocab_size
    assert loaded.tokenizer.decode(ids) == "hello the world"


@pytest.mark.slow
@pytest.mark.network
def test_the_default_model_knows_the_capital_of_france() -> None:
    loaded = load_model(DEFAULT_MODEL, device="cpu")
    assert loaded.target.info.quantization == "Q4_1"
    assert loaded.target.info.num_parameters == 134515008
    ids = loaded.tokenizer.encode("The capital of France is")
    segment = Segment(token_ids=ids, cache=loaded.target.new_cache(), num_logits=1)
    assert loaded.tokenizer.decode([int(loaded.target.forward([segment]).logits[0].argmax())]) == " Paris"
