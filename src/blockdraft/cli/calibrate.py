"""`blockdraft calibrate`: makes the confidence of a DSpark drafter mean what it says."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich import box
from rich.table import Table

from blockdraft.cli.options import ARGUMENTS_KEY, SectionedCommand, debug_option, gather, section
from blockdraft.cli.record import print_json
from blockdraft.cli.terminal import note, stdout_console, working

if TYPE_CHECKING:
    from blockdraft.train.calibration import SlotReliability
    from blockdraft.train.confidence import Calibration

_data = section("Prompts")
_model = section("Model")
_output = section("Output")


@dataclass(frozen=True, kw_only=True)
class CalibrateOptions:
    """What to calibrate with."""

    target: str | None
    device: str
    dtype: str
    offline: bool
    prompts: tuple[Path, ...]
    num_prompts: int
    max_tokens: int
    temperature: float
    batch: int


_options = gather(
    CalibrateOptions,
    "options",
    [
        _model("-t", "--target", metavar="REF", help="The model that the drafter is for.  [default: as for generate]"),
        _model("--device", metavar="NAME", default="auto", show_default=True, help="auto, cpu, cuda, cuda:1, mps ..."),
        _model(
            "--dtype",
            type=click.Choice(["auto", "float32", "bfloat16", "float16"]),
            default="auto",
            show_default=True,
            help="What both are computed in.",
        ),
        _model("--offline", is_flag=True, help="Use only what is cached."),
        _data(
            "--prompts",
            metavar="FILE",
            type=click.Path(exists=True, dir_okay=False, path_type=Path),
            multiple=True,
            required=True,
            help="JSON Lines with `id`, `category` and `turns`, never trained on; may be repeated.",
        ),
        _data("--num-prompts", type=click.IntRange(min=2), default=64, show_default=True, help="How many in all."),
        _data("--max-tokens", type=click.IntRange(min=2), default=128, show_default=True, help="Of each answer."),
        _data(
            "--temperature",
            type=click.FloatRange(min=0),
            default=0.0,
            show_default=True,
            help="At which answers are sampled; calibrate for the one that you serve with.",
        ),
        _data("--batch", type=click.IntRange(min=1), default=8, show_default=True, help="How many run together."),
    ],
)


@click.command("calibrate", cls=SectionedCommand)
@click.argument("drafter", type=click.Path(exists=True, file_okay=False, path_type=Path))
@_options
@_output("--plot", metavar="PNG", type=click.Path(dir_okay=False, path_type=Path), help="Draw before and after.")
@_output("--dry-run", is_flag=True, help="Measure and show, but leave the drafter as it is.")
@_output("--json", "as_json", is_flag=True, help="Print one JSON object.")
@debug_option
def command(*, drafter: Path, options: CalibrateOptions, plot: Path | None, dry_run: bool, as_json: bool) -> None:
    """Calibrate the confidence head of the DSpark drafter in the folder DRAFTER.

    Held-out prompts are answered with it, and its confidences are compared with what the target kept. One
    temperature per slot is fitted on half of them; the figures are of the other half. The temperatures are
    written into the drafter's config.json, all figures into calibration.json beside it.

    \b
    blockdraft calibrate ./my-drafter --target Qwen/Qwen3-8B --prompts held_out.jsonl --plot reliability.png
    """  # noqa: D301 - click wants the character itself
    with working("starting"):  # the first import of torch takes seconds
        from blockdraft.models.references import DEFAULT_MODEL  # noqa: PLC0415
        from blockdraft.train.confidence import save_calibration  # noqa: PLC0415
        from blockdraft.train.reliability_plot import check_plots, plot_reliability  # noqa: PLC0415
    if plot:
        check_plots()
    calibration = _measure(drafter, options)
    provenance = {
        "command": click.get_current_context().meta.get(ARGUMENTS_KEY),
        "target": options.target or DEFAULT_MODEL,
        "prompts": [
            {"name": path.name, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()} for path in options.prompts
        ],
    }
    if not dry_run:
        save_calibration(drafter, calibration, provenance)
    if plot:
        plot_reliability(calibration, plot)
    if as_json:
        print_json({**provenance, **calibration.to_dict(), "saved": not dry_run})
    else:
        _show(calibration, drafter, dry_run)


def _measure(drafter: Path, options: CalibrateOptions) -> Calibration:
    # All of them import torch, which --help must not wait for.
    from blockdraft.core.sampling import SamplingParams  # noqa: PLC0415
    from blockdraft.drafters.draft_checkpoint import load_draft_checkpoint  # noqa: PLC0415
    from blockdraft.engine.workloads import pick, read_workloads  # noqa: PLC0415
    from blockdraft.models.load import load_model  # noqa: PLC0415
    from blockdraft.models.references import DEFAULT_MODEL, resolve  # noqa: PLC0415
    from blockdraft.train.confidence import calibrate  # noqa: PLC0415

    found = [workload for path in options.prompts for workload in read_workloads(path)]
    chosen = pick(found, options.num_prompts)
    reference = options.target or DEFAULT_MODEL
    resolve(reference, offline=options.offline or None, notify=note)  # its progress bar would fight with the spinner
    with working(f"loading {reference} and {drafter}"):
        loaded = load_model(reference, device=options.device, dtype=options.dtype, offline=True, notify=note)
        checkpoint = load_draft_checkpoint(drafter, loaded.target.info)
    with working(f"answering {len(chosen)} prompts") as tell:
        return calibrate(
            loaded.target,
            loaded.tokenizer,
            checkpoint,
            chosen,
            max_tokens=options.max_tokens,
            sampling=SamplingParams(temperature=options.temperature),
            batch=options.batch,
            progress=lambda done, total: tell(f"answering prompts: {done} of {total}"),
        )


def _show(calibration: Calibration, drafter: Path, dry_run: bool) -> None:
    console = stdout_console()
    table = Table(title="on prompts that were not fitted on", title_justify="left", box=box.SIMPLE_HEAD, padding=0)
    for column in ("slot", " T", " kept", " ECE", " after", " | product kept", " ECE", " after", " AUROC", " Brier"):
        table.add_column(column, justify="right")
    rows = zip(calibration.temperatures, calibration.before, calibration.after, strict=True)
    for slot, (temperature, before, after) in enumerate(rows, start=1):
        table.add_row(str(slot), f"{temperature:.3f}", *_figures(before, after))
    console.print(table)
    console.print("not saved (--dry-run)" if dry_run else f"saved in {drafter}")


def _figures(before: SlotReliability, after: SlotReliability) -> list[str]:
    own, product = after.conditional, after.cumulative
    return [
        _percent(own.share_kept),
        _percent(before.conditional.ece),
        _percent(own.ece),
        _percent(product.share_kept),
        _percent(before.cumulative.ece),
        _percent(product.ece),
        "-" if product.auroc is None else f"{product.auroc:.3f}",
        f"{product.brier:.3f}",
    ]


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
