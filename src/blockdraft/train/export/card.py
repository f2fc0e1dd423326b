"""The model card: README.md of an exported drafter.

It says what the drafter is for, how to serve it, what it was measured to do, and how it was trained. What
nobody recorded is said to be missing, so that a reader can tell "not measured" from "not worth mentioning".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from blockdraft import __version__
from blockdraft.train.export.layout import Draft
from blockdraft.train.export.provenance import ACCEPTANCE, CALIBRATION, MANIFEST, RECIPE, Provenance
from blockdraft.train.export.report import ExportReport

_NAMES = {"dflash": "DFlash", "dspark": "DSpark"}
_PAPERS = {"dflash": "arXiv:2602.06036", "dspark": "arXiv:2607.05147"}
_LAYOUTS = {"z-lab": "Z Lab", "deepspec": "DeepSpec", "speculators": "speculators", "gguf": "GGUF (llama.cpp)"}


def write_card(path: Path, draft: Draft, report: ExportReport, provenance: Provenance) -> None:
    """Write the card of an exported drafter."""
    sections = (
        _front_matter(draft),
        _heading(draft),
        _made_for(draft, provenance),
        _use(draft, report),
        _acceptance(provenance),
        _calibration(draft, provenance),
        _training(provenance),
        _architecture(draft),
        _export(report),
    )
    path.write_text("\n\n".join(section.strip("\n") for section in sections) + "\n", encoding="utf-8")


def _front_matter(draft: Draft) -> str:
    return "\n".join(
        (
            "---",
            "library_name: blockdraft",
            f"base_model: {draft.target.reference!r}",
            "tags:",
            "  - speculative-decoding",
            f"  - {draft.method}",
            "---",
        )
    )


def _heading(draft: Draft) -> str:
    name = _NAMES[draft.method]
    return (
        f"# {name} drafter for {draft.target.tokenizer.name}\n\n"
        f"Drafts blocks of up to {draft.config.max_draft_tokens} tokens, which the target checks in one pass. The text "
        f"is the target's own, whatever is drafted; a good draft makes it come sooner. Method: {name} "
        f"({_PAPERS[draft.method]})."
    )


def _made_for(draft: Draft, provenance: Provenance) -> str:
    tokenizer = draft.target.tokenizer
    rows = [
        ("target", f"`{draft.target.reference}`"),
        ("tokenizer (sha256)", f"`{tokenizer.fingerprint}`"),
        ("chat template (sha256)", f"`{tokenizer.chat_template_sha256}`" if tokenizer.has_chat_template else "none"),
        ("thinking mode in training", _thinking(provenance.manifest or {})),
    ]
    others = _found(provenance.manifest or {}, "chat_template_sha256") - {tokenizer.chat_template_sha256}
    if others:
        named = ", ".join(f"`{digest}`" for digest in sorted(others))
        rows.append(("chat template in training (sha256)", f"{named}, **not** the one above"))
    return (
        "## Made for\n\n"
        + _table(("", ""), rows)
        + "\n\nWith another chat template or thinking mode fewer drafts are accepted. The text stays right."
    )


def _thinking(manifest: Mapping[str, Any]) -> str:
    """Return what the switch of the chat template was set to, in all the data together."""
    names = {None: "the template's default", True: "on", False: "off"}
    return " and ".join(names[mode] for mode in names if mode in _found(manifest, "thinking")) or "not recorded"


def _found(values: Mapping[str, Any], key: str) -> set[Any]:
    """Return what a key is set to, at any depth: a drafter may be trained on several sets of data."""
    found = {values[key]} if key in values else set()
    return found.union(*(_found(value, key) for value in values.values() if isinstance(value, Mapping)))


def _use(draft: Draft, report: ExportReport) -> str:
    drafts, method, file = draft.config.max_draft_tokens, draft.method, report.path.name
    place = file if report.layout == "gguf" else "."
    commands = [f'blockdraft generate --model {draft.target.reference} --drafter {place} "Why is the sky blue?"']
    if report.layout == "gguf":
        commands.append(
            f"llama-server --model TARGET.gguf --spec-draft-model {file} --spec-type draft-{method} "
            f"--spec-draft-n-max {drafts}"
        )
    else:
        config = f'{{"method": "{method}", "model": ".", "num_speculative_tokens": {drafts}}}'
        commands.append(f"vllm serve TARGET --speculative-config '{config}'")
    return "## Use\n\nIn this folder:\n\n```bash\n" + "\n".join(commands) + "\n```"


def _acceptance(provenance: Provenance) -> str:
    title = "## Measured acceptance\n\n"
    if not provenance.acceptance:
        return f"{title}Not measured: there was no {ACCEPTANCE} beside the drafter."
    return title + "\n\n".join(_acceptance_table(report) for report in provenance.acceptance)


def _acceptance_table(report: Mapping[str, Any]) -> str:
    """Return one report of `measure_acceptance`, or something like it, as a table by category."""
    parts = [("all", report), *dict(report.get("by_category") or {}).items()]
    rows = [
        (
            name,
            _number(part.get("mean_acceptance_length")),
            _number(part.get("acceptance_rate")),
            " ".join(_number(value) for value in part.get("conditional_acceptance") or ()),
        )
        for name, part in parts
    ]
    facts = {
        "temperature": report.get("temperature"),
        "prompts": report.get("num_prompts"),
        "tokens": report.get("num_tokens"),
    }
    said = ", ".join(f"{name} {value}" for name, value in facts.items() if value is not None)
    head = ("prompts", "mean acceptance length", "acceptance rate", "acceptance by position, given those before")
    return (f"Held-out prompts in blockdraft's engine: {said}.\n\n" if said else "") + _table(head, rows)


def _calibration(draft: Draft, provenance: Provenance) -> str:
    if draft.config.confidence_head == "none":
        return "## Confidence\n\nThis drafter has no confidence head."
    temperatures = draft.config.confidence_temperatures
    lines = [
        f"The logit of each slot is divided by its temperature: {', '.join(map(_number, temperatures))}."
        if temperatures
        else "The confidence head was not calibrated; its numbers are likely too high."
    ]
    if provenance.calibration:
        lines += _calibration_tables(provenance.calibration)
    else:
        lines.append(f"Calibration was not recorded: there was no {CALIBRATION} beside the drafter.")
    return "## Confidence\n\n" + "\n\n".join(lines)


def _calibration_tables(calibration: Mapping[str, Any]) -> list[str]:
    """Return what was set, and for each slot how far stated chances were from what happened, before and after."""
    settings = {key: value for key, value in calibration.items() if key not in ("before", "after")}
    before, after = calibration.get("before") or (), calibration.get("after") or ()
    rows = [
        (str(slot), *(_number(side[kind].get("ece")) for kind in ("conditional", "cumulative") for side in pair))
        for slot, pair in enumerate(zip(before, after, strict=False), 1)
    ]
    head = ("slot", "error of the slot, before", "after", "error of all up to it, before", "after")
    errors = ["Expected calibration error on prompts that the temperatures were not fitted on:", _table(head, rows)]
    return [*(errors if rows else ()), _table(("", ""), _flat(settings))]


def _training(provenance: Provenance) -> str:
    lines = ["## Training"]
    if provenance.manifest:
        lines += ["### Data", _table(("", ""), _flat(provenance.manifest))]
    else:
        lines.append(f"The data was not recorded: there was no {MANIFEST} beside the drafter.")
    if provenance.recipe:
        lines += ["### Recipe", "```toml\n" + provenance.recipe.strip() + "\n```"]
    else:
        lines.append(f"The recipe was not recorded: there was no {RECIPE} beside the drafter.")
    return "\n\n".join(lines)


def _architecture(draft: Draft) -> str:
    config = draft.config
    first = "predicts" if config.anchor.anchor_predicts else "is discarded"
    heads = f"rank {config.markov_rank}, {config.markov_head_type}" if config.markov_rank else "none"
    rows = [
        ("parameters", f"{sum(tensor.numel() for tensor in draft.tensors.values()):,}"),
        ("layers", str(len(config.layers))),
        ("block size", f"{config.block_size}; the anchor's row {first}"),
        ("reads the target's layers", ", ".join(map(str, config.target_layer_ids))),
        ("mask token", str(config.mask_token_id)),
        (
            "vocabulary",
            f"{config.draft_vocab_size or config.vocab_size:,} of the target's {config.vocab_size:,} tokens",
        ),
        ("Markov head", heads),
        ("confidence head", config.confidence_head),
    ]
    return "## Architecture\n\n" + _table(("", ""), rows)


def _export(report: ExportReport) -> str:
    comparison = report.comparison
    kept = (
        "the drafts are those of the drafter it was written from, token for token"
        if comparison.is_exact
        else f"{comparison.share_equal:.1%} of the draft tokens, up to the first difference in each block, are those "
        "of the drafter it was written from"
    )
    lines = [
        f"Written by blockdraft {__version__} in the {_LAYOUTS[report.layout]} layout, weights in "
        f"{report.stored_type}. Loaded back and asked for {comparison.num_proposals} blocks: {kept}.",
        *(f"Note: {note}." for note in report.notes),
    ]
    return "## Export\n\n" + "\n\n".join(lines)


def _flat(values: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Return nested plain data as rows of a table, "outer / inner" by name."""
    rows = []
    for key, value in values.items():
        name = f"{prefix}{key.replace('_', ' ')}"
        if isinstance(value, Mapping):
            rows += _flat(value, f"{name} / ")
        elif isinstance(value, Sequence) and not isinstance(value, str):
            rows.append((name, "<br>".join(_item(item) for item in value) or "none"))
        else:
            rows.append((name, _item(value)))
    return rows


def _item(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_item(item)}" for key, item in value.items())
    if isinstance(value, list):
        return " ".join(map(_item, value))
    if value is None:
        return "not set"
    return _number(value) if isinstance(value, float) else str(value)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}" if value < 0.1 else f"{value:.2f}"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
