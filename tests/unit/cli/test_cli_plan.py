"""`blockdraft plan`: what a person reads, what a program reads, exit codes; and that it stays light."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from blockdraft.cli.plan_facts import known_draft, known_target, local_path
from blockdraft.deploy.dialects import read_command
from blockdraft.errors import CheckpointError
from blockdraft.testing.tiny_gguf import write_tiny_gguf

AWQ = "cyankiwi/Qwen3.6-35B-A3B-AWQ-4bit"
ON_3090 = ("--hardware", "rtx3090", "--engine", "vllm")
TARGET_CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "num_hidden_layers": 36,
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
}
DRAFT_CONFIG = {
    "architectures": ["DFlashDraftModel"],
    "num_hidden_layers": 5,
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "block_size": 16,
    "dflash_config": {"mask_token_id": 151669, "target_layer_ids": [1, 9, 17, 25, 33]},
}


def write_model(folder: Path, config: dict, shapes: dict[str, list[int]]) -> Path:
    """Write a folder whose only safetensors file has a header and no data."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    tensors = {name: {"dtype": "BF16", "shape": shape, "data_offsets": [0, 0]} for name, shape in shapes.items()}
    header = json.dumps({"__metadata__": {"format": "pt"}, **tensors}).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    return folder


def test_a_person_reads_drafter_command_memory_and_findings(run) -> None:
    result = run("plan", AWQ, *ON_3090)
    assert result.exit_code == 0
    out = result.stdout
    for words in (
        "NVIDIA GeForce RTX 3090 (sm_86), 24 GiB",
        "vllm 0.33.0 (assumed)",
        "its name is that of Qwen/Qwen3.6-35B-A3B, stored otherwise (awq)",
        "drafter   z-lab/Qwen3.6-35B-A3B-DFlash (dflash)",
        f"vllm serve {AWQ}",
        "recurrent state",
        "without drafts",
        "note    P58",
        "fix: fewer drafts or fewer sequences",
        "[read in vLLM 0.33.0]",
        "not checked, because nobody said: ",
    ):
        assert words in out
    assert out.index("drafter  ") < out.index("vllm serve") < out.index("memory of one device") < out.index("P58")


def test_the_printed_command_is_the_planned_deployment(run) -> None:
    record = json.loads(run("plan", AWQ, *ON_3090, "--json").stdout)
    (found,) = record["plans"]
    assert record["hardware"]["compute_capability"] == [8, 6]
    assert found["can_start"]
    assert found["deployment"]["drafts"][0]["num_draft_tokens"] == 15
    assert read_command(found["command"]).drafts[0].num_draft_tokens == 15
    assert found["memory"]["fits"]
    assert {finding["rule"] for finding in found["findings"]} >= {"P58"}
    assert all(choice["why"] for choice in found["choices"])
    assert found["forms"]["command"].startswith("vllm serve")


def test_all_engines_and_why_one_gets_no_plan(run) -> None:
    record = json.loads(run("plan", "Qwen3.6-27B-Q4_K_M.gguf", "--hardware", "rtx3090", "--json").stdout)
    assert [plan["engine"] for plan in record["plans"]] == ["llamacpp"]
    assert set(record["refused"]) == {"vllm", "sglang"}
    both = run("plan", "Qwen3.6-27B-Q4_K_M.gguf", "--hardware", "rtx3090").stdout
    assert "no plan: it is a GGUF file" in both


def test_all_forms(run) -> None:
    out = run("plan", AWQ, *ON_3090, "--form", "all").stdout
    for words in ("docker run", "services:", "[Service]", "apiVersion:"):
        assert words in out


def test_a_form_that_cannot_be_written_says_why_and_stops_no_other(run) -> None:
    arguments = ("plan", "./Qwen3-8B-Q8_0.gguf", "--hardware", "rtx3090", "--engine", "llamacpp")
    out = run(*arguments, "--form", "all").stdout
    assert "# not in this form: ./Qwen3-8B-Q8_0.gguf is relative" in out
    assert "[Service]" in out
    assert run(*arguments, "--form", "docker").exit_code == 2


def test_several_machines_get_a_command_each(run) -> None:
    out = run("plan", "Qwen/Qwen3.6-27B-FP8", "--hardware", "dgx-sparkx2", "--engine", "vllm").stdout
    assert "# on node1" in out
    assert "ray start --head" in out
    assert "# on node2" in out


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("Qwen/Qwen3.6-27B", "--hardware", "rtx5090", "--engine", "vllm"), 1, ""),
        (("x", "--hardware", "rtx3900"), 2, "did you mean 'rtx3090'"),
        (("x", "--hardware", "h100", "--engine-version", "0.33.0"), 2, "is of one engine"),
        (("x", "--hardware", "h100", "--engine", "vllm", "--engine-version", "new"), 2, "is no version of vllm"),
        (("x", "--drafter", "org/y", "--hardware", "h100"), 2, "nothing tells what kind of drafter 'org/y' is"),
        (("x.gguf", "--hardware", "h100", "--engine", "vllm"), 2, "cannot run x.gguf"),
        ((), 2, "name a TARGET"),
        (("x", "--check", "vllm serve x"), 2, "name a TARGET"),
        (("--check", "vllm serve x", "--drafter", "d"), 2, "--drafter is for plans"),
        (("--check", "ls -l", "--hardware", "h100"), 2, "starts no engine"),
    ],
)
def test_exit_codes(run, arguments, code, words) -> None:
    result = run("plan", *arguments)
    assert result.exit_code == code
    assert words in result.stderr


def test_a_check_names_the_fault_and_writes_the_command_without_it(run) -> None:
    command = (
        "vllm serve Qwen/Qwen3-8B --swap-space 16 --max-model-len 4096 --kv-cache-dtype fp8 "
        "--attention-backend flash_attn --spec-method dflash --spec-model z-lab/Qwen3-8B-DFlash-b16 --spec-tokens 16"
    )
    result = run("plan", "--check", command, "--hardware", "rtx3090")
    assert result.exit_code == 1
    for words in ("error   P11  swap-space", "error   P39", "warning P21", "fix: ", "outdated: --swap-space"):
        assert words in result.stdout
    mended = result.stdout.split("\nmended\n")[1]
    assert "swap-space" not in mended.split("vllm serve")[1]
    again = run("plan", "--check", "vllm serve" + mended.split("vllm serve")[1], "--hardware", "rtx3090")
    assert again.exit_code == 0
    assert "error" not in again.stdout


def test_a_check_of_a_file_and_of_standard_input(run, tmp_path) -> None:
    script = tmp_path / "serve.sh"
    script.write_text("# a comment\nllama-server -m x.gguf -md d.gguf \\\n  --draft-max 16\n", encoding="utf-8")
    for source, piped in ((str(script), None), ("-", script.read_text(encoding="utf-8"))):
        result = run("plan", "--check", source, "--hardware", "cpu", input=piped)
        assert result.exit_code == 1
        assert "error   L1" in result.stdout
        assert "--spec-draft-n-max 16" in result.stdout


@pytest.mark.parametrize(
    ("command", "rule"),
    [
        ("vllm serve x --spec-tokens 8 --speculative-config '{\"num_speculative_tokens\": 8}'", "P12"),
        ("llama-server -m x.gguf --spec-type dflash", "L3"),
    ],
)
def test_a_command_that_contradicts_itself_gets_its_finding_too(run, command, rule) -> None:
    result = run("plan", "--check", command, "--hardware", "h100")
    assert result.exit_code == 1
    assert f"error   {rule}" in result.stdout
    assert "cannot be read as a whole" in result.stdout


def test_a_check_for_programs(run) -> None:
    command = "vllm serve Qwen/Qwen3-8B --swap-space 16 --max-model-len 4096"
    record = json.loads(run("plan", "--check", command, "--hardware", "h100", "--json").stdout)
    assert [finding["rule"] for finding in record["findings"]] == ["P11"]
    assert record["mended"] == ["vllm", "serve", "Qwen/Qwen3-8B", "--max-model-len", "4096"]
    assert record["version"]["origin"] == "assumed"


def test_the_version_of_an_image_counts(run) -> None:
    command = "docker run --gpus all vllm/vllm-openai:v0.19.1 Qwen/Qwen3-8B --spec-method dflash --spec-model d"
    out = run("plan", "--check", command, "--hardware", "h100").stdout
    assert "vllm 0.19.1 (given)" in out
    assert "error   P1 " in out


def test_files_on_this_machine_are_read(run, tmp_path) -> None:
    layers = {"model.layers.0.mlp.up_proj.weight": [12288, 4096]}
    target = write_model(tmp_path / "Qwen3-8B-mine", TARGET_CONFIG, layers)
    narrow = write_model(tmp_path / "drafter", DRAFT_CONFIG, {"fc.weight": [4096, 4 * 4096]})
    found = run("plan", str(target), "--drafter", str(narrow), *ON_3090)
    assert found.exit_code == 1
    assert "error   P23" in found.stdout
    assert "has 16384 inputs where the target gives 20480" in found.stdout


def test_what_files_say_of_a_target(tmp_path) -> None:
    folder = write_model(tmp_path / "mystery", TARGET_CONFIG, {"lm_head.weight": [1, 1]})
    known = known_target(str(folder))
    assert known.facts is not None
    assert known.base is not None
    assert known.base.name == "Qwen/Qwen3-8B"
    assert known.facts.file_bytes == (folder / "model.safetensors").stat().st_size
    assert known.facts.tensor_names == {"lm_head.weight"}


def test_what_files_say_of_a_drafter(tmp_path) -> None:
    folder = write_model(tmp_path / "Qwen3-8B-DFlash-b16", DRAFT_CONFIG, {"fc.weight": [4096, 20480]})
    (folder / "mask_embedding.pt").write_bytes(b"")
    facts = known_draft(str(folder))
    assert facts is not None
    assert (facts.fc_width, facts.thinking) == (
        20480,
        "off",
    )  # its name is registered, and the mode is known from there
    assert facts.file_names is not None
    assert "mask_embedding.pt" in facts.file_names


def test_a_damaged_header_is_an_error(tmp_path) -> None:
    folder = write_model(tmp_path / "bad", TARGET_CONFIG, {})
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", 4) + b"oops")
    with pytest.raises(CheckpointError, match="download the file again"):
        known_target(str(folder))


def test_the_cache_of_the_hub_is_looked_into_and_nothing_is_fetched(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    write_model(tmp_path / "models--org--name" / "snapshots" / "abc", TARGET_CONFIG, {})
    assert local_path("org/name") == tmp_path / "models--org--name" / "snapshots" / "abc"
    assert local_path("hf:org/name@main") == local_path("org/name")
    assert local_path("org/other") is None
    assert known_target("org/other").facts is None


def test_a_drafter_that_comes_with_the_package_is_read(run) -> None:
    facts = known_draft("builtin:smollm2-dflash")
    assert facts is not None
    assert facts.method == "dflash"
    assert facts.max_draft_tokens


def test_a_gguf_file_is_read(tmp_path) -> None:
    path = write_tiny_gguf(tmp_path / "tiny-Q8_0.gguf", "qwen3", "Q8_0", num_hidden_layers=3)
    known = known_target(str(path))
    assert known.facts is not None
    assert (known.facts.num_layers, known.facts.num_full_layers, known.facts.quantization) == (3, 3, "q8_0")
    assert known.facts.weight_bytes == path.stat().st_size


def test_planning_brings_no_torch(tmp_path) -> None:
    gguf = write_tiny_gguf(tmp_path / "tiny.gguf", "qwen3", "F32")
    for arguments in (
        ["plan", AWQ, "--hardware", "rtx3090", "--form", "all"],
        ["plan", str(gguf), "--hardware", "cpu", "--engine", "llamacpp"],
        ["plan", "--check", "vllm serve Qwen/Qwen3-8B --max-model-len 4096", "--hardware", "h100", "--json"],
    ):
        program = (
            "import sys; from blockdraft.cli.main import main\n"
            f"main({arguments!r}, standalone_mode=False)\n"
            "heavy = {'torch', 'transformers', 'huggingface_hub'} & set(sys.modules)\n"
            "sys.exit(f'{heavy}' if heavy else 0)"
        )
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


def test_folders_are_written_as_the_gguf_files_that_llama_cpp_needs(run, tmp_path: Path) -> None:
    target = write_model(tmp_path / "target", TARGET_CONFIG, {"model.embed_tokens.weight": [151936, 4096]})
    drafter = write_model(tmp_path / "drafter", DRAFT_CONFIG, {"fc.weight": [4096, 20480]})
    record = json.loads(run("plan", str(target), "--engine", "llamacpp", "--drafter", str(drafter), "--json").stdout)
    (found,) = record["plans"]
    assert str(tmp_path) not in " ".join(found["command"])
    assert found["deployment"]["target"].startswith("/models/target-")
    assert f"blockdraft export {drafter} --to gguf" in found["drafter"]["why"]


def test_an_engine_that_cannot_say_a_chain_is_refused_with_the_reason(run) -> None:
    chain = ("--drafter", "ngram-mod,z-lab/Qwen3-8B-DFlash-b16", "--hardware", "rtx4090")
    record = json.loads(run("plan", "Qwen/Qwen3-8B", *chain, "--json").stdout)
    assert [plan["engine"] for plan in record["plans"]] == ["llamacpp"]
    assert "one method" in record["refused"]["vllm"]
    alone = run("plan", "Qwen/Qwen3-8B", *chain, "--engine", "vllm")
    assert alone.exit_code == 2
    assert "one method" in alone.stderr
