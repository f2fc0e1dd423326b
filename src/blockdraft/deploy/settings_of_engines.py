"""What an engine must be told for a drafter to run well: attention backend, state buffers, layers on the device."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from blockdraft.deploy.deployment import Deployment
from blockdraft.deploy.hardware import Hardware
from blockdraft.deploy.memory import BLOCK_METHODS
from blockdraft.deploy.model_facts import DraftFacts
from blockdraft.deploy.versions import EngineVersion, is_before

Reason = dict[str, str]
_FRACTION_OF_UNIFIED = 0.8
_WHY_METRICS = "bench, verify and doctor read there how much of the drafts was kept"


def engine_settings(
    deployment: Deployment, hardware: Hardware, goal: str, version: EngineVersion, draft: DraftFacts | None
) -> tuple[Deployment, list[Reason]]:
    """Return the deployment with the settings of its engine, and the reasons."""
    reasons: list[Reason] = []
    if deployment.engine == "llamacpp":
        return _llama(deployment, hardware, goal, reasons)
    deployment = _parallel(deployment, hardware, reasons)
    deployment = _keys_and_values(deployment, hardware, goal, version, reasons)
    if deployment.engine == "vllm":
        return _vllm(deployment, hardware, reasons), reasons
    return _sglang(deployment, hardware, reasons), reasons


def _parallel(deployment: Deployment, hardware: Hardware, reasons: list[Reason]) -> Deployment:
    if hardware.num_devices == 1:
        return deployment
    value, why = str(hardware.num_devices), f"one shard on each device ({hardware.link})"
    reasons.append({"setting": "tensor parallel", "value": value, "why": why})
    nodes = hardware.num_nodes if hardware.num_nodes > 1 else None
    return replace(deployment, tensor_parallel=hardware.num_devices, num_nodes=nodes)


def _keys_and_values(
    deployment: Deployment, hardware: Hardware, goal: str, version: EngineVersion, reasons: list[Reason]
) -> Deployment:
    if goal != "context" or hardware.vendor != "nvidia":
        return deployment
    if deployment.engine == "vllm" and is_before(version.number, (0, 24)) and deployment.drafts:
        why = "before 0.24.0 no backend takes FP8 keys and values with DFlash"
        source = "vllm-project/vllm#41559, #43081"
        reasons.append({"setting": "keys and values", "value": "16 bits", "why": why, "source": source})
        return deployment
    why = "half the bytes of 16 bits, so twice the context; accepted tokens fell from 5.35 to 5.22 in one report"
    reasons.append(
        {"setting": "keys and values", "value": "fp8", "why": why, "source": "Avarok-Cybersecurity/atlas#218"}
    )
    return replace(deployment, kv_dtype="fp8")


def _vllm(deployment: Deployment, hardware: Hardware, reasons: list[Reason]) -> Deployment:
    if hardware.unified_memory and hardware.vendor != "cpu":
        why = "the memory is shared with the operating system and everything else"
        reasons.append({"setting": "memory", "value": f"{_FRACTION_OF_UNIFIED:.0%}", "why": why})
        deployment = replace(deployment, memory_fraction=_FRACTION_OF_UNIFIED)
    if not any(draft.method in BLOCK_METHODS for draft in deployment.drafts) or hardware.compute_capability is None:
        return deployment
    has_new_flash = hardware.compute_capability[0] in (9, 10)
    if deployment.kv_dtype and not has_new_flash:
        why = f"the backend that takes FP8 keys and values on {hardware.accelerator} and sees a whole block"
        reasons.append(_backend("FLASHINFER", why))
        return replace(deployment, attention_backend="FLASHINFER")
    why = "a DFlash drafter sees its whole block, which FLASH_ATTN has done since the first release with DFlash"
    reasons.append(_backend("FLASH_ATTN", why))
    return replace(deployment, attention_backend="FLASH_ATTN")


def _backend(name: str, why: str) -> Reason:
    return {"setting": "attention backend", "value": name, "why": why, "source": "read in vLLM 0.33.0"}


def _sglang(deployment: Deployment, hardware: Hardware, reasons: list[Reason]) -> Deployment:
    if not deployment.drafts:
        return deployment
    backend = "fa3" if hardware.compute_capability and hardware.compute_capability[0] == 9 else None
    if backend:
        why = "the target's backend is the drafter's, too"
        reasons.append({"setting": "attention backend", "value": backend, "why": why, "source": "model card of Z Lab"})
    reasons.append({"setting": "metrics", "value": "on", "why": _WHY_METRICS})
    return replace(deployment, attention_backend=backend, own={**deployment.own, "enable-metrics": True})


def _llama(
    deployment: Deployment, hardware: Hardware, goal: str, reasons: list[Reason]
) -> tuple[Deployment, list[Reason]]:
    own: dict[str, Any] = dict(deployment.own)
    if deployment.drafts:
        own["metrics"] = True
        reasons.append({"setting": "metrics", "value": "on", "why": _WHY_METRICS})
    if hardware.vendor != "cpu":
        own |= {"gpu-layers": "all", "flash-attn": "on"}
        why = "the whole target on the device, with fused attention, which quantised values need"
        reasons.append({"setting": "layers", "value": "all on the device", "why": why})
    if hardware.gfx == "gfx1151":
        why = "ROCm was faster than Vulkan there; look what --list-devices calls it"
        reasons.append({"setting": "device", "value": "ROCm0", "why": why, "source": "published configuration 14"})
        own["device"] = "ROCm0"
    if goal == "context":
        why = "keys in 8 bits and values in 16 are the careful half of quantising the cache"
        source = "published configuration 14"
        reasons.append({"setting": "keys and values", "value": "q8_0 / f16", "why": why, "source": source})
        deployment = replace(deployment, kv_dtype="q8_0", value_dtype="f16")
    return replace(deployment, own=own), reasons
