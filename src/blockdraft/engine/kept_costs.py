"""Keeps pass costs on disk, for each machine, target and drafter, so that they are measured once.

A table on disk also makes lengths, and with them seeded samples under `rejection`, the same from one process to the
next. One that was measured while the machine was busy is measured again when it is less so. Delete the folder
`pass_costs` in blockdraft's cache, or run `blockdraft tune`, to measure again.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from time import perf_counter

import torch

from blockdraft.drafters.base import Drafter
from blockdraft.engine.pass_costs import DEPTHS, NUM_ROWS, PassCosts, measure_pass_costs
from blockdraft.models.base import Target
from blockdraft.models.packed_decoder import PackedDecoder
from blockdraft.models.processor import BUSY_LOAD, cpu_name, load_average
from blockdraft.models.references.pypi import cache_folder

VERSION = 7
"""Of what is measured, how, and with which kernels; tables of other versions are not read."""

LESS_BUSY = 0.5
"""A table that a busy machine gave is measured again at this share of the load it had then."""

_DOUBT = "until then drafts may be left out that would pay"


def kept_pass_costs(
    target: Target, drafter: Drafter | None, *, notify: Callable[[str], None], anew: bool = False
) -> PassCosts:
    """Return the costs that were measured here before; else, or with `anew`, measure and keep them."""
    key = _key(target, drafter)
    path = cache_folder() / "pass_costs" / f"{sha256(key.encode()).hexdigest()[:20]}.json"
    load = load_average() or 0.0
    if not anew and (found := _read(path, notify)):
        costs, load_then = found
        if load_then <= BUSY_LOAD:
            return costs
        if load > max(BUSY_LOAD, LESS_BUSY * load_then):
            notify(f"what passes cost here was measured while the machine was busy, as it still is; {_DOUBT}")
            return costs
        notify("what passes cost here was measured while the machine was busier than now")
    started = perf_counter()
    costs = measure_pass_costs(target, drafter)
    seconds = perf_counter() - started
    try:
        _write(path, key, costs, load)
    except OSError as error:
        notify(f"measured in {seconds:.1f} s what passes cost here; they will be measured again, as {error}")
    else:
        notify(f"measured in {seconds:.1f} s what passes cost here, to draft only where it pays; kept in {path}")
    if load > BUSY_LOAD:
        notify(f"the machine was busy (load {load:.1f}), so they will be measured again when it is less so; {_DOUBT}")
    return costs


def _read(path: Path, notify: Callable[[str], None]) -> tuple[PassCosts, float] | None:
    """Return what is kept, and the load of the machine when it was measured."""
    if not path.exists():
        return None
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
        return PassCosts.from_dict(kept["costs"]), float(kept["load"])
    except (OSError, KeyError, TypeError, ValueError) as error:
        notify(f"{path} holds no pass costs ({error}); measuring them again")
        return None


def _write(path: Path, key: str, costs: PassCosts, load: float) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    made = path.with_suffix(f".{os.getpid()}")
    made.write_text(
        json.dumps({"of": json.loads(key), "load": load, "costs": costs.to_dict()}, indent=1), encoding="utf-8"
    )
    made.replace(path)


def _key(target: Target, drafter: Drafter | None) -> str:
    """Return all that costs depend on, as JSON."""
    info = target.info
    native = target.core if isinstance(target, PackedDecoder) else None
    return json.dumps(
        {
            "version": VERSION,
            "sizes": [NUM_ROWS, DEPTHS],
            "machine": [platform.machine(), cpu_name(), os.cpu_count(), _device_name(info.device)],
            "runtime": [native.kernels, native.num_threads] if native else ["torch", torch.get_num_threads()],
            "target": {name: str(value) for name, value in asdict(info).items()},
            "drafter": drafter.describe() if drafter else None,
        },
        sort_keys=True,
        default=str,
    )


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)
