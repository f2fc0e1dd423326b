"""A deployment in docker, compose, systemd, Kubernetes and on several machines runs the engine's own command."""

import shlex
import shutil
import subprocess
from dataclasses import replace

import pytest
import yaml

from blockdraft.deploy.deployment import Container, Deployment, Draft
from blockdraft.deploy.dialects import read_command, write_command
from blockdraft.deploy.forms import FORMS, command, docker, docker_words, node_commands, systemd
from blockdraft.deploy.forms.compose import compose, is_compose, read_compose
from blockdraft.deploy.forms.containers import contained
from blockdraft.deploy.forms.kubernetes import kubernetes
from blockdraft.deploy.forms.names import service_name
from blockdraft.errors import ConfigError

DRAFT = Draft(method="dflash", model="c/d-DFlash", num_draft_tokens=15)
VLLM = Deployment(engine="vllm", target="a/B-7b", drafts=(DRAFT,), tensor_parallel=2, environment={"HF_TOKEN": "abc"})
SGLANG = replace(VLLM, engine="sglang")
LLAMACPP = Deployment(engine="llamacpp", target="/models/b/m.gguf", port=9000, own={"device": "ROCm0"})
ALL = pytest.mark.parametrize("deployment", [VLLM, SGLANG, LLAMACPP], ids=lambda one: one.engine)


def load(text: str) -> dict:
    return yaml.safe_load(text)


@ALL
@pytest.mark.parametrize("form", FORMS)
def test_every_form_ends_with_a_line_and_is_made_for_every_engine(deployment, form) -> None:
    text = FORMS[form](deployment)
    assert text.endswith("\n")
    assert deployment.target in text


@ALL
def test_long_commands_have_a_line_for_each_flag_and_a_shell_reads_them(deployment) -> None:
    text = command(replace(deployment, own={**deployment.own, "api-key": 'it\'s a "key"', "seed": 1}))
    assert text.count("\\\n") >= 2
    words = subprocess.run(["bash", "-c", f"printf '%s\\0' {text}"], capture_output=True, text=True, check=True).stdout
    assert words.split("\0")[:-1] == [
        *(f"{name}={value}" for name, value in deployment.environment.items()),
        *write_command(replace(deployment, own={**deployment.own, "api-key": 'it\'s a "key"', "seed": 1})),
    ]


@ALL
def test_docker_runs_the_same_command_where_it_can_be_reached(deployment) -> None:
    found = read_command(docker(deployment))
    port = deployment.port or {"vllm": 8000, "sglang": 30000, "llamacpp": 9000}[deployment.engine]
    assert found.container is not None
    assert found.container.ports == (f"{port}:{port}",)
    assert found.host == (None if deployment.engine == "vllm" else "0.0.0.0")
    assert replace(found, container=None, host=None, environment={}) == replace(deployment, environment={})
    assert deployment.environment.items() <= found.environment.items()
    assert found.environment["HF_HOME"] in found.container.mounts[0]


def test_docker_has_the_devices_of_the_accelerator() -> None:
    assert "--gpus" in docker_words(VLLM)
    words = docker_words(LLAMACPP)
    assert "ghcr.io/ggml-org/llama.cpp:server-rocm" in words
    assert "--gpus" not in words
    assert "/dev/kfd" in words
    assert "/models/b:/models/b:ro" in words
    assert "ghcr.io/ggml-org/llama.cpp:server" in docker_words(LLAMACPP, "cpu")


@pytest.mark.parametrize("target", ["./m.gguf", "~/m.gguf", "m.gguf"])
def test_a_container_does_not_see_relative_paths(target) -> None:
    with pytest.raises(ConfigError, match="absolute path"):
        contained(replace(LLAMACPP, target=target))


def test_an_image_that_is_not_known_is_asked_for() -> None:
    with pytest.raises(ConfigError, match="no image of sglang for rocm"):
        docker(SGLANG, "rocm")


@ALL
def test_compose_is_watched_restarted_and_read_back(deployment) -> None:
    text = compose(deployment)
    (service,) = load(text)["services"].values()
    port = deployment.port or {"vllm": 8000, "sglang": 30000, "llamacpp": 9000}[deployment.engine]
    assert service["healthcheck"]["test"][-1] == f"http://localhost:{port}/health"
    assert service["restart"] == "unless-stopped"
    ((found,), notes) = read_compose(text)
    assert found.name == service_name(deployment)
    assert found.reading.deployment == contained(deployment)
    assert (notes, found.reading.notes) == ([], ())


WRITTEN_BY_HAND = """
# what people write
services:
  web:
    image: ghcr.io/open-webui/open-webui:main
    depends_on: [engine]
  engine:
    image: vllm/vllm-openai:v0.33.0
    runtime: nvidia
    ipc: host
    shm_size: 16g
    devices: [/dev/kfd, /dev/dri]
    depends_on: [web]
    ports:
      - "8000:8000"
      - {target: 9, published: 10}
    volumes:
      - ~/.cache/huggingface:/hub
      - {type: bind, source: /models, target: /models, read_only: true}
    environment:
      - HF_TOKEN
      - A=b
    command: >
      --model a/b
      --max-model-len 8k
      --speculative-config '{"method": "ngram", "num_speculative_tokens": 4}'
      --api-key $$KEY
    deploy:
      resources:
        reservations:
          devices: [{driver: nvidia, device_ids: ["0", "1"], capabilities: [gpu]}]
"""


def test_a_compose_file_written_by_hand_is_read() -> None:
    assert is_compose(WRITTEN_BY_HAND)
    ((service,), notes) = read_compose(WRITTEN_BY_HAND)
    deployment = service.reading.deployment
    assert service.name == "engine"
    assert [note.subject for note in notes] == ["service web"]
    assert [note.subject for note in service.reading.notes] == ["depends_on"]
    assert (deployment.target, deployment.context_length, deployment.engine_version) == ("a/b", 8000, "0.33.0")
    assert deployment.drafts == (Draft(method="ngram", num_draft_tokens=4),)
    assert deployment.own == {"api-key": ("$KEY",)}
    assert deployment.environment == {"HF_TOKEN": "${HF_TOKEN}", "A": "b"}
    assert deployment.container == Container(
        image="vllm/vllm-openai:v0.33.0",
        ports=("8000:8000", "10:9"),
        mounts=("~/.cache/huggingface:/hub", "/models:/models:ro"),
        gpus="device=0,1",
        shares_ipc=True,
        other=("--runtime", "nvidia", "--shm-size", "16g", "--device", "/dev/kfd", "--device", "/dev/dri"),
    )


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("services: [", "no valid YAML"),
        ("a: 1", "no `services`"),
        ("services: {a: 1}", "'a' is no mapping"),
        ("services: {a: {image: redis}}", "no service of the file runs an engine"),
        ("services: {a: {image: vllm/vllm-openai, command: [m, --port, x]}}", "--port takes a whole number"),
    ],
)
def test_what_is_no_compose_file_of_an_engine_is_an_error(text, named) -> None:
    with pytest.raises(ConfigError, match=named):
        read_compose(text)


def test_options_of_docker_without_a_key_in_compose_are_told() -> None:
    other = ("--rm", "--cidfile", "/x", "--ulimit=a", "--init", "--restart=always")
    text = compose(replace(VLLM, container=Container(image="vllm/vllm-openai", other=other)))
    assert [line for line in text.splitlines() if line.startswith("#")] == [
        "# left out, as compose has no such key: --cidfile /x",
        "# left out, as compose has no such key: --ulimit=a",
    ]
    (service,) = load(text)["services"].values()
    assert (service["init"], service["restart"]) == (True, "always")


def _read_unit(text: str) -> tuple[list[str], dict[str, str]]:
    lines = dict(line.split("=", 1) for line in text.splitlines() if line.startswith("ExecStart="))
    start = [word.replace("%%", "%").replace("$$", "$") for word in shlex.split(lines["ExecStart"])]
    variables = [line.split("=", 1)[1] for line in text.splitlines() if line.startswith("Environment=")]
    return start, dict(shlex.split(text)[0].split("=", 1) for text in variables)


@ALL
def test_a_unit_of_systemd_starts_the_same_words(deployment) -> None:
    own = {**deployment.own, "api-key": '100% $x "y"'}
    odd = replace(deployment, own=own, environment={"A": 'b "c" 5%'})
    start, variables = _read_unit(systemd(odd))
    assert start == ["/usr/bin/env", *write_command(odd)]
    assert {key: value.replace("%%", "%") for key, value in variables.items()} == odd.environment
    assert _read_unit(systemd(odd, "/opt/x"))[0] == ["/opt/x", *write_command(odd)[1:]]


@ALL
@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze")
def test_systemd_finds_no_fault_in_a_unit(deployment, tmp_path) -> None:
    unit = tmp_path / f"{service_name(deployment)}.service"
    unit.write_text(systemd(replace(deployment, environment={"A": 'b "c" 5%'})), encoding="utf-8")
    done = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_unit_with_a_container_stops_it_and_waits_for_docker() -> None:
    text = systemd(contained(replace(VLLM, container=Container(image="vllm/vllm-openai", other=("-it", "--rm")))))
    start, _ = _read_unit(text)
    name = service_name(VLLM)
    assert start[:5] == ["/usr/bin/docker", "run", "--rm", "--name", name]
    assert start.count("--rm") == 1
    assert "-it" not in start
    assert f"ExecStop=/usr/bin/docker stop {name}\n" in text
    assert "docker.service" in text


@ALL
def test_a_manifest_holds_together(deployment) -> None:
    claim, workload, service = yaml.safe_load_all(kubernetes(deployment))
    pod = workload["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    assert workload["spec"]["selector"]["matchLabels"] == pod["metadata"]["labels"] == service["spec"]["selector"]
    assert {one["name"] for one in container["volumeMounts"]} == {one["name"] for one in pod["spec"]["volumes"]}
    assert claim["metadata"]["name"] == pod["spec"]["volumes"][0]["persistentVolumeClaim"]["claimName"]
    assert service["spec"]["ports"][0]["targetPort"] == container["ports"][0]["name"]
    assert {"startupProbe", "readinessProbe", "livenessProbe"} <= set(container)
    words = [*container.get("command", ()), *container["args"]]
    assert read_command(docker(deployment)).drafts == deployment.drafts
    assert words == docker_words(deployment)[docker_words(deployment).index(container["image"]) + 1 :]
    environment = {one["name"]: one for one in container["env"]}
    assert environment["HF_HOME"]["value"] == container["volumeMounts"][0]["mountPath"]


def test_a_manifest_asks_for_the_gpus_and_keeps_the_token_secret() -> None:
    text = kubernetes(replace(VLLM, pipeline_parallel=3))
    assert "nvidia.com/gpu: 6" in text
    assert "abc" not in text
    assert "secretKeyRef" in text
    assert "amd.com/gpu: 1" in kubernetes(LLAMACPP)
    assert "gpu" not in kubernetes(replace(LLAMACPP, own={"device": "none"})).replace("--gpu", "")


def test_a_manifest_uses_the_folder_that_a_given_container_keeps_models_in() -> None:
    container = Container(image="x/vllm", mounts=("~/hub:/h/.cache/huggingface", "/data:/data:ro"))
    _, workload, _ = yaml.safe_load_all(kubernetes(replace(VLLM, container=container)))
    spec = workload["spec"]["template"]["spec"]
    assert [one["mountPath"] for one in spec["containers"][0]["volumeMounts"]] == ["/h/.cache/huggingface", "/data"]
    assert spec["volumes"][1] == {"name": "files-1", "hostPath": {"path": "/data"}}


def test_several_machines_are_more_than_a_manifest() -> None:
    with pytest.raises(ConfigError, match="LeaderWorkerSet"):
        kubernetes(replace(SGLANG, num_nodes=2))


def test_vllm_spreads_over_a_ray_cluster() -> None:
    head, worker, server = node_commands(replace(VLLM, num_nodes=2), ["h", "w"])
    assert head.words[:3] == ("ray", "start", "--head")
    assert worker.words[:3] == ("ray", "start", "--address=h:6379")
    assert (head.node, worker.node, server.node) == ("h", "w", "h")
    found = read_command(server.words)
    assert found.own == {"distributed-executor-backend": "ray"}
    assert (found.num_nodes, found.tensor_parallel) == (None, 2)


def test_sglang_runs_the_same_command_with_ranks() -> None:
    commands = node_commands(SGLANG, ["h", "w", "x"])
    found = [read_command(one.words) for one in commands]
    assert [one.own["node-rank"] for one in found] == [0, 1, 2]
    assert {one.own["dist-init-addr"] for one in found} == {"h:50000"}
    assert {one.num_nodes for one in found} == {3}


def test_llamacpp_reaches_rpc_servers_which_start_first() -> None:
    first, second, server = node_commands(LLAMACPP, ["h", "w", "x"])
    assert first.words == ("rpc-server", "--host", "w", "--port", "50052")
    assert second.node == "x"
    assert read_command(server.words).own["rpc"] == "w:50052,x:50052"


@pytest.mark.parametrize("nodes", [["h"], ["h", "h"], []])
def test_one_machine_is_not_several(nodes) -> None:
    with pytest.raises(ConfigError, match=r"address|twice"):
        node_commands(VLLM, nodes)


@pytest.mark.parametrize(
    ("target", "name"),
    [
        ("Qwen/Qwen3.6-27B", "vllm-qwen3-6-27b"),
        ("/m/x_Y.gguf", "vllm-x-y"),
        ("a/" + "b" * 80, "vllm-" + "b" * 45),
    ],
)
def test_a_name_suits_dns(target, name) -> None:
    assert service_name(replace(VLLM, target=target)) == name
