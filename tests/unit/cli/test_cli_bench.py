"""`blockdraft bench` and `blockdraft advise`: the commands around tests/unit/bench/speed."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from blockdraft.bench.speed.native_side import NativeSide
from blockdraft.bench.speed.records import SCHEMA, read_run
from blockdraft.bench.speed.side import WARM_UP_TOKENS
from blockdraft.testing.sse_server import DONE, SseServer, ending, piece

EMPTY = {
    "schema": SCHEMA,
    "date": "2026-01-02",
    "command": [],
    "versions": {},
    "machine": {},
    "settings": {},
    "sides": [],
    "passes": [],
    "is_complete": False,
}


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    rows = [{"question_id": kind, "category": kind, "turns": [f"{kind} {kind}"]} for kind in ("a", "b")]
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return path


@pytest.fixture
def bench(run, prompts):
    def bench(where: str, *arguments: str):
        common = ("--prompts", str(prompts), "--max-tokens", "12", "--repeats", "1")
        return run("bench", where, *common, *arguments)

    return bench


@pytest.fixture
def native(bench, checkpoints):
    def native(*arguments: str):
        return bench("native", "-m", checkpoints.target, "--dtype", "float32", "-d", checkpoints.dflash, *arguments)

    return native


def script(num_events: int, gap_s: float):
    """Return an answer of as many tokens, one in each piece."""

    def answer(_body: dict[str, Any]):
        usage = {"prompt_tokens": 5, "completion_tokens": num_events}
        return [*((gap_s, piece("x ")) for _ in range(num_events)), (0, ending(usage=usage)), (0, DONE)]

    return answer


def test_the_own_engine_is_measured_reported_and_advised_on(native, run, tmp_path: Path) -> None:
    out, page = tmp_path / "run.json", tmp_path / "run.html"
    result = native("--out", str(out), "--report", str(page), "--concurrency", "1,2", "--depth", "0,30")
    assert result.exit_code == 0, result.output
    for text in ("baseline: blockdraft", "times as fast as the baseline", "slower than the baseline by concurrency"):
        assert text in result.stdout
    kept = read_run(out)
    assert kept.is_complete
    assert len(kept.passes) == 2 * 2 * 2 * 2  # sides, categories, depths, loads
    assert kept.sides[0].details["drafter"]["name"] == "draft-dflash"
    assert page.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    advice = run("advise", str(out))
    assert advice.exit_code == 0, advice.output
    assert "recommendation: " in advice.stdout
    assert "limit: Verdicts rest on 2 prompts" in advice.stdout
    record = json.loads(run("advise", str(out), "--json").stdout)
    assert record["evidence"][0]["run"] == "run"


def test_two_servers_are_compared_and_one_alone_claims_nothing(bench) -> None:
    with SseServer(script(8, 0.004)) as own, SseServer(script(8, 0.02)) as plain:
        both = json.loads(bench(own.url, "--baseline", plain.url, "--json").stdout)
        alone = bench(own.url)
    assert both["conditions"][0]["decode_ratio"]["value"] > 1.5
    assert {caveat["code"] for caveat in both["caveats"]} >= {"no-counters"}
    assert alone.exit_code == 0
    assert "no speed-up is claimed" in alone.stdout
    assert "times as fast" not in alone.stdout


def test_a_server_that_never_drafts_is_named(bench) -> None:
    names = ("drafts", "draft_tokens", "accepted_tokens")
    pages = {"/metrics": "\n".join(f"llamacpp:spec_decode_num_{name}_total 0" for name in names)}
    with SseServer(script(8, 0.002), pages=pages) as server:
        result = bench(server.url, "--baseline", server.url)
    assert "not one token was drafted in the whole run" in result.stdout


def stretches(*parts: tuple[int, int, float]):
    """Return an answer in stretches: pieces, tokens in each, and the time before each."""

    def answer(body: dict[str, Any]):
        sizes = [(size, gap_s) for num, size, gap_s in parts for _ in range(num)]
        events, total = [], 0
        for size, gap_s in sizes[: 4 if body["max_tokens"] == WARM_UP_TOKENS else None]:
            total += size
            events.append((gap_s, piece("x " * size, usage={"completion_tokens": total})))
        return [*events, (0, ending(usage={"prompt_tokens": 5, "completion_tokens": total})), (0, DONE)]

    return answer


def test_a_server_whose_drafts_fail_after_200_tokens_is_named(bench, run, tmp_path: Path) -> None:
    out = str(tmp_path / "run.json")
    options = ("--category", "a", "--concurrency", "3", "--max-tokens", "400", "--out", out)
    collapsing, steady = stretches((50, 4, 0.004), (140, 1, 0.004)), stretches((340, 1, 0.004))
    with SseServer(collapsing) as own, SseServer(steady) as plain:
        result = bench(own.url, "--baseline", plain.url, *options)
    assert result.exit_code == 0, result.output
    [found] = re.findall(
        r"answers begin (\d\.\d\d) times .* are\s+(\d\.\d\d) times as fast from token (\d+)", flat(result)
    )
    assert float(found[0]) > 1.3 * float(found[1])
    assert int(found[2]) >= 192
    assert "drafts stop being kept inside long answers" in flat(result)
    # On the whole it gains, and the advice says why not to rely on it.
    assert "drafts stop being kept inside long answers" in flat(run("advise", out))


def test_a_server_that_drafts_make_slower_is_named_and_advised_against(bench, run, tmp_path: Path) -> None:
    out = str(tmp_path / "run.json")
    # Far apart and often, as a busy machine blurs milliseconds.
    with SseServer(script(12, 0.05)) as own, SseServer(script(12, 0.005)) as plain:
        result = bench(own.url, "--baseline", plain.url, "--repeats", "4", "--out", out)
    assert "warning: decoding with drafts is slower than the baseline" in flat(result)
    advice = json.loads(run("advise", out, "--json").stdout)
    assert advice["verdict"] == "do not speculate"
    assert run("advise", out).stdout.startswith("recommendation: do not speculate\n")


def flat(result: Any) -> str:
    """Return what was printed without its line breaks."""
    return " ".join(result.stdout.split())


def test_fields_can_switch_drafts_off_on_one_server(bench) -> None:
    with SseServer(script(8, 0.001)) as server:
        result = bench(server.url, "--fields", '{"top_k": 1}', "--baseline-fields", '{"speculate": false}', "--json")
        kinds = {(body.get("top_k"), body.get("speculate")) for body in server.bodies}
    assert result.exit_code == 0, result.output
    assert kinds == {(1, None), (1, False)}
    assert json.loads(result.stdout)["cells"][0]["decode_ratio"]


def test_a_kept_run_is_shown_compared_and_recorded_without_measuring(native, run, tmp_path: Path) -> None:
    out = tmp_path / "run.json"
    native("--out", str(out))
    folder = tmp_path / "records"
    result = run(
        "bench", str(out), "--compare", str(out), "--record", str(folder), "--hf-id", "o/n", "--quantization", "fp32"
    )
    assert result.exit_code == 0, result.output
    assert "rigs and settings are the same" in result.stdout
    assert sorted(path.name for path in folder.iterdir()) == ["baseline.json", "speculative.json"]


@pytest.mark.parametrize("option", ["--repeats", "--category", "--out", "--drafter", "--served-model"])
def test_options_of_measuring_have_no_place_at_a_kept_run(run, tmp_path: Path, option: str) -> None:
    path = tmp_path / "run.json"
    path.write_text(json.dumps(EMPTY), encoding="utf-8")
    result = run("bench", str(path), option, "1")
    assert result.exit_code == 2
    assert f"{option} has no effect: {path} was measured already" in result.stderr


def test_a_key_is_sent_and_not_kept(bench, tmp_path: Path, monkeypatch) -> None:
    out = tmp_path / "run.json"
    monkeypatch.setenv("MY_KEY", "secret-1")
    with SseServer(script(8, 0.001)) as server:
        bench(server.url, "--api-key-env", "MY_KEY", "--out", str(out))
        assert {head["authorization"] for head in server.heads} == {"Bearer secret-1"}
    assert "secret" not in out.read_text(encoding="utf-8")


def test_an_interrupt_shows_what_is_there_and_has_its_exit_code(native, tmp_path: Path, monkeypatch) -> None:
    out = tmp_path / "run.json"
    serve, calls = NativeSide.serve, [0]

    def serve_or_stop(self, *arguments, **options):
        calls[0] += 1
        if calls[0] == 3:
            raise KeyboardInterrupt
        serve(self, *arguments, **options)

    monkeypatch.setattr(NativeSide, "serve", serve_or_stop)
    result = native("--out", str(out))
    assert result.exit_code == 130
    assert "the run was stopped" in result.stdout
    kept = read_run(out)
    assert not kept.is_complete
    assert len(kept.passes) == 3


def test_a_server_that_fails_every_request_is_a_failure(bench) -> None:
    answered = [0]

    def once(body):
        answered[0] += 1
        return script(8, 0.001)(body) if answered[0] == 1 else [(0, {"error": "gone"})]

    with SseServer(once) as server:
        result = bench(server.url)
    assert result.exit_code == 1
    assert "2 of 2 requests failed: stream (speculative); first: gone" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("localhost:8000",), "is no URL, no file and not 'native'"),
        (("native", "-d", "none"), "there is nothing to compare"),
        (("native", "--baseline", "http://localhost:1"), "--baseline has no effect: 'native' asks no server"),
        (("native", "--fields", "{}"), "--fields has no effect: 'native' asks no server"),
        (("native", "--hf-id", "o/n"), "--hf-id has no effect without --record"),
        (("http://localhost:1", "--drafter", "ngram-mod"), "has no effect: the server was started with its own"),
        (("http://localhost:1", "--runtime", "torch"), "--runtime has no effect"),
        (("http://localhost:1", "--baseline-model", "m"), "--baseline-model has no effect without --baseline"),
        (("http://localhost:1", "--baseline-fields", "{}"), "--baseline-fields is empty"),
        (("native", "--depth", "0,deep"), "not a list of whole numbers"),
        (("native", "--category", "cod"), "there are no prompts of category 'cod'"),
        (("native", "--record", "folder"), "--record needs --hf-id"),
        (("native", "--out", "nowhere/run.json"), "there is no folder nowhere"),
        (("http://localhost:1", "--fields", "[1]"), "a JSON object is needed"),
    ],
)
def test_wrong_use_is_refused_before_anything_is_measured(bench, checkpoints, arguments, message: str) -> None:
    model = ("-m", checkpoints.target) if arguments[0] == "native" else ()
    result = bench(*arguments, *model)
    assert result.exit_code == 2, result.output
    assert message in result.stderr


def test_without_matplotlib_a_report_is_refused_first(native, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = native("--report", str(tmp_path / "r.html"))
    assert result.exit_code == 2
    assert "blockdraft[plots]" in result.stderr


def test_a_file_that_is_no_run_is_refused(run, prompts) -> None:
    result = run("advise", str(prompts))
    assert result.exit_code == 2
    assert "cannot be read" in result.stderr


@pytest.mark.slow
@pytest.mark.network
def test_the_default_model_is_measured(run, tmp_path: Path) -> None:
    out = tmp_path / "run.json"
    options = ("--category", "edit", "--num-prompts", "1", "--repeats", "1", "--max-tokens", "24")
    result = run("bench", "native", *options, "--out", str(out))
    assert result.exit_code == 0, result.output
    kept = read_run(out)
    assert {one.role for one in kept.passes} == {"baseline", "speculative"}
    # Greedy answers are the target's with drafts and without them.
    assert len({one.samples[0].text_sha256 for one in kept.passes}) == 1
    drafts = next(one.drafts for one in kept.passes if one.role == "speculative")
    assert drafts is not None
    assert drafts.num_accepted
