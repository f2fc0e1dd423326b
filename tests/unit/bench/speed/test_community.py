"""Documents for LocalMaxxing: its required fields, both sides, and nothing invented."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from made_runs import BASE_S, FIRST_S, NUM_TOKENS, cells, counts, made_run

from blockdraft.bench.speed.community import hardware_of, write_records
from blockdraft.errors import ConfigError

REQUIRED = {"hfId", "hardware", "engineName", "quantization", "tokSOut"}


def documents(run, folder: Path, **more) -> dict[str, dict]:
    paths = write_records(run, folder, hf_id="Qwen/Qwen3-8B", quantization="fp8", **more)
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in paths}


def test_both_sides_have_a_document_with_what_the_site_requires(tmp_path: Path) -> None:
    run = made_run(dict.fromkeys(cells("code", "chat", depths=(0, 9), concurrencies=(1, 4)), 2.0), jitter=0)
    found = documents(run, tmp_path / "new")
    assert set(found) == {"baseline", "speculative"}
    assert all(set(document) >= REQUIRED for document in found.values())
    plain, own = found["baseline"], found["speculative"]
    assert plain["tokSOut"] == pytest.approx(1 / BASE_S)
    assert own["tokSOut"] == pytest.approx(2 / BASE_S)
    assert own["ttftMs"] == pytest.approx(1000 * FIRST_S)
    assert (own["promptTokens"], own["outputTokens"]) == (50, NUM_TOKENS)
    # Only the shallowest condition with the fewest at once: 2 categories, 6 prompts, 3 repeats.
    assert len(own["samples"]) == 36
    assert own["engineFlags"]["concurrency"] == 1
    assert (own["engineName"], own["engineVersion"]) == ("vllm", "1")


def test_what_was_drafted_is_told_and_what_was_not_is_left_out(tmp_path: Path) -> None:
    drafts = {"speculative": counts(300, 120, 100), "baseline": counts(0, 0, 0)}
    found = documents(made_run(dict.fromkeys(cells("code"), 2.0), repeats=1, drafts=drafts), tmp_path)
    flags = found["speculative"]["engineFlags"]
    assert flags["specDecoding"] is True
    assert (flags["specDraftTokens"], flags["specAcceptedTokens"]) == (300, 120)
    assert flags["specAcceptanceRate"] == pytest.approx(0.4)
    assert flags["specMeanAcceptedLength"] == pytest.approx(2.2)
    assert "specMethod" not in flags
    plain = found["baseline"]["engineFlags"]
    assert plain["specDecoding"] is False
    assert "specDraftTokens" not in plain


def test_notes_hold_the_ratio_and_the_findings_and_stay_short(tmp_path: Path) -> None:
    run = made_run(dict.fromkeys(cells("code"), 2.0), load_before=3.0)
    found = documents(run, tmp_path)
    assert "times as fast as the baseline" in found["speculative"]["notes"]
    assert "timings are noisy" in found["speculative"]["notes"]
    assert "times as fast" not in found["baseline"]["notes"]
    drafting = made_run(dict.fromkeys(cells("code"), 2.0), drafts={"baseline": counts(9, 3)})
    assert "times as fast as the baseline" not in documents(drafting, tmp_path)["speculative"]["notes"]
    many = made_run(dict.fromkeys(cells(*(f"category number {n}" for n in range(200))), 2.0), num_prompts=1, repeats=1)
    assert len(documents(many, tmp_path)["baseline"]["notes"]) <= 2000


def test_hardware_is_the_users_or_what_the_machine_tells(tmp_path: Path) -> None:
    assert hardware_of({"cpu": "x", "ram_gb": 8.0, "system": "Linux", "gpus": []}) == {
        "cpu": "x",
        "ramGb": 8.0,
        "os": "Linux",
        "hwClass": "CPU_ONLY",
    }
    cards = [{"name": "RTX 3090", "vram_gb": 24.0}] * 2
    found = hardware_of({"cpu": "x", "gpus": cards})
    assert (found["hwClass"], found["gpuName"], found["gpuCount"], found["vramGb"]) == (
        "DISCRETE_GPU",
        "RTX 3090",
        2,
        24.0,
    )
    file = tmp_path / "hardware.json"
    file.write_text('{"hwClass": "UNIFIED"}', encoding="utf-8")
    run = made_run(dict.fromkeys(cells("code"), 2.0))
    assert documents(run, tmp_path, hardware=file)["baseline"]["hardware"] == {"hwClass": "UNIFIED"}
    file.write_text("[]", encoding="utf-8")
    with pytest.raises(ConfigError, match="lmx hardware"):
        documents(run, tmp_path, hardware=file)


def test_a_run_without_answers_has_nothing_to_record(tmp_path: Path) -> None:
    run = made_run(dict.fromkeys(cells("code"), 2.0))
    with pytest.raises(ConfigError, match="no answer with a speed"):
        documents(replace(run, passes=()), tmp_path)
