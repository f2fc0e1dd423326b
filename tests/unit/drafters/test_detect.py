import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from blockdraft.drafters.detect import detect_kind
from blockdraft.errors import CheckpointError, NotFoundError, UnsupportedModelError
from blockdraft.testing.tiny_drafters import TinyDrafter, write_tiny_drafter
from blockdraft.testing.tiny_models import tiny_target, write_tiny_model

INFO = tiny_target("qwen3", num_hidden_layers=4).info


def folder(path: Path, config: dict[str, Any], *tensors: str) -> Path:
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps(config))
    if tensors:
        save_file({name: torch.zeros(1) for name in tensors}, path / "model.safetensors")
    return path


@pytest.mark.parametrize("packaging", ["z-lab", "z-lab-nested", "deepspec", "speculators", "specforge"])
def test_dflash_in_every_packaging(packaging: Any, tmp_path: Path) -> None:
    """DeepSpec ships DFlash under its DSpark architecture, with both heads off."""
    assert detect_kind(write_tiny_drafter(tmp_path, INFO, TinyDrafter(packaging=packaging))) == "draft-dflash"


@pytest.mark.parametrize("packaging", ["deepspec", "speculators", "specforge"])
def test_dspark_in_every_packaging(packaging: Any, tmp_path: Path) -> None:
    spec = TinyDrafter(method="dspark", packaging=packaging)
    assert detect_kind(write_tiny_drafter(tmp_path, INFO, spec)) == "draft-dspark"


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_an_ordinary_language_model_is_a_draft_model(family: str, tmp_path: Path) -> None:
    assert detect_kind(write_tiny_model(tmp_path, family)) == "draft-simple"


@pytest.mark.parametrize(
    ("config", "tensors", "kind"),
    [
        ({"architectures": ["LlamaForCausalLMEagle3"]}, (), "draft-eagle3"),
        ({"speculators_model_type": "eagle3"}, (), "draft-eagle3"),
        ({}, ("midlayer.self_attn.q_proj.weight", "fc.weight"), "draft-eagle3"),
        ({"speculators_model_type": "mtp"}, (), "draft-mtp"),
        ({"architectures": ["DeepSeekMTPModel"]}, (), "draft-mtp"),
        ({"model_type": "qwen3_5"}, ("mtp.fc.weight", "mtp.layers.0.mlp.up_proj.weight"), "draft-mtp"),
        (
            {"architectures": ["Qwen3_5ForCausalLM"]},
            ("mtp.fc.weight", "model.layers.0.mlp.up_proj.weight"),
            "draft-simple",
        ),
        ({"architectures": ["DFlash2DraftModel"]}, (), "draft-dflash"),
        ({"architectures": ["DeepseekV4ForCausalLM"], "dspark_block_size": 5}, (), "draft-dspark"),
        ({}, ("fc.weight", "hidden_norm.weight"), "draft-dflash"),
        ({}, ("fc.weight", "hidden_norm.weight", "markov_head.markov_w1.weight"), "draft-dspark"),
    ],
)
def test_the_kind_is_named_from_config_and_tensor_names(
    config: dict[str, Any], tensors: tuple[str, ...], kind: str, tmp_path: Path
) -> None:
    assert detect_kind(folder(tmp_path, config, *tensors)) == kind


def test_what_cannot_draft_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match="BertModel"):
        detect_kind(folder(tmp_path, {"architectures": ["BertModel"]}))
    with pytest.raises(NotFoundError, match=r"no config\.json"):
        detect_kind(tmp_path / "nothing")


@pytest.mark.parametrize(
    ("architecture", "tensor", "kind"),
    [
        ("dflash", "fc.weight", "draft-dflash"),
        ("dflash", "markov_w1.weight", "draft-dspark"),
        ("eagle3", "fc.weight", "draft-eagle3"),
        ("qwen35", "blk.24.nextn.eh_proj.weight", "draft-mtp"),
        ("llama", "blk.0.attn_q.weight", "draft-simple"),
    ],
)
def test_gguf_files_are_named_from_their_header(architecture: str, tensor: str, kind: str, tmp_path: Path) -> None:
    path = tmp_path / "draft.gguf"
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_tensor(tensor, np.zeros((2, 32), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert detect_kind(path) == kind


def test_a_broken_gguf_file_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "draft.gguf"
    path.write_bytes(b"not a model")
    with pytest.raises(CheckpointError, match=r"draft\.gguf"):
        detect_kind(path)
