"""A deployment over several machines, on the engine's own distribution.

vLLM: a Ray cluster, with the server on the first machine. SGLang: the same command on each machine, with its rank.
llama.cpp: an rpc-server on each other machine, which the first one reaches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from blockdraft.deploy.deployment import Deployment
from blockdraft.deploy.dialects import write_command
from blockdraft.errors import ConfigError

RAY_PORT = 6379
SGLANG_PORT = 50000
RPC_PORT = 50052


@dataclass(frozen=True, kw_only=True)
class NodeCommand:
    """What is run on one machine."""

    node: str
    """Its address."""
    words: tuple[str, ...]


def node_commands(deployment: Deployment, nodes: Sequence[str]) -> tuple[NodeCommand, ...]:
    """Return the commands of each machine, in the order in which they are started.

    Args:
        deployment: its tensor_parallel counts all devices of all machines (times pipeline_parallel).
        nodes: addresses; the first serves.

    Raises:
        ConfigError: fewer than two machines, or the engine cannot say a part of the deployment.
    """
    if len(nodes) < 2:
        raise ConfigError(f"a deployment over several machines needs two addresses or more, not {len(nodes)}")
    if len(set(nodes)) < len(nodes):
        raise ConfigError(f"a machine is named twice: {', '.join(nodes)}")
    if deployment.engine == "vllm":
        return _ray(deployment, nodes)
    if deployment.engine == "sglang":
        return _sglang(deployment, nodes)
    return _rpc(deployment, nodes)


def _ray(deployment: Deployment, nodes: Sequence[str]) -> tuple[NodeCommand, ...]:
    head = nodes[0]
    own = {**deployment.own, "distributed-executor-backend": "ray"}
    # Ray brings the machines together, so that vLLM's own count of them is not said.
    serving = replace(deployment, num_nodes=None, own=own)
    start = ("ray", "start", "--head", f"--node-ip-address={head}", f"--port={RAY_PORT}")
    join = ("ray", "start", f"--address={head}:{RAY_PORT}")
    return (
        NodeCommand(node=head, words=start),
        *(NodeCommand(node=node, words=(*join, f"--node-ip-address={node}")) for node in nodes[1:]),
        NodeCommand(node=head, words=write_command(serving)),
    )


def _sglang(deployment: Deployment, nodes: Sequence[str]) -> tuple[NodeCommand, ...]:
    meeting = {"dist-init-addr": f"{nodes[0]}:{SGLANG_PORT}"}
    return tuple(
        NodeCommand(
            node=node,
            words=write_command(
                replace(deployment, num_nodes=len(nodes), own={**deployment.own, **meeting, "node-rank": rank})
            ),
        )
        for rank, node in enumerate(nodes)
    )


def _rpc(deployment: Deployment, nodes: Sequence[str]) -> tuple[NodeCommand, ...]:
    # rpc-server knows neither keys nor encryption, so it listens only where the first machine finds it.
    servers = [f"{node}:{RPC_PORT}" for node in nodes[1:]]
    serving = replace(deployment, num_nodes=None, own={**deployment.own, "rpc": ",".join(servers)})
    return (
        *(NodeCommand(node=node, words=("rpc-server", "--host", node, "--port", str(RPC_PORT))) for node in nodes[1:]),
        NodeCommand(node=nodes[0], words=write_command(serving)),
    )
