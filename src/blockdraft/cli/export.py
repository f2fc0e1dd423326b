"""`blockdraft export`: one drafter in the layout of another engine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.text import Text

from blockdraft.cli.options import SectionedCommand, debug_option, section
from blockdraft.cli.record import print_json
from blockdraft.cli.terminal import note, stderr_console, working

if TYPE_CHECKING:
    from blockdraft.models.load import LoadedModel
    from blockdraft.train.export import ExportReport

_option = section("Options")

_LAYOUTS = ("z-lab", "deepspec", "speculators", "gguf")
_TYPES = ("bf16", "f32", "q8_0")


@click.command("export", cls=SectionedCommand)
@click.argument("checkpoint")
@_option("--to", "layout", type=click.Choice(_LAYOUTS), required=True, help="The layout to write.")
@_option("-t", "--target", metavar="REF", help="The model it drafts for.  [default: SmolLM2-135M-Instruct]")
@_option(
    "-o",
    "--out",
    type=click.Path(path_type=Path),
    metavar="DIR",
    required=True,
    help="The folder to write; new or empty.",
)
@_option(
    "--type",
    "stored_type",
    type=click.Choice(_TYPES),
    help="How weights are stored; q8_0 in GGUF only.  [default: bf16]",
)
@_option("--full-vocabulary", is_flag=True, help="Give up a reduced vocabulary that z-lab cannot hold.")
@_option(
    "--borrow-head",
    is_flag=True,
    help="Leave out the head of a reduced vocabulary, to be read off the target; gguf, for blockdraft only.",
)
@_option("--tokenizer", metavar="REF", help="A GGUF file of the target, if --target is a folder and --to is gguf.")
@_option("--offline", is_flag=True, help="Use only what is cached.")
@_option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@debug_option
def command(
    *,
    checkpoint: str,
    layout: str,
    target: str | None,
    out: Path,
    stored_type: str | None,
    full_vocabulary: bool,
    borrow_head: bool,
    tokenizer: str | None,
    offline: bool,
    as_json: bool,
) -> None:
    """Write the drafter in CHECKPOINT, a folder or a .gguf file, for another engine.

    What was written is loaded back and its drafts are compared with those of the original. The folder gets a
    model card with what lies beside the checkpoint: recipe.toml, manifest.json, acceptance.json, calibration.json.

    \b
    z-lab        DFlash: the reference package, vLLM, SGLang
    deepspec     DSpark, and DFlash that predicts from the anchor's row: vLLM
    speculators  DFlash and DSpark: vLLM
    gguf         DFlash and DSpark: llama.cpp
    """  # noqa: D301 - click wants the character itself
    from blockdraft.models.references import DEFAULT_MODEL, resolve  # noqa: PLC0415 - seconds of imports, as below
    from blockdraft.train.export import export_drafter  # noqa: PLC0415

    source = resolve(checkpoint, offline=offline or None, notify=note).path
    loaded = _load(target or DEFAULT_MODEL, offline)
    with working("exporting") as tell:
        report = export_drafter(
            source,
            loaded,
            layout,
            out,
            stored_type=stored_type,  # type: ignore[arg-type]
            full_vocabulary=full_vocabulary,
            borrow_head=borrow_head,
            tokenizer_path=resolve(tokenizer, offline=offline or None, notify=note).path if tokenizer else None,
            notify=tell,
        )
    if as_json:
        print_json(report.to_dict())
    else:
        _show(report)


def _load(target: str, offline: bool) -> LoadedModel:
    from blockdraft.models.load import load_model  # noqa: PLC0415
    from blockdraft.models.references import resolve  # noqa: PLC0415

    # Before the spinner, which would fight with the progress bars of downloads.
    resolve(target, offline=offline or None, notify=note)
    with working(f"loading {target}"):
        return load_model(target, offline=True, notify=note)


def _show(report: ExportReport) -> None:
    click.echo(report.path)
    comparison = report.comparison
    same = "all" if comparison.is_exact else f"{comparison.share_equal:.1%}"
    figures = (
        f"{report.num_bytes / 1e6:.1f} MB in {report.stored_type}; {same} of {comparison.num_tokens} draft tokens "
        "are those of the original"
    )
    stderr_console().print(Text(figures, style="dim"))
    for text in report.notes:
        note(text)
