"""Which engine a server is, and what it says about itself without being asked to generate.

Nobody is asked for a name: engines are told apart by routes and fields that only they have.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from blockdraft.bench.endpoint.connection import Connection
from blockdraft.bench.endpoint.counters import DraftCounters, MetricSample, counters_of_metrics, read_metrics

EngineName = Literal["vllm", "sglang", "llamacpp", "unknown"]


@dataclass(frozen=True, kw_only=True)
class ServedEngine:
    """What a server is; None where it does not say."""

    engine: EngineName
    recognised_by: str
    """The route or field that told; empty for an unknown engine."""
    version: str | None = None
    model: str
    context_length: int | None = None
    """Tokens of one sequence, prompt and answer."""
    speculates: bool | None = None
    """What the server itself says; whether it really drafts is for a probe to find out."""
    method: str | None = None
    """How it drafts, in its own words."""
    has_metrics: bool
    details: Mapping[str, Any] = field(default_factory=dict)
    """What else it says about speculation, for the record."""

    def to_dict(self) -> dict[str, Any]:
        """Return the description as plain data."""
        return asdict(self)


async def recognise(connection: Connection) -> ServedEngine:
    """Find out which engine answers.

    Raises:
        EndpointError: it cannot be reached, or which model to ask for is not clear.
    """
    model = await connection.model()
    entry = next((one for one in await connection.models() if one["id"] == model), {})
    samples = await read_metrics(connection) or []
    props = await connection.find_json("/props")
    if props and "default_generation_settings" in props:
        return await _llamacpp(connection, model, props, samples)
    info = await connection.find_json("/server_info") or await connection.find_json("/get_server_info")
    if entry.get("owned_by") == "sglang" or "speculative_algorithm" in (info or {}):
        return _sglang(model, entry, info or {}, samples)
    version = await connection.find_json("/version")
    is_vllm = entry.get("owned_by") == "vllm" or any(sample.name.startswith("vllm:") for sample in samples)
    if is_vllm:
        return _vllm(model, entry, (version or {}).get("version"), samples)
    counters = counters_of_metrics(samples)
    return ServedEngine(
        engine="unknown",
        recognised_by="",
        model=model,
        context_length=_length(entry.get("max_model_len")),
        speculates=True if counters else None,
        has_metrics=bool(samples),
    )


async def _llamacpp(
    connection: Connection, model: str, props: Mapping[str, Any], samples: list[MetricSample]
) -> ServedEngine:
    slots = await connection.find_json_list("/slots")
    settings = props["default_generation_settings"]
    # The settings of a request that ran name the types; those of /props do not.
    stated = [slot.get("params", {}) for slot in slots or ()] + [settings.get("params", {})]
    return ServedEngine(
        engine="llamacpp",
        recognised_by="/props",
        version=props.get("build_info"),
        model=model,
        context_length=_length(settings.get("n_ctx")),
        speculates=any(slot.get("speculative") for slot in slots) if slots else None,
        method=next(filter(None, map(_types, stated)), None),
        has_metrics=bool(samples),
        details={"total_slots": props.get("total_slots"), "model_path": props.get("model_path")},
    )


def _sglang(model: str, entry: Mapping[str, Any], info: Mapping[str, Any], samples: list[MetricSample]) -> ServedEngine:
    algorithm = info.get("speculative_algorithm")
    return ServedEngine(
        engine="sglang",
        recognised_by="/server_info" if info else "/v1/models: owned_by",
        version=info.get("version"),
        model=model,
        context_length=_length(info.get("context_length") or entry.get("max_model_len")),
        speculates=bool(algorithm) if info else None,
        method=algorithm,
        has_metrics=bool(samples),
        details={name: value for name, value in info.items() if name.startswith("speculative_") and value is not None},
    )


def _vllm(model: str, entry: Mapping[str, Any], version: Any, samples: list[MetricSample]) -> ServedEngine:
    counters: DraftCounters | None = counters_of_metrics(samples)
    return ServedEngine(
        engine="vllm",
        recognised_by="/v1/models: owned_by" if entry.get("owned_by") == "vllm" else "/metrics",
        version=str(version) if version else None,
        model=model,
        context_length=_length(entry.get("max_model_len")),
        # The counters exist only if it was started with a way to draft.
        speculates=counters is not None if samples else None,
        has_metrics=bool(samples),
        details={"num_positions": len(counters.accepted_at)} if counters else {},
    )


def _types(params: Mapping[str, Any]) -> str | None:
    names = [name for name in str(params.get("speculative.types", "")).split(",") if name and name != "none"]
    return ",".join(names) or None


def _length(value: Any) -> int | None:
    return int(value) if value else None
