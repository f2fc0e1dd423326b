"""`blockdraft inspect`: targets, drafters and pairs, from headers alone."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from blockdraft.runtime.native_core import available_kernels
from blockdraft.testing.tiny_eagle3 import TinyEagle3, write_tiny_eagle3
from blockdraft.testing.tiny_gguf import write_tiny_gguf
from blockdraft.testing.tiny_models import tiny_target, write_tiny_model


@pytest.fixture(autouse=True)
def never_load_weights(monkeypatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("weights were loaded")

    monkeypatch.setattr("blockdraft.models.load.load_target", refuse)
    monkeypatch.setattr("blockdraft.drafters.draft_checkpoint.load_draft_checkpoint", refuse)


def test_a_target_is_described(run, checkpoints) -> None:
    result = run("inspect", checkpoints.target)
    assert result.exit_code == 0
    for text in ("(target)", "llama", "f32 100.0%", "context length", "512", "it can be run"):
        assert text in result.stdout


def test_a_drafter_alone_is_recognised(run, checkpoints) -> None:
    result = run("inspect", checkpoints.dspark)
    assert result.exit_code == 0
    for text in ("draft-dspark", "deepspec", "predicts", "hidden+markov", "max draft tokens"):
        assert text in result.stdout


@pytest.mark.parametrize("kind", ["dflash", "dspark", "target"])
def test_a_pair_that_fits(run, checkpoints, kind: str) -> None:
    drafter = getattr(checkpoints, kind)
    result = run("inspect", checkpoints.target, drafter)
    assert result.exit_code == 0
    assert "they fit" in result.stdout
    assert f"--drafter {drafter}" in result.stdout


def test_a_pair_that_does_not_fit_gives_all_reasons(run, checkpoints) -> None:
    result = run("inspect", checkpoints.other, checkpoints.dflash, "--json")
    assert result.exit_code == 1
    found = json.loads(result.stdout)
    assert found["fits"] is False
    assert "hidden size: the drafter was made for 64, the target has 32" in found["reasons"]
    assert "number of target layers: the drafter was made for 3, the target has 2" in found["reasons"]
    assert found["model"]["hidden_size"] == 32
    assert found["drafter"]["kind"] == "draft-dflash"
    text = run("inspect", checkpoints.other, checkpoints.dflash)
    assert text.exit_code == 1
    assert "they do not fit" in text.stdout
    assert "made for 64, the target has 32" in text.stdout


def test_json_of_one_checkpoint(run, checkpoints) -> None:
    found = json.loads(run("inspect", checkpoints.target, "--json").stdout)
    assert found["runs"] is True
    assert found["drafter"] is None
    assert found["model"]["kind"] == "target"


def test_a_small_model_of_another_vocabulary_does_not_fit(run, checkpoints, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("blockdraft.testing.tiny_gguf.SPECIAL_TOKENS", ("<a>", "<|im_start|>", "<|im_end|>"))
    stranger = write_tiny_gguf(tmp_path / "stranger.gguf", quant="F32")
    result = run("inspect", checkpoints.target, str(stranger))
    assert result.exit_code == 1
    assert "the vocabularies differ: token 0" in result.stdout


def test_an_ngram_drafter_fits_every_target(run, checkpoints) -> None:
    result = run("inspect", checkpoints.target, "ngram-mod")
    assert result.exit_code == 0
    assert "they fit" in result.stdout
    assert json.loads(run("inspect", checkpoints.target, "ngram-mod", "--json").stdout)["drafter"] == "ngram-mod"
    for arguments in (["ngram-mod"], ["ngram-mod", checkpoints.target], [checkpoints.dflash, "ngram-mod"]):
        assert run("inspect", *arguments).exit_code == 2


def test_a_swapped_pair_is_told(run, checkpoints) -> None:
    result = run("inspect", checkpoints.dflash, checkpoints.target)
    assert result.exit_code == 2
    assert f"blockdraft inspect {checkpoints.target} {checkpoints.dflash}" in result.stderr


def test_a_drafter_that_cannot_be_run_says_why(run, checkpoints, tmp_path: Path) -> None:
    folder = tmp_path / "broken"
    folder.mkdir()
    config = json.loads((Path(checkpoints.dflash) / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"conv_kernel_size": 3}))
    (folder / "model.safetensors").write_bytes((Path(checkpoints.dflash) / "model.safetensors").read_bytes())
    alone, paired = run("inspect", str(folder)), run("inspect", checkpoints.target, str(folder), "--json")
    assert (alone.exit_code, paired.exit_code) == (1, 1)
    assert "it cannot be run" in alone.stdout
    assert json.loads(paired.stdout)["reasons"][0].startswith("the drafter: this drafter uses DFlash 2")


def test_tensors_that_do_not_match_the_configuration_are_found(run, checkpoints, tmp_path: Path) -> None:
    folder = tmp_path / "narrow"
    folder.mkdir()
    config = json.loads((Path(checkpoints.dflash) / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"intermediate_size": 10}))
    (folder / "model.safetensors").write_bytes((Path(checkpoints.dflash) / "model.safetensors").read_bytes())
    result = run("inspect", checkpoints.target, str(folder), "--json")
    assert result.exit_code == 1
    assert "misshapen" in json.loads(result.stdout)["reasons"][0]


def test_an_eagle3_head_and_its_target(run, checkpoints, tmp_path: Path) -> None:
    info = tiny_target("llama").info
    fitting = replace(
        info,
        hidden_size=64,
        vocab_size=json.loads(run("inspect", checkpoints.target, "--json").stdout)["model"]["vocab_size"],
    )
    folder = write_tiny_eagle3(tmp_path, fitting, TinyEagle3(packaging="speculators"))
    result = run("inspect", checkpoints.target, str(folder))
    assert result.exit_code == 0
    for text in ("draft-eagle3", "speculators", "target layer ids", "0, 1, 2", "trained tokens", "they fit"):
        assert text in result.stdout
    result = run("inspect", checkpoints.other, str(folder), "--json")
    assert result.exit_code == 1
    assert "hidden size: the drafter was made for 64, the target has 32" in json.loads(result.stdout)["reasons"]
    assert "target layers [2] are read" in json.loads(result.stdout)["reasons"][-1]


def test_a_kind_that_is_not_supported_yet_is_named(run, checkpoints, tmp_path: Path) -> None:
    folder = tmp_path / "mtp"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"architectures": ["DeepSeekMTPModel"]}))
    save_file({"mtp.fc.weight": torch.ones(4)}, folder / "model.safetensors")
    result = run("inspect", checkpoints.target, str(folder))
    assert result.exit_code == 1
    assert "draft-mtp drafters are recognised and not supported yet" in result.stdout


def test_a_quantised_folder_cannot_be_run(run, tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path / "folder")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": {"quant_method": "awq"}}))
    result = run("inspect", str(folder))
    assert result.exit_code == 1
    assert "'awq'" in result.stdout


def test_a_reference_to_nothing_is_code_2(run) -> None:
    result = run("inspect", "./nothing.gguf")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "there is no file or folder" in result.stderr


# --- the machine ---


@pytest.mark.native
def test_the_kernels_of_this_machine_are_named(run) -> None:
    best = available_kernels()[0]
    result = run("inspect", "--device")
    assert result.exit_code == 0
    assert f"{best} (best of {best}" in result.stdout
    assert json.loads(run("inspect", "--device", "--json").stdout)["kernels"][0] == best


def test_a_machine_without_native_kernels_says_why(run, monkeypatch) -> None:
    monkeypatch.setattr("blockdraft.models.machine.available_kernels", list)
    monkeypatch.setattr("blockdraft.models.machine.why_unavailable", lambda: "no compiler was found")
    assert "none: no compiler was found" in run("inspect", "--device").stdout


@pytest.mark.parametrize(("arguments", "text"), [((), "name a model"), (("--device", "x"), "takes no model")])
def test_one_of_model_and_machine_is_described(run, arguments, text) -> None:
    result = run("inspect", *arguments)
    assert result.exit_code == 2
    assert text in result.stderr
