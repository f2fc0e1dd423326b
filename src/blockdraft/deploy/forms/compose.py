"""A deployment as a file of Docker Compose, and the deployments that such a file describes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import yaml

from blockdraft.deploy.deployment import Container, Deployment
from blockdraft.deploy.dialects import Note, Reading, read_command_line
from blockdraft.deploy.dialects.words import CommandLine, in_image, shell_words, version_of
from blockdraft.deploy.forms.containers import PORTS, Accelerator, contained, container_words
from blockdraft.deploy.forms.names import service_name
from blockdraft.errors import ConfigError

_KEYS = {
    "--shm-size": "shm_size",
    "--network": "network_mode",
    "--net": "network_mode",
    "--runtime": "runtime",
    "--name": "container_name",
    "--restart": "restart",
    "--user": "user",
    "-u": "user",
    "--workdir": "working_dir",
    "-w": "working_dir",
    "--hostname": "hostname",
    "--pid": "pid",
    "--ipc": "ipc",
    "--platform": "platform",
    "--device": "devices",
    "--group-add": "group_add",
    "--cap-add": "cap_add",
    "--security-opt": "security_opt",
    "--env-file": "env_file",
    "--add-host": "extra_hosts",
}
"""Options of `docker run` by the keys of a service; the first option of a key is the one read back."""

_LISTS = frozenset({"devices", "group_add", "cap_add", "security_opt", "env_file", "extra_hosts"})
_SWITCHES = {"--privileged": "privileged", "--init": "init", "--read-only": "read_only", "-it": "tty", "-t": "tty"}
_NOT_FOR_COMPOSE = ("--rm", "-d", "--detach", "-it", "-ti", "-i", "-t", "--interactive", "--tty")
_RESTART = "unless-stopped"
_READ = frozenset(
    {"image", "command", "entrypoint", "environment", "ports", "volumes", "deploy", "gpus", "healthcheck"}
)
_GPUS = [{"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}]


@dataclass(frozen=True, kw_only=True)
class Service:
    """One service of a compose file that runs an engine."""

    name: str
    reading: Reading


def compose(deployment: Deployment, accelerator: Accelerator | None = None) -> str:
    """Return a compose file with one service, which is restarted and watched.

    Raises:
        ConfigError: there is no image, or the engine cannot say a part of the deployment.
    """
    deployment = contained(deployment, accelerator)
    container = deployment.container
    assert container is not None
    service: dict[str, Any] = {"image": container.image}
    service["command"] = [_escape(word) for word in container_words(deployment)]
    if deployment.environment:
        service["environment"] = dict(deployment.environment)
    if container.ports:
        service["ports"] = list(container.ports)
    if container.mounts:
        service["volumes"] = list(container.mounts)
    if container.shares_ipc:
        service["ipc"] = "host"
    if container.gpus:
        service["deploy"] = {"resources": {"reservations": {"devices": _devices(container.gpus)}}}
    other, left_out = _service_keys(container.other)
    service |= other
    service.setdefault("restart", _RESTART)
    service["healthcheck"] = _healthcheck(deployment)
    text = str(yaml.safe_dump({"services": {service_name(deployment): service}}, sort_keys=False, width=110))
    return "".join(f"# left out, as compose has no such key: {word}\n" for word in left_out) + text


def read_compose(text: str) -> tuple[list[Service], list[Note]]:
    """Return the services of a compose file that run an engine, and remarks on the others.

    Raises:
        ConfigError: it is no compose file, or none of its services runs an engine known here.
    """
    try:
        data = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"the file is no valid YAML: {error}") from error
    services = data.get("services") if isinstance(data, dict) else None
    if not isinstance(services, dict) or not services:
        raise ConfigError("the file has no `services`, so that it is no compose file")
    found: list[Service] = []
    notes: list[Note] = []
    for name, service in services.items():
        if not isinstance(service, dict):
            raise ConfigError(f"the service {name!r} is no mapping")
        try:
            line = _command_line(service)
        except ConfigError as error:
            notes.append(Note(kind="unknown", subject=f"service {name}", text=f"left out: {error}"))
            continue
        found.append(Service(name=str(name), reading=read_command_line(line)))
    if not found:
        reasons = "; ".join(str(note) for note in notes)
        raise ConfigError(f"no service of the file runs an engine known here ({reasons})")
    return found, notes


def is_compose(text: str) -> bool:
    """Return whether a text looks like a compose file, not like a command."""
    return any(line.rstrip() == "services:" or line.startswith("services: ") for line in text.splitlines())


def _command_line(service: Mapping[str, Any]) -> CommandLine:
    image = str(service.get("image", ""))
    engine, words = in_image(image, [*_words(service.get("entrypoint")), *_words(service.get("command"))])
    other: list[str] = []
    notes: list[Note] = []
    options = {key: option for option, key in reversed(_KEYS.items())}
    switches = {key: option for option, key in reversed(_SWITCHES.items())}
    for key, value in service.items():
        if key in _READ or (key == "ipc" and value == "host") or (key == "restart" and value == _RESTART):
            continue
        if key in switches:
            other += [switches[key]] if value else []
        elif key in options:
            values = value if isinstance(value, list) else [value]
            other += [word for one in values for word in (options[key], str(one))]
        else:
            notes.append(
                Note(kind="unknown", subject=key, text="a key of the service that says nothing here; left out")
            )
    container = Container(
        image=image,
        ports=tuple(_port(port) for port in service.get("ports") or ()),
        mounts=tuple(_mount(mount) for mount in service.get("volumes") or ()),
        gpus=_gpus(service),
        shares_ipc=service.get("ipc") == "host",
        other=tuple(other),
    )
    line = CommandLine(engine=engine, words=tuple(words), container=container, engine_version=version_of(image))
    return replace(line, environment=_environment(service.get("environment")), notes=tuple(notes))


def _words(value: Any) -> list[str]:
    words = shell_words(value) if isinstance(value, str) else [str(word) for word in value or ()]
    return [word.replace("$$", "$") for word in words]


def _environment(value: Any) -> dict[str, str]:
    if isinstance(value, Mapping):
        pairs = [(str(name), "" if text is None else str(text)) for name, text in value.items()]
    else:
        pairs = [(name, text) for name, _, text in (str(one).partition("=") for one in value or ())]
    return {name: text or f"${{{name}}}" for name, text in pairs}


def _port(port: Any) -> str:
    if isinstance(port, Mapping):
        return f"{port.get('published', port['target'])}:{port['target']}"
    return str(port)


def _mount(mount: Any) -> str:
    if isinstance(mount, Mapping):
        return f"{mount['source']}:{mount['target']}{':ro' if mount.get('read_only') else ''}"
    return str(mount)


def _gpus(service: Mapping[str, Any]) -> str | None:
    if service.get("gpus"):
        return str(service["gpus"])
    resources = (service.get("deploy") or {}).get("resources") or {}
    for device in (resources.get("reservations") or {}).get("devices") or ():
        if "gpu" in (device.get("capabilities") or ()):
            if device.get("device_ids"):
                return f"device={','.join(map(str, device['device_ids']))}"
            return str(device.get("count", "all"))
    return None


def _devices(gpus: str) -> list[dict[str, Any]]:
    if gpus.startswith("device="):
        ids = gpus.removeprefix("device=").strip('"').split(",")
        return [{"driver": "nvidia", "device_ids": ids, "capabilities": ["gpu"]}]
    return [{**_GPUS[0], "count": int(gpus) if gpus.isdecimal() else gpus}]


def _service_keys(other: tuple[str, ...]) -> tuple[dict[str, Any], list[str]]:
    """Return what options of `docker run` are in a service, and those without a key there."""
    service: dict[str, Any] = {}
    left_out: list[str] = []
    words = list(other)
    while words:
        word = words.pop(0)
        name, equals, value = word.partition("=")
        if name in _SWITCHES and name not in _NOT_FOR_COMPOSE:
            service[_SWITCHES[name]] = True
        elif name in _NOT_FOR_COMPOSE:
            continue
        elif name in _KEYS and (equals or words):
            value = value if equals else words.pop(0)
            if _KEYS[name] in _LISTS:
                service.setdefault(_KEYS[name], []).append(value)
            else:
                service[_KEYS[name]] = value
        else:
            value = "" if equals or not words or words[0].startswith("-") else f" {words.pop(0)}"
            left_out.append(word + value)
    return service, left_out


def _healthcheck(deployment: Deployment) -> dict[str, Any]:
    """Return a check of the endpoint; loading a large model may take as long as the start period."""
    port = deployment.port or PORTS[deployment.engine]
    test = ["CMD", "curl", "-fsS", f"http://localhost:{port}/health"]
    return {"test": test, "interval": "30s", "timeout": "10s", "retries": 5, "start_period": "1800s"}


def _escape(word: str) -> str:
    """Return a word in which compose replaces nothing; a variable that stands there is one of compose as well."""
    return word if "${" in word else word.replace("$", "$$")
