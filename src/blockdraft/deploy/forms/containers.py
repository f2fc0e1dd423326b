"""The images that engines come in, and what a container of one sees of the machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Literal

from blockdraft.deploy.deployment import Container, Deployment, EngineName
from blockdraft.deploy.dialects import write_command
from blockdraft.errors import ConfigError

Accelerator = Literal["cuda", "rocm", "vulkan", "intel", "cpu"]

PORTS: Mapping[EngineName, int] = {"vllm": 8000, "sglang": 30000, "llamacpp": 8080}
"""Where an engine listens if nothing is said."""
HOSTS: Mapping[EngineName, str] = {"vllm": "0.0.0.0", "sglang": "127.0.0.1", "llamacpp": "127.0.0.1"}
"""On which address, if nothing is said."""

IMAGES: Mapping[EngineName, Mapping[Accelerator, str]] = {
    "vllm": {"cuda": "vllm/vllm-openai:latest", "rocm": "vllm/vllm-openai-rocm:latest"},
    "sglang": {"cuda": "lmsysorg/sglang:latest"},
    "llamacpp": {
        "cuda": "ghcr.io/ggml-org/llama.cpp:server-cuda",
        "rocm": "ghcr.io/ggml-org/llama.cpp:server-rocm",
        "vulkan": "ghcr.io/ggml-org/llama.cpp:server-vulkan",
        "intel": "ghcr.io/ggml-org/llama.cpp:server-intel",
        "cpu": "ghcr.io/ggml-org/llama.cpp:server",
    },
}
CACHE_PATH = "/cache/huggingface"
"""Where a container keeps models; all engines read HF_HOME, whoever runs in the image."""
_CACHE = f"~/.cache/huggingface:{CACHE_PATH}"
_DEVICES: Mapping[Accelerator, tuple[str, ...]] = {
    "cuda": (),
    "rocm": ("--device", "/dev/kfd", "--device", "/dev/dri", "--group-add", "video"),
    "vulkan": ("--device", "/dev/dri"),
    "intel": ("--device", "/dev/dri"),
    "cpu": (),
}


def contained(deployment: Deployment, accelerator: Accelerator | None = None) -> Deployment:
    """Return the deployment with a container: its own, or the engine's image with what it needs.

    A server in a container listens on all addresses, as nobody reaches it otherwise. Folders of models that are named
    by absolute paths are mounted where they are.

    Raises:
        ConfigError: no image is known for the accelerator, or a model is named by a relative path.
    """
    if deployment.container is not None:
        return _reachable(deployment)
    accelerator = accelerator or accelerator_of(deployment)
    image = IMAGES[deployment.engine].get(accelerator)
    if image is None:
        raise ConfigError(
            f"no image of {deployment.engine} for {accelerator} is known; known are "
            f"{', '.join(IMAGES[deployment.engine])}. Name yours in a docker run command or a compose file"
        )
    port = deployment.port or PORTS[deployment.engine]
    container = Container(
        image=image,
        ports=(f"{port}:{port}",),
        mounts=(_CACHE, *_model_folders(deployment)),
        gpus="all" if accelerator == "cuda" else None,
        shares_ipc=deployment.engine != "llamacpp",
        other=_DEVICES[accelerator],
    )
    environment = {"HF_HOME": CACHE_PATH, **deployment.environment}
    return _reachable(replace(deployment, container=container, environment=environment))


def accelerator_of(deployment: Deployment) -> Accelerator:
    """Return what a deployment computes on, as far as its settings tell: CUDA unless a device says otherwise."""
    device = str(deployment.own.get("device", "")).lower()
    marks: tuple[tuple[str, Accelerator], ...] = (("rocm", "rocm"), ("vulkan", "vulkan"), ("sycl", "intel"))
    found = next((accelerator for mark, accelerator in marks if device.startswith(mark)), None)
    return found or ("cpu" if device == "none" else "cuda")


def container_words(deployment: Deployment) -> list[str]:
    """Return the words after the image: images of vLLM and llama.cpp start the server themselves."""
    words = list(write_command(deployment))
    if deployment.engine == "sglang":
        return ["python3", *words[1:]]
    return words[2:] if deployment.engine == "vllm" else words[1:]


def _reachable(deployment: Deployment) -> Deployment:
    if deployment.host is None and HOSTS[deployment.engine] != "0.0.0.0":
        return replace(deployment, host="0.0.0.0")
    return deployment


def _model_folders(deployment: Deployment) -> tuple[str, ...]:
    models = [deployment.target, *(draft.model for draft in deployment.drafts if draft.model)]
    folders = []
    for model in dict.fromkeys(models):
        if model.startswith(("./", "../", "~")) or (model.endswith(".gguf") and not model.startswith(("/", "http"))):
            raise ConfigError(f"{model} is relative to a folder that the container does not see; give an absolute path")
        if model.startswith("/"):
            folder = PurePosixPath(model).parent if model.endswith(".gguf") else PurePosixPath(model)
            folders.append(f"{folder}:{folder}:ro")
    return tuple(dict.fromkeys(folders))
