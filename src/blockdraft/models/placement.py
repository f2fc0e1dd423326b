"""Where a model runs and in which floating point type, resolved from what the user wrote."""

from __future__ import annotations

import platform

import torch

from blockdraft.errors import ConfigError, nearest_name

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
"""Names of the types that a model can be computed in."""

_DEVICE_TYPES = ("cpu", "cuda", "mps", "xpu")


def choose_device(name: str) -> torch.device:
    """Return the named device; "auto" is the first GPU if there is one. ROCm devices are called cuda, as in torch.

    Raises:
        ConfigError: there is no such device.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    kind = name.split(":", maxsplit=1)[0]
    if kind not in _DEVICE_TYPES:
        known = ("auto", *_DEVICE_TYPES)
        raise ConfigError(f"unknown device {name!r}{nearest_name(name, known)}; known are {', '.join(known)}")
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(f"device {name!r} is not available: {error}") from error
    return torch.device(name)


def choose_dtype(name: str, device: torch.device) -> torch.dtype:
    """Return the named type; "auto" is bfloat16 where the device computes it natively.

    Without native bfloat16, GPUs get float16 and CPUs float32.

    Raises:
        ConfigError: there is no such type.
    """
    if name != "auto":
        if name not in DTYPES:
            known = ("auto", *DTYPES)
            raise ConfigError(f"unknown dtype {name!r}{nearest_name(name, known)}; known are {', '.join(known)}")
        return DTYPES[name]
    if device.type == "cpu":
        return torch.bfloat16 if cpu_has_bfloat16() else torch.float32
    if device.type == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False):
        return torch.float16
    return torch.bfloat16


def cpu_has_bfloat16() -> bool:
    """Return True if the CPU multiplies bfloat16 natively; emulated, it is slower than float32."""
    if platform.machine().lower() in ("x86_64", "amd64"):
        # oneDNN's own check also says yes where it emulates.
        return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
