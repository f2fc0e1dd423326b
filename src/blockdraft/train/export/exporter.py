"""From a trained drafter to a folder that other programs read: refuse, write, load back, describe.

Nothing appears under the name that was asked for until all of that has succeeded.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from blockdraft.drafters.draft_checkpoint import DraftCheckpoint, load_draft_checkpoint, reduced_ids
from blockdraft.errors import ConfigError, TrainingError, nearest_name
from blockdraft.models.base import TargetInfo
from blockdraft.models.load import LoadedModel
from blockdraft.train.export.card import write_card
from blockdraft.train.export.folders import DeepSpecWriter, SpeculatorsWriter, ZLabWriter
from blockdraft.train.export.gguf_file import GgufFileWriter
from blockdraft.train.export.layout import Draft, StoredType, Writer
from blockdraft.train.export.provenance import Provenance
from blockdraft.train.export.report import ExportReport
from blockdraft.train.export.verify import Comparison, compare, draft, record

LAYOUTS: Mapping[str, Callable[[Path | None], Writer]] = {
    "z-lab": lambda _: ZLabWriter(),
    "deepspec": lambda _: DeepSpecWriter(),
    "speculators": lambda _: SpeculatorsWriter(),
    "gguf": GgufFileWriter,
}
"""By name, how each writer is made; the path is that of a GGUF file whose tokenizer is to be copied."""

_QUANTIZED: tuple[StoredType, ...] = ("q8_0",)


def export_drafter(
    source: Path,
    target: LoadedModel,
    layout: str,
    out: Path,
    *,
    stored_type: StoredType | None = None,
    full_vocabulary: bool = False,
    borrow_head: bool = False,
    tokenizer_path: Path | None = None,
    notify: Callable[[str], None] = lambda _: None,
) -> ExportReport:
    """Write the drafter in `source`, a checkpoint folder or a GGUF file, to the new folder `out`.

    Args:
        source: what `load_draft_checkpoint` reads; recipe.toml, manifest.json, acceptance.json and
            calibration.json beside it go into the model card.
        target: the model it drafts for.
        layout: a name of `LAYOUTS`.
        out: the folder to write; must not exist or be empty.
        stored_type: how matrices are stored; None for bf16.
        full_vocabulary: give up a reduced vocabulary where the layout cannot carry it.
        borrow_head: leave out the head of a reduced vocabulary, for blockdraft to read off the target (GGUF only).
        tokenizer_path: a GGUF file to copy the tokenizer from, if the target is none (GGUF only).
        notify: is told, in one line each, what is being done.

    Raises:
        ConfigError: the layout cannot say something about this drafter, or the options do not fit.
        ModelError, PairError: the drafter cannot be loaded or was made for another target.
        DataError: a file for the model card is damaged.
        TrainingError: the folder cannot be written.
    """
    writer = _writer(layout, tokenizer_path)
    kind = _stored_type(writer, layout, stored_type)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"{out} exists and is not an empty folder; name another one")
    checkpoint = load_draft_checkpoint(source, _in_float32(target.target.info))
    given = _with_own_head(Draft(config=checkpoint.config, tensors=checkpoint.tensors, target=target))
    wanted = _fit_vocabulary(given, layout, full_vocabulary)
    if borrow_head:
        wanted = _borrowing_head(wanted, layout)
    if reasons := writer.why_not(wanted.config):
        raise ConfigError(f"the layout {layout} cannot hold this drafter: {'; '.join(reasons)}")
    provenance = Provenance.beside(source)
    with _new_folder(out) as folder:
        notify(f"writing the {layout} layout, {kind}")
        written = writer.write(folder, wanted, kind)
        notify("loading it back and comparing drafts")
        report = ExportReport(
            layout=layout,
            source=source,
            path=out / written.relative_to(folder),
            stored_type=kind,
            num_bytes=sum(file.stat().st_size for file in folder.iterdir()),
            comparison=_verify(writer, written, given, wanted, kind),
            notes=_notes(wanted, layout),
        )
        write_card(folder / "README.md", wanted, report, provenance)
        provenance.copy_to(folder)
    return report


@contextmanager
def _new_folder(out: Path) -> Iterator[Path]:
    """Yield a folder beside `out` that takes its place at the end, unless an error is raised."""
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}-") as scratch:
            folder = Path(scratch) / out.name
            folder.mkdir()
            yield folder
            if out.exists():
                out.rmdir()
            folder.rename(out)
    except OSError as error:
        raise TrainingError(f"{out} cannot be written ({error.strerror or error}); nothing was left there") from error


def _writer(layout: str, tokenizer_path: Path | None) -> Writer:
    if layout not in LAYOUTS:
        raise ConfigError(f"unknown layout {layout!r}{nearest_name(layout, LAYOUTS)}; known are {', '.join(LAYOUTS)}")
    if tokenizer_path is not None and layout != "gguf":
        raise ConfigError(f"only GGUF files carry a tokenizer; leave it out for {layout}")
    return LAYOUTS[layout](tokenizer_path)


def _stored_type(writer: Writer, layout: str, wanted: StoredType | None) -> StoredType:
    kind = wanted or writer.types[0]
    if kind not in writer.types:
        raise ConfigError(f"the layout {layout} stores weights as {', '.join(writer.types)}, not {kind}")
    return kind


def _in_float32(info: TargetInfo) -> TargetInfo:
    """Load weights as exactly as they are stored, whatever the target is computed in."""
    return replace(info, dtype=torch.float32, device=torch.device("cpu"))


def _with_own_head(draft: Draft) -> Draft:
    """Return the drafter with the head that it borrows, as other engines need it."""
    if not draft.config.borrows_head:
        return draft
    config = replace(draft.config, borrows_head=False)
    return replace(draft, config=config, tensors={**draft.tensors, "lm_head.weight": _target_rows(draft)})


def _borrowing_head(draft: Draft, layout: str) -> Draft:
    """Return the drafter without its head, which must be the target's."""
    if draft.config.draft_vocab_size is None:
        raise ConfigError("this drafter has the whole vocabulary and always borrows the head; leave out --borrow-head")
    if layout != "gguf":
        raise ConfigError(f"readers of {layout} need the head of a reduced vocabulary; --borrow-head is for gguf")
    if not torch.equal(_target_rows(draft), draft.tensors["lm_head.weight"]):
        raise ConfigError("this drafter's head is not the target's and cannot be borrowed; leave out --borrow-head")
    tensors = {name: tensor for name, tensor in draft.tensors.items() if name != "lm_head.weight"}
    return replace(draft, config=replace(draft.config, borrows_head=True), tensors=tensors)


def _target_rows(draft: Draft) -> Tensor:
    """Return the rows of the target's head that a reduced vocabulary stands for, in float32. Shapes: [U, D]."""
    head = draft.target.target.head_weight
    return head[reduced_ids(draft.tensors["d2t"]).to(head.device)].detach().float().cpu()


def _fit_vocabulary(given: Draft, layout: str, full_vocabulary: bool) -> Draft:
    """Return the drafter with the vocabulary that the layout can carry."""
    size = given.config.draft_vocab_size
    if layout != "z-lab" or size is None:
        if full_vocabulary:
            why = "this drafter has the whole vocabulary" if size is None else f"{layout} carries the reduced one"
            raise ConfigError(f"--full-vocabulary is not needed: {why}; leave it out")
        return given
    if not full_vocabulary:
        raise ConfigError(
            f"this drafter predicts {size} of the target's {given.config.vocab_size} tokens with a head of its own, "
            "and the layout z-lab has no place for it: readers would use the target's head, for which it may not "
            "have been trained. Export to speculators or gguf, or write --full-vocabulary and measure what is accepted"
        )
    kept = {name: tensor for name, tensor in given.tensors.items() if name not in ("lm_head.weight", "d2t")}
    return replace(given, config=replace(given.config, draft_vocab_size=None), tensors=kept)


def _verify(writer: Writer, written: Path, given: Draft, wanted: Draft, kind: StoredType) -> Comparison:
    """Compare what was written with what should have been; return how it compares with the drafter as given."""
    target = wanted.target.target
    recordings = record(wanted.target, wanted.config.target_layer_ids)
    found = draft(load_draft_checkpoint(written, target.info), target, recordings)
    if kind not in _QUANTIZED:
        rounded = {name: writer.stored(name, tensor, kind) for name, tensor in wanted.tensors.items()}
        expected = draft(_in_memory(replace(wanted, tensors=rounded)), target, recordings)
        if not compare(expected, found).is_exact:
            raise RuntimeError(f"internal error: {written.name} does not draft as the drafter it was written from")
    return compare(draft(_in_memory(given), target, recordings), found)


def _in_memory(drafter: Draft) -> DraftCheckpoint:
    info = drafter.target.target.info

    def placed(tensor: Tensor) -> Tensor:
        return tensor.to(info.device, info.dtype if tensor.is_floating_point() else tensor.dtype)

    tensors = {name: placed(tensor) for name, tensor in drafter.tensors.items()}
    num_bytes = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    return DraftCheckpoint(config=drafter.config, tensors=tensors, num_bytes=num_bytes)


def _notes(wanted: Draft, layout: str) -> tuple[str, ...]:
    config = wanted.config
    if layout == "speculators" and config.kind == "draft-dflash" and config.anchor.anchor_predicts:
        return ("vLLM refuses DFlash drafters that predict from the anchor's row; speculators reads them",)
    if config.borrows_head:
        return ("only blockdraft reads this file: its output head is read off the target",)
    if layout == "deepspec" and config.draft_vocab_size is not None:
        return ("the reduced vocabulary is read by vLLM and blockdraft; DeepSpec's own evaluator has none",)
    return ()
