"""`blockdraft translate`: where the source comes from, what goes to which stream, and what it costs to start."""

import json
import resource
import subprocess
import sys

import pytest

from blockdraft.deploy.dialects import read_command

VLLM = "vllm serve a/b --spec-method dflash --spec-model c/d --spec-tokens 15 --swap-space 4"
COMPOSE = """
services:
  web: {image: redis}
  one: {image: vllm/vllm-openai, command: --model a/b --port 1}
"""


def test_a_command_in_quotes_becomes_those_of_the_others(run) -> None:
    result = run("translate", VLLM)
    assert result.exit_code == 0
    assert "\n# llamacpp\n" in result.stdout
    assert result.stdout.startswith("# sglang\n")
    assert "--speculative-num-draft-tokens 16" in result.stdout
    assert "--spec-draft-n-max 15" in result.stdout


def test_what_is_worth_knowing_goes_to_standard_error_by_kind(run) -> None:
    result = run("translate", VLLM, "--to", "llamacpp")
    lines = result.stderr.splitlines()
    assert [line[2:16].strip() for line in lines if line.startswith("  ")] == [
        *("outdated", "converted", "converted", "by hand", "by hand")
    ]
    assert "--swap-space" not in result.stdout
    assert lines[0] == "vllm: as it was read"


@pytest.mark.parametrize("where", ["file", "stdin", "words"])
def test_the_source_comes_from_anywhere(run, tmp_path, where) -> None:
    path = tmp_path / "start.sh"
    path.write_text(f"#!/bin/sh\n# serves\n{VLLM}\n", encoding="utf-8")
    given = {"file": ([str(path)], None), "stdin": (["-"], VLLM), "words": (["--", *VLLM.split()], None)}
    arguments, text = given[where]
    result = run("translate", "--to", "sglang", *arguments, input=text)
    assert result.exit_code == 0
    assert read_command(result.stdout).drafts[0].num_draft_tokens == 15


def test_its_own_engine_gives_the_command_in_todays_words(run) -> None:
    result = run("translate", "sglang serve --model-path m --mamba-scheduler-strategy extra_buffer", "--to", "sglang")
    assert result.stdout == (
        "python -m sglang.launch_server --model-path m --mamba-radix-cache-strategy extra_buffer\n"
    )


def test_there_and_back_by_files_loses_nothing(run, tmp_path) -> None:
    first = (
        "llama-server -m m.gguf -c 600 -np 3 --cpu-moe -ctk q8_0 --spec-type ngram-mod,draft-mtp --spec-draft-n-max 2"
    )
    there = tmp_path / "there.sh"
    there.write_text(run("translate", first, "--to", "vllm").stdout, encoding="utf-8")
    back = run("translate", there, "--to", "llamacpp")
    assert read_command(back.stdout) == read_command(first)
    assert "restored" in back.stderr


def test_a_compose_file_stays_one_unless_another_form_is_asked_for(run, tmp_path) -> None:
    path = tmp_path / "compose.yaml"
    path.write_text(COMPOSE, encoding="utf-8")
    result = run("translate", path, "--to", "sglang")
    assert "services:\n  sglang-b:" in result.stdout
    assert "service web" in result.stderr
    assert run("translate", path, "--to", "sglang", "--form", "docker").stdout.splitlines()[1].startswith("docker run")


@pytest.mark.parametrize(
    ("form", "start"),
    [
        ("command", "python -m"),
        ("docker", "docker run"),
        ("compose", "services:"),
        ("systemd", "[Unit]"),
        ("kubernetes", "apiVersion:"),
    ],
)
def test_each_form_is_written_with_the_original_in_a_comment(run, form, start) -> None:
    lines = run("translate", "vllm serve a/b", "--to", "sglang", "--form", form).stdout.splitlines()
    assert lines[0] == "# translated from: vllm serve a/b"
    assert lines[1].startswith(start)


def test_json_has_everything_in_one_object(run) -> None:
    result = run("translate", VLLM, "--json")
    record = json.loads(result.stdout)
    assert result.stderr == ""
    assert record["source"]["deployment"]["target"] == "a/b"
    assert [note["subject"] for note in record["source"]["notes"]] == ["--swap-space"]
    assert [one["engine"] for one in record["translations"]] == ["sglang", "llamacpp"]
    for one in record["translations"]:
        assert read_command(one["command"]) == read_command(one["text"])
        assert {"kind", "subject", "text"} == set(one["notes"][0])


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["ollama run x"], "starts no engine"),
        (["llama-bench -m x.gguf"], "llama-bench"),
        (["compose.yaml"], "there is no file compose.yaml"),
        (["vllm serve m --port x"], "--port takes a whole number"),
        (["vllm serve m", "--service", "x"], "--service picks one of a compose file"),
        (["vllm serve m", "--form", "nomad"], "'nomad' is not one of"),
        (["llama-server -m ./m.gguf", "--to", "llamacpp", "--form", "docker"], "absolute path"),
        ([], "Missing argument"),
    ],
)
def test_what_cannot_be_translated_is_told_with_exit_code_2(run, arguments, named) -> None:
    result = run("translate", *arguments)
    assert result.exit_code == 2
    assert named in result.stderr
    assert result.stdout == ""


def test_one_of_several_services_is_picked(run, tmp_path) -> None:
    path = tmp_path / "compose.yaml"
    path.write_text(COMPOSE + "  two: {image: vllm/vllm-openai, command: c/d}\n", encoding="utf-8")
    result = run("translate", path)
    assert result.exit_code == 2
    assert "one, two" in result.stderr
    assert "c/d" in run("translate", path, "--service", "two", "--to", "sglang").stdout


def test_it_starts_without_torch_and_at_once() -> None:
    program = (
        "import sys; from blockdraft.cli.main import main\n"
        "try: main(['translate', 'vllm serve a/b', '--to', 'sglang', '--form', 'kubernetes'])\n"
        "finally: assert not {'torch', 'transformers', 'numpy'} & set(sys.modules)"
    )
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0, done.stderr
    # Of the processor's time, as a busy machine makes everybody wait.
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 0.5
