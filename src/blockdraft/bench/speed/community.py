"""A run in the form that LocalMaxxing takes: one JSON document for each side, for `lmx speed-test validate-local`.

Field names are those that its command line documents (speed tests: required `hfId`, `hardware`, `engineName`,
`quantization`, `tokSOut` and one more speed). The site compares runs of one depth and concurrency, so the documents are
of the run's first condition: the shallowest, with the fewest conversations at once. Both sides are written, as a
speculative row without its plain row is worth little. Nothing is sent anywhere.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from blockdraft.bench.speed.caveats import claims_hold, find_caveats
from blockdraft.bench.speed.drafts import DraftCounts
from blockdraft.bench.speed.records import Pass, Run, SideInfo
from blockdraft.bench.speed.statistics import spread
from blockdraft.bench.speed.summary import summarise
from blockdraft.errors import ConfigError

_NOTES_LIMIT = 2000
_ENGINES = {"llamacpp": "llama.cpp"}
"""What the site calls engines, where that differs."""


def write_records(run: Run, folder: Path, *, hf_id: str, quantization: str, hardware: Path | None = None) -> list[Path]:
    """Write a document for each side and return their paths.

    Raises:
        ConfigError: there is no speed to report, or a file cannot be read or written.
    """
    rig = _read(hardware) if hardware else hardware_of(run.machine)
    paths = []
    for side in run.sides:
        document = record(run, side, hf_id=hf_id, quantization=quantization, hardware=rig)
        path = folder / f"{side.role}.json"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(document, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"{path} cannot be written: {error}") from error
        paths.append(path)
    return paths


def record(run: Run, side: SideInfo, *, hf_id: str, quantization: str, hardware: dict[str, Any]) -> dict[str, Any]:
    """Return one side's document.

    Raises:
        ConfigError: the side has no answer with a speed.
    """
    where = _first_condition(run)
    passes = [one for one in run.passes if one.role == side.role and (one.cell.depth, one.cell.concurrency) == where]
    samples = [sample for one in passes for sample in one.samples if sample.tpot_s]
    if not samples:
        raise ConfigError(f"the {side.role} side has no answer with a speed, so there is nothing to record")
    name, _, version = (side.engine or "unknown").partition(" ")
    speeds = spread([1 / sample.tpot_s for sample in samples if sample.tpot_s])
    assert speeds is not None
    document = {
        "hfId": hf_id,
        "engineName": _ENGINES.get(name, name),
        "engineVersion": version or None,
        "quantization": quantization,
        "hardware": hardware,
        "tokSOut": round(speeds.median, 3),
        "tokSTotal": round(median(one.tokens_per_second for one in passes), 3),
        "ttftMs": round(median(1000 * (sample.ttft_s or 0) for sample in samples), 3),
        "promptTokens": _middle([sample.num_prompt_tokens for sample in samples if sample.num_prompt_tokens]),
        "outputTokens": _middle([sample.num_tokens for sample in samples]),
        "prefillTokens": 0,
        "samples": [{"tokSOut": round(1 / sample.tpot_s, 3)} for sample in samples if sample.tpot_s],
        "engineFlags": _flags(run, side, passes, where[1]),
        "notes": _notes(run, side, speeds.low, speeds.high)[:_NOTES_LIMIT],
    }
    return {key: value for key, value in document.items() if value is not None}


def hardware_of(machine: dict[str, Any]) -> dict[str, Any]:
    """Return the machine in the site's words, as far as it is known; names are not checked against the site's list."""
    cards = machine.get("gpus") or []
    found = {"cpu": machine.get("cpu"), "ramGb": machine.get("ram_gb"), "os": machine.get("system")}
    if cards:
        found |= {
            "hwClass": "DISCRETE_GPU",
            "gpuName": cards[0]["name"],
            "gpuCount": len(cards),
            "vramGb": cards[0]["vram_gb"],
        }
    else:
        found |= {"hwClass": "CPU_ONLY"}
    return {key: value for key, value in found.items() if value is not None}


def _first_condition(run: Run) -> tuple[int, int]:
    return min(((one.cell.depth, one.cell.concurrency) for one in run.passes), default=(0, 1))


def _flags(run: Run, side: SideInfo, passes: Sequence[Pass], concurrency: int) -> dict[str, Any]:
    drafts = DraftCounts.merge([one.drafts for one in passes])
    answers = run.settings.get("answers", {})
    flags: dict[str, Any] = {
        "commandSnippet": shlex.join(run.command),
        "concurrency": concurrency,
        "temperature": answers.get("temperature"),
        "specDecoding": bool(drafts and not drafts.never_drafted),
    }
    if drafts and not drafts.never_drafted:
        server = side.details.get("server") or {}
        flags |= {
            "specMethod": server.get("method") or ",".join((side.details.get("spec") or {}).get("types", ())) or None,
            "specDraftTokens": drafts.num_drafted,
            "specAcceptedTokens": drafts.num_accepted,
            "specAcceptanceRate": drafts.acceptance_rate,
            "specMeanAcceptedLength": drafts.drafted_round_length,
        }
    return {key: value for key, value in flags.items() if value is not None}


def _notes(run: Run, side: SideInfo, low: float, high: float) -> str:
    caveats = find_caveats(run)
    condition = summarise(run).conditions[0]
    categories = ", ".join(dict.fromkeys(one.cell.category for one in run.passes))
    parts = [
        f"blockdraft bench, {side.role} side; prompts: {categories}; tok/s is the median of answers, half of them "
        f"between {low:.1f} and {high:.1f}."
    ]
    if side.role == "speculative" and condition.decode_ratio and claims_hold(caveats):
        parts.append(
            f"Decoding {condition.decode_ratio} times as fast as the baseline of the same run, in turns "
            f"({condition.decode_ratio.num_prompts} prompts, {condition.decode_ratio.num_pairs} pairs)."
        )
    parts += [f"{caveat.severity}: {caveat.text}." for caveat in caveats]
    return " ".join(parts)


def _middle(values: Sequence[int]) -> int | None:
    return round(median(values)) if values else None


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"the hardware file {path} cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise ConfigError(f"the hardware file {path} holds no JSON object; `lmx hardware --out FILE` writes one")
    return found
