"""Commands of a shell are cut as the shell cuts them: variables, wrappers, docker, quotes."""

import pytest

from blockdraft.deploy.deployment import Container
from blockdraft.deploy.dialects import read_command, read_with_notes
from blockdraft.deploy.dialects.words import join, quote, shell_words, split_command
from blockdraft.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "engine", "words"),
    [
        ("vllm serve m --port 1", "vllm", ("m", "--port", "1")),
        ("python -m vllm.entrypoints.openai.api_server --model m", "vllm", ("--model", "m")),
        ("python3.12 -m vllm.entrypoints.openai.api_server --model m", "vllm", ("--model", "m")),
        ("/opt/venv/bin/vllm serve m", "vllm", ("m",)),
        ("sudo env A=1 vllm serve m", "vllm", ("m",)),
        ("python -m sglang.launch_server --model-path m", "sglang", ("--model-path", "m")),
        ("sglang serve --model-path m", "sglang", ("--model-path", "m")),
        ("./build/bin/llama-server -m m.gguf", "llamacpp", ("-m", "m.gguf")),
        ("llama serve -m m.gguf", "llamacpp", ("-m", "m.gguf")),
        ("# a script\nvllm serve m \\\n  --port 1\n", "vllm", ("m", "--port", "1")),
        ("docker run vllm/vllm-openai m", "vllm", ("m",)),
        ("docker run --entrypoint vllm x/y serve m", "vllm", ("m",)),
        ("docker run x/y vllm serve m", "vllm", ("m",)),
        ("docker run lmsysorg/sglang python3 -m sglang.launch_server --model-path m", "sglang", ("--model-path", "m")),
        ("docker run ghcr.io/ggml-org/llama.cpp:server -m m.gguf", "llamacpp", ("-m", "m.gguf")),
    ],
)
def test_the_engine_and_its_words_are_found(text, engine, words) -> None:
    line = split_command(text)
    assert (line.engine, line.words) == (engine, words)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "there is no command"),
        ("ollama run m", "'ollama' starts no engine"),
        ("vllm bench serve", "vllm bench serves nothing"),
        ("llama-cli -m m.gguf", "llama-cli"),
        ("docker ps", "docker ps"),
        ("docker run --rm", "names no image"),
        ("docker run -p", "-p of docker run lacks its value"),
        ("docker run ubuntu bash", "'ubuntu' is of no engine"),
        ("docker run ghcr.io/ggml-org/llama.cpp:full llama-bench -m m.gguf", "llama-bench"),
        ("vllm serve 'm", "quotes"),
    ],
)
def test_what_is_no_server_is_refused_with_what_it_is(text, named) -> None:
    with pytest.raises(ConfigError, match=named.replace("(", r"\(")):
        split_command(text)


def test_variables_before_a_command_are_its_environment() -> None:
    deployment = read_command("CUDA_VISIBLE_DEVICES=0,1 HF_TOKEN='a b' vllm serve m")
    assert deployment.environment == {"CUDA_VISIBLE_DEVICES": "0,1", "HF_TOKEN": "a b"}


def test_docker_is_read_whole() -> None:
    line = split_command(
        "docker run -it --rm -d --gpus '\"device=0\"' --ipc host -p 8000:8000 --publish=9:9 -v ~/hub:/hub --env A=b "
        "-e HF_TOKEN --shm-size=16g --network host --name one vllm/vllm-openai:v0.33.0 m --port 8000"
    )
    assert line.environment == {"A": "b", "HF_TOKEN": "${HF_TOKEN}"}
    assert line.engine_version == "0.33.0"
    assert line.container == Container(
        image="vllm/vllm-openai:v0.33.0",
        ports=("8000:8000", "9:9"),
        mounts=("~/hub:/hub",),
        gpus='"device=0"',
        shares_ipc=True,
        other=("-it", "--rm", "-d", "--shm-size=16g", "--network", "host", "--name", "one"),
    )


def test_variables_of_the_client_do_not_reach_the_container_and_are_told() -> None:
    reading = read_with_notes("DOCKER_HOST=x podman run vllm/vllm-openai m")
    assert reading.deployment.environment == {}
    assert [(note.kind, note.subject) for note in reading.notes] == [
        ("converted", "podman"),
        ("unknown", "DOCKER_HOST"),
    ]


@pytest.mark.parametrize("tail", ["2>&1 | tee log", "&", "> log", "&& echo done"])
def test_what_follows_the_command_is_left_out_and_told(tail) -> None:
    reading = read_with_notes(f"vllm serve m {tail}")
    assert reading.deployment.target == "m"
    assert [note.kind for note in reading.notes] == ["unknown"]


@pytest.mark.parametrize("word", ["a", "a b", "it's", '{"a": "b"}', "a;b", "*", "", "a\nb", "~x", "--a=b c", "100%"])
def test_quoted_words_are_read_back(word) -> None:
    assert shell_words(f"x {quote(word)}") == ["x", word]
    assert join(["A=b c", word]).startswith("A='b c' ")


@pytest.mark.parametrize(
    ("word", "text"),
    [
        ("~/hub:/hub", "~/hub:/hub"),
        ("$HOME/x", '"$HOME/x"'),
        ("A=${B}", 'A="${B}"'),
        ("$5", "'$5'"),
        ("~/a b", "~/'a b'"),
    ],
)
def test_variables_and_the_home_folder_keep_their_meaning(word, text) -> None:
    assert quote(word) == text
