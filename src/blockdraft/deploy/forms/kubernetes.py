"""A deployment as a manifest of Kubernetes: a Deployment, a Service, and a claim for the cache of models."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import yaml

from blockdraft.deploy.deployment import Deployment
from blockdraft.deploy.forms.containers import CACHE_PATH, PORTS, accelerator_of, contained, container_words
from blockdraft.deploy.forms.names import service_name
from blockdraft.errors import ConfigError

_SECRETS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
_RESOURCES = {"cuda": "nvidia.com/gpu", "rocm": "amd.com/gpu", "intel": "gpu.intel.com/xe", "vulkan": None, "cpu": None}
_CACHE_END = ".cache/huggingface"


def kubernetes(deployment: Deployment, *, cache_size: str = "200Gi") -> str:
    """Return the manifest of a deployment on one machine.

    As many GPUs are asked for as tensors and layers are spread over. A token of the hub comes from the secret
    `huggingface` and is never written down. Until the model is loaded, the start-up probe waits up to an hour.

    Raises:
        ConfigError: the deployment spans several machines, or the engine cannot say a part of it.
    """
    if (deployment.num_nodes or 1) > 1:
        raise ConfigError(
            "a Deployment of Kubernetes puts each replica on one machine; for several use LeaderWorkerSet, with the "
            "commands of each node"
        )
    deployment, cache = _with_cache(contained(deployment))
    name, port = service_name(deployment), deployment.port or PORTS[deployment.engine]
    volumes, mounts = _volumes(deployment, name, cache)
    container: dict[str, Any] = {
        "name": deployment.engine,
        "image": deployment.container.image if deployment.container else "",
        **_command(deployment),
        "env": [_variable(key, value) for key, value in deployment.environment.items()],
        "ports": [{"name": "http", "containerPort": port}],
        "resources": _resources(deployment),
        "volumeMounts": mounts,
        **_probes(),
    }
    container = {key: value for key, value in container.items() if value not in ([], {})}
    labels = {"app": name}
    parts = [
        _object(
            "v1",
            "PersistentVolumeClaim",
            f"{name}-cache",
            {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": cache_size}}},
        ),
        _object(
            "apps/v1",
            "Deployment",
            name,
            {
                "replicas": 1,
                # The old pod holds the GPU until it is gone; a new one beside it would wait for ever.
                "strategy": {"type": "Recreate"},
                "selector": {"matchLabels": labels},
                "template": {
                    "metadata": {"labels": dict(labels)},
                    "spec": {"containers": [container], "volumes": volumes, "terminationGracePeriodSeconds": 60},
                },
            },
        ),
        _object(
            "v1",
            "Service",
            name,
            {"selector": dict(labels), "ports": [{"name": "http", "port": port, "targetPort": "http"}]},
        ),
    ]
    return str(yaml.safe_dump_all(parts, sort_keys=False, width=110))


def _object(version: str, kind: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name}, "spec": spec}


def _command(deployment: Deployment) -> dict[str, list[str]]:
    """Return what is run: `args` for images that start the server themselves. `$(` begins a variable there."""
    words = [word.replace("$(", "$$(") for word in container_words(deployment)]
    if deployment.engine == "sglang":
        return {"command": words[:3], "args": words[3:]}
    return {"args": words}


def _variable(name: str, value: str) -> dict[str, Any]:
    if name in _SECRETS:
        return {"name": name, "valueFrom": {"secretKeyRef": {"name": "huggingface", "key": "token"}}}
    return {"name": name, "value": value}


def _resources(deployment: Deployment) -> dict[str, Any]:
    container = deployment.container
    resource = _RESOURCES[accelerator_of(deployment)]
    if resource is None or (container and container.gpus is None and accelerator_of(deployment) == "cuda"):
        return {}
    count = (deployment.tensor_parallel or 1) * (deployment.pipeline_parallel or 1)
    return {"limits": {resource: count}}


def _with_cache(deployment: Deployment) -> tuple[Deployment, str]:
    """Return the deployment and the folder where its container keeps models, which is said if nothing says it."""
    if "HF_HOME" in deployment.environment:
        return deployment, deployment.environment["HF_HOME"]
    targets = [mount.split(":")[1] for mount in (deployment.container.mounts if deployment.container else ())]
    found = next((target for target in targets if target.endswith(_CACHE_END)), None)
    if found is not None:
        return deployment, found
    return replace(deployment, environment={"HF_HOME": CACHE_PATH, **deployment.environment}), CACHE_PATH


def _volumes(deployment: Deployment, name: str, cache: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return volumes and where they are seen; shared memory is a part of it, as processes talk through it."""
    volumes: list[dict[str, Any]] = [{"name": "cache", "persistentVolumeClaim": {"claimName": f"{name}-cache"}}]
    mounts: list[dict[str, Any]] = [{"name": "cache", "mountPath": cache}]
    if deployment.container and deployment.container.shares_ipc:
        volumes.append({"name": "shm", "emptyDir": {"medium": "Memory"}})
        mounts.append({"name": "shm", "mountPath": "/dev/shm"})
    for number, mount in enumerate(deployment.container.mounts if deployment.container else ()):
        source, _, rest = mount.partition(":")
        path, _, mode = rest.partition(":")
        if path == cache or not source.startswith("/"):
            continue
        volumes.append({"name": f"files-{number}", "hostPath": {"path": source}})
        mounts.append({"name": f"files-{number}", "mountPath": path, **({"readOnly": True} if mode == "ro" else {})})
    return volumes, mounts


def _probes() -> dict[str, Any]:
    check = {"httpGet": {"path": "/health", "port": "http"}}
    return {
        "startupProbe": {**check, "periodSeconds": 10, "failureThreshold": 360},
        "readinessProbe": {"httpGet": dict(check["httpGet"]), "periodSeconds": 5, "timeoutSeconds": 5},
        "livenessProbe": {
            "httpGet": dict(check["httpGet"]),
            "periodSeconds": 15,
            "timeoutSeconds": 10,
            "failureThreshold": 4,
        },
    }
