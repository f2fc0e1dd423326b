"""`blockdraft inspect`: what a checkpoint is, and whether two fit together."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click
from rich.table import Table
from rich.text import Text

from blockdraft.cli.options import SectionedCommand, debug_option, section
from blockdraft.cli.record import print_json
from blockdraft.cli.terminal import note, stdout_console
from blockdraft.drafters.config import NGRAM_TYPES
from blockdraft.errors import ConfigError

if TYPE_CHECKING:
    from blockdraft.cli.inspection import Inspected

_option = section("Options")

_SHOWN = (
    *("name", "layout", "family", "why_generic", "num_parameters", "stored_as", "quantization_config", "file_bytes"),
    *("num_layers", "layers", "hidden_size", "num_heads", "num_kv_heads", "head_dim", "experts"),
    *("vocab_size", "draft_vocab_size", "context_length", "sliding_window", "rope"),
    *("block_size", "max_draft_tokens", "anchor", "mask_token_id", "target_layer_ids", "num_target_layers"),
    *("markov_rank", "markov_head_type", "confidence_head"),
    *("num_trained_tokens", "norm_before_residual", "feature_norm", "feeds_back_normed"),
)
"""What people look at first; --json has everything."""


@click.command("inspect", cls=SectionedCommand)
@click.argument("model", required=False)
@click.argument("drafter", required=False)
@_option("--device", "only_device", is_flag=True, help="Describe this machine and its kernels instead.")
@_option("--offline", is_flag=True, help="Use only what is cached.")
@_option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@debug_option
def command(*, model: str | None, drafter: str | None, only_device: bool, offline: bool, as_json: bool) -> None:
    """Describe MODEL, a target or a drafter, and say whether it fits DRAFTER; or this machine.

    Reads headers and configuration; weights are fetched if need be, but not loaded. The exit code is 1 if the
    pair does not fit, or if what was named cannot be run.

    \b
    blockdraft inspect Qwen/Qwen3-8B
    blockdraft inspect Qwen/Qwen3-8B z-lab/Qwen3-8B-DFlash-b16
    blockdraft inspect --device
    """  # noqa: D301 - click wants the character itself
    from blockdraft.cli.inspection import why_not  # noqa: PLC0415 - it imports torch

    if only_device:
        if model:
            raise click.UsageError("--device takes no model: it describes the machine")
        return _show_machine(as_json)
    if not model:
        raise click.UsageError("name a model, or describe the machine with --device")
    if model in NGRAM_TYPES:
        raise click.UsageError(f"{model} is a kind of drafter and no model; it fits every target")
    first = _look(model, offline)
    second = _look(drafter, offline) if drafter and drafter not in NGRAM_TYPES else None
    if drafter and not first.is_language_model:
        raise ConfigError(f"{model} is no target but a {first.kind} drafter{_swapped(first, second)}")
    reasons = why_not(first, second) if second else list(first.problems)
    if as_json:
        found = {"model": first.to_dict(), "drafter": second.to_dict() if second else drafter}
        print_json(found | {"fits" if drafter else "runs": not reasons, "reasons": reasons})
    else:
        _show([checkpoint for checkpoint in (first, second) if checkpoint], drafter, reasons)
    if reasons:
        click.get_current_context().exit(1)
    return None


def _show_machine(as_json: bool) -> None:
    from blockdraft.models.machine import find_machine  # noqa: PLC0415 - it imports torch

    machine = find_machine()
    if as_json:
        print_json(machine.to_dict())
        return
    kernels = f"{machine.kernels[0]} (best of {', '.join(machine.kernels)})" if machine.kernels else "none"
    rows = (
        ("processor", f"{machine.cpu}, {machine.num_cores} cores, {machine.system}"),
        ("GPUs", ", ".join(machine.gpus) or "none"),
        ("native kernels", f"{kernels}: {machine.why_no_kernels}" if machine.why_no_kernels else kernels),
        ("torch", f"{machine.torch}, on {machine.device} in {machine.dtype}"),
    )
    console = stdout_console()
    table = Table.grid(padding=(0, 2))
    for name, value in rows:
        table.add_row(Text(f"  {name}", style="dim"), Text(value))
    console.print(table)


def _look(reference: str, offline: bool) -> Inspected:
    # Both import torch, which --help must not wait for.
    from blockdraft.cli.inspection import inspect_checkpoint  # noqa: PLC0415
    from blockdraft.models.references import resolve  # noqa: PLC0415

    return inspect_checkpoint(reference, resolve(reference, offline=offline or None, notify=note).path)


def _swapped(first: Inspected, second: Inspected | None) -> str:
    if second is None or not second.is_language_model:
        return ""
    return f"; did you mean: blockdraft inspect {second.reference} {first.reference}"


def _show(found: list[Inspected], drafter: str | None, reasons: list[str]) -> None:
    console = stdout_console()
    for checkpoint in found:
        is_target = checkpoint is found[0] and checkpoint.is_language_model
        console.print(
            Text(f"{checkpoint.reference}  ({'target' if is_target else f'drafter, {checkpoint.kind}'})", "bold")
        )
        table = Table.grid(padding=(0, 2))
        for name, value in _rows(checkpoint):
            table.add_row(Text(f"  {name}", style="dim"), Text(value))
        console.print(table)
        console.print()
    good, bad = ("they fit", "they do not fit:") if drafter else ("it can be run", "it cannot be run:")
    console.print(Text(bad if reasons else good, style="bold red" if reasons else "bold green"))
    for reason in reasons:
        console.print(Text(f"  - {reason}"))
    if drafter and not reasons:
        command_line = f'blockdraft generate --model {found[0].reference} --drafter {drafter} "..."'
        console.print(Text(f"try: {command_line}", style="dim"), soft_wrap=True)


def _rows(checkpoint: Inspected) -> Iterator[tuple[str, str]]:
    yield "path", str(checkpoint.path)
    for name in _SHOWN:
        value = checkpoint.facts.get(name)
        if value not in (None, 0, "none"):
            yield name.removeprefix("num_").replace("_bytes", "_size").replace("_", " "), _readable(name, value)


def _readable(name: str, value: Any) -> str:
    if name in ("num_parameters", "file_bytes"):
        return _scaled(value) + ("B" if name == "file_bytes" else "")
    if name == "stored_as":
        total = sum(kind["num_elements"] for kind in value.values())
        return ", ".join(f"{kind} {count['num_elements'] / total:.1%}" for kind, count in value.items())
    if name == "layers":
        kinds = [
            ("causal" if layer["causal"] else "bidirectional")
            + (f", window {layer['window']}" if layer["window"] else "")
            for layer in value
        ]
        return f"{len(kinds)}, {' | '.join(dict.fromkeys(kinds))}"
    if name == "anchor":
        return f"{'predicts' if value['anchor_predicts'] else 'reserved'} ({value['source']})"
    if name == "rope":
        kind = value.get("type") or value.get("rope_type")
        return f"theta {value['theta']:g}" + (f", {kind} x{value['factor']:g}" if kind != "default" else "")
    if isinstance(value, dict):
        return ", ".join(f"{key.replace('_', ' ')} {item}" for key, item in value.items() if item is not None)
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _scaled(number: float) -> str:
    """Return 134.5 M and the like."""
    for unit in ("", "k", "M", "G"):
        if number < 1000:
            return f"{number:.1f} {unit}" if unit else f"{number} "
        number /= 1000
    return f"{number:.1f} T"
