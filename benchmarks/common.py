"""What every benchmark here shares: its options, the machine it ran on, tables to stderr, one JSON line last."""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_args

import torch
from rich.console import Console
from rich.table import Table

import blockdraft
from blockdraft.engine import Engine, Request
from blockdraft.engine.workloads import Workload, pick, read_workloads
from blockdraft.models.load import LoadedModel, Runtime, load_model
from blockdraft.models.processor import BUSY_LOAD, cpu_name, load_average
from blockdraft.models.references import DEFAULT_MODEL

console = Console(stderr=True, width=160)


def make_parser(description: str | None, *, num_prompts: int, max_tokens: int) -> argparse.ArgumentParser:
    """Return a parser with the options that all benchmarks know."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=DEFAULT_MODEL, help="reference of the target (default: %(default)s)")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument(
        "--runtime", choices=get_args(Runtime), default="torch", help="as of blockdraft generate (default: %(default)s)"
    )
    parser.add_argument("--device", default="auto")
    parser.add_argument("--threads", type=int, help="of the runtime (default: torch's own choice)")
    parser.add_argument(
        "--prompts", type=Path, nargs="+", default=[None], help="JSON Lines files (default: the package's own set)"
    )
    parser.add_argument("--num-prompts", type=int, default=num_prompts, help="how many of them (default: %(default)s)")
    parser.add_argument("--max-tokens", type=int, default=max_tokens, help="of each answer (default: %(default)s)")
    return parser


def load(args: argparse.Namespace, dtype: str | None = None) -> LoadedModel:
    """Load the target that the options name."""
    if args.threads:
        torch.set_num_threads(args.threads)
    # As the native runtime leaves torch one thread.
    args.threads = torch.get_num_threads()
    return load_model(args.model, device=args.device, dtype=dtype or args.dtype, runtime=args.runtime, notify=say)


def workloads(args: argparse.Namespace) -> list[Workload]:
    """Return the prompts that the options name: as many from each file, their categories in turn."""
    files = [read_workloads(path) for path in args.prompts]
    shares = [args.num_prompts // len(files) + (index < args.num_prompts % len(files)) for index in range(len(files))]
    return [workload for file, share in zip(files, shares, strict=True) for workload in pick(file, share)]


def first_turn(engine: Engine, workload: Workload, **options: Any) -> Request:
    """Return the request for a workload's first message."""
    return engine.request([{"role": "user", "content": workload.turns[0]}], **options)


def say(message: str) -> None:
    """Tell the reader something, on stderr."""
    console.print(message, markup=False, highlight=False)


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table to stderr; floats get three decimals."""
    table = Table(title=title, title_justify="left")
    for index, column in enumerate(columns):
        table.add_column(column, justify="right" if index else "left")
    for row in rows:
        table.add_row(*(f"{cell:.3f}" if isinstance(cell, float) else str(cell) for cell in row))
    console.print(table)


def idle_check() -> dict[str, object]:
    """Say whether other work may disturb the timings; call it before the benchmark's own work."""
    load = load_average() or 0.0
    is_idle = load <= BUSY_LOAD
    if not is_idle:
        say(f"NOT IDLE: {load:.2f} processes were running on average before the start; timings are noisy")
    return {"is_idle": is_idle, "load_before": round(load, 2)}


def emit(name: str, args: argparse.Namespace, idle: dict[str, object], results: dict[str, object]) -> None:
    """Print everything a reader needs to trust and repeat the numbers, as the last line of stdout."""
    options = {key: _plain(value) for key, value in vars(args).items()}
    record = {
        "benchmark": name,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": " ".join(["python", *sys.argv]),
        "options": options,
        "machine": {**machine(), "threads": args.threads or torch.get_num_threads()},
        **idle,
        "versions": {
            "blockdraft": blockdraft.__version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
        "git_commit": git_commit(),
        "results": results,
    }
    print(json.dumps(record))


def machine() -> dict[str, object]:
    """Describe the machine by its kind, not by its name."""
    gpus = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return {
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "gpus": gpus,
        "system": f"{platform.system()} {platform.machine()}",
    }


def git_commit() -> str | None:
    """Return the commit of the checkout, with "+changes" if files differ from it; None outside a checkout."""
    folder = Path(__file__).parent
    found = subprocess.run(
        ["git", "describe", "--always", "--exclude=*", "--abbrev=12", "--dirty=+changes"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    return found.stdout.strip() or None


def _plain(value: object) -> object:
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value if value is None or isinstance(value, int | float | str | bool) else str(value)
