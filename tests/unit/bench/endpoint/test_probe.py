"""The probe names what is wrong with a server that quietly stops drafting, and says nothing about a sound one."""

from dataclasses import replace

import pytest
from scripted_runs import probed

from blockdraft.bench.endpoint.counters import DraftCounters
from blockdraft.bench.endpoint.diagnosis import diagnose, has_fallen
from blockdraft.bench.endpoint.probe import ProbeReport, ProbeSettings
from blockdraft.errors import ConfigError
from blockdraft.testing.scripted_server import Engine, Faults, ScriptedServer

DRAFTING_ENGINES: tuple[Engine, ...] = ("vllm", "sglang", "llamacpp")
SETTINGS = ProbeSettings(depths=(500,))


def names(report: ProbeReport) -> list[str]:
    return [finding.name for finding in report.findings]


@pytest.mark.parametrize("engine", DRAFTING_ENGINES)
def test_a_sound_server_has_no_findings(engine: Engine) -> None:
    report = probed(ScriptedServer(engine=engine), SETTINGS)
    assert names(report) == []
    assert [(window.start, window.end) for window in report.measured.by_length] == [(0, 100), (100, 200), (200, 400)]
    [deep] = report.measured.by_depth
    assert deep.end > 500
    assert report.measured.depths_left_out == ()


@pytest.mark.parametrize(
    ("method", "name"),
    [
        ("ngram-mod", "nothing-to-copy"),
        ("ngram-mod,ngram-cache", "nothing-to-copy"),
        ("NGRAM", "nothing-to-copy"),
        ("ngram-mod,draft-dflash", "never-drafts"),
        (None, "never-drafts"),
    ],
)
def test_what_copies_may_find_nothing(method: str | None, name: str) -> None:
    report = probed(ScriptedServer(faults=Faults(never_drafts=True)), SETTINGS)
    measured = replace(report.measured, engine=replace(report.measured.engine, method=method))
    assert [finding.name for finding in diagnose(measured, None)] == [name]


CASES = {
    "never drafts": (Faults(never_drafts=True), "never-drafts"),
    "nothing accepted": (Faults(collapses_after=0), "nothing-accepted"),
    "late collapse": (Faults(collapses_after=200), "late-collapse"),
    "deep prompts": (Faults(collapses_past=1000), "deep-context"),
    "prefixes gone": (Faults(forgets_prefixes=True), "prefix-hits-gone"),
    "known prompts": (Faults(loses_drafts_behind_known=True), "prefix-hit-acceptance"),
}


@pytest.mark.parametrize("engine", ["vllm", "llamacpp"])
@pytest.mark.parametrize(("faults", "name"), CASES.values(), ids=CASES.keys())
def test_a_planted_fault_is_named_and_no_other(faults: Faults, name: str, engine: Engine) -> None:
    report = probed(ScriptedServer(engine=engine, faults=faults), SETTINGS)
    assert names(report) == [name]


def test_a_late_collapse_says_from_where_on_and_how_far() -> None:
    [finding] = probed(ScriptedServer(faults=Faults(collapses_after=200)), SETTINGS).findings
    assert finding.severity == "error"
    assert finding.what.startswith("from token 200 of an answer on, 0 % of the drafts are accepted")
    assert "answers of 100 to 400 tokens" in finding.source


def test_sglang_without_counters_is_told_how_to_count() -> None:
    [finding] = probed(ScriptedServer(engine="sglang", faults=Faults(never_drafts=True)), SETTINGS).findings
    assert (finding.name, finding.fix) == ("drafts-not-counted", "start SGLang with --enable-metrics")


def test_a_server_without_counters_is_not_called_sound() -> None:
    assert names(probed(ScriptedServer(engine="openai"), SETTINGS)) == ["drafts-not-counted"]


def test_a_server_far_under_its_card_is_named() -> None:
    report = probed(ScriptedServer(), ProbeSettings(lengths=(100,), depths=()))
    found = report.measured.total.mean_acceptance_length
    promised = ProbeSettings(lengths=(100,), depths=(), expected_length=1 + 2 * (found - 1))
    [finding] = probed(ScriptedServer(), promised).findings
    assert finding.name == "under-the-card"
    assert f"{found:.2f} tokens" in finding.what
    kept = ProbeSettings(lengths=(100,), depths=(), expected_length=found)
    assert names(probed(ScriptedServer(), kept)) == []


def test_depths_that_the_context_does_not_hold_are_listed() -> None:
    report = probed(ScriptedServer(), ProbeSettings(lengths=(100,), depths=(200, 9000)))
    assert report.measured.depths_left_out == (9000,)
    assert report.to_dict()["depths_left_out"] == [9000]
    assert len(report.measured.by_depth) == 1


@pytest.mark.parametrize(
    ("before", "after", "fallen"),
    [
        ((800, 1000), (100, 1000), True),
        ((800, 1000), (500, 1000), False),  # worse, and more than half
        ((10, 20), (0, 20), False),  # too few to tell
        ((20, 100), (8, 100), False),  # chance may do that
        ((0, 100), (0, 100), False),
    ],
)
def test_a_fall_is_one_by_more_than_half_that_chance_does_not_explain(
    before: tuple[int, int], after: tuple[int, int], fallen: bool
) -> None:
    def counters(accepted: int, drafted: int) -> DraftCounters:
        return DraftCounters(num_rounds=None, num_drafted=drafted, num_accepted=accepted, source="here")

    assert has_fallen(counters(*before), counters(*after)) is fallen


def test_a_report_is_plain_data() -> None:
    report = probed(ScriptedServer(faults=Faults(forgets_prefixes=True)), SETTINGS).to_dict()
    assert [finding["name"] for finding in report["findings"]] == ["prefix-hits-gone"]
    assert [window["to"] for window in report["by_answer_length"]] == [100, 200, 400]
    assert report["of_these_cached"] == 0 < report["known_prompt_tokens"]
    assert report["drafts"]["num_drafted"] > report["new_prompts"]["num_drafted"] > 0


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"lengths": ()}, "lengths must rise"),
        ({"lengths": (200, 100)}, "lengths must rise"),
        ({"lengths": (4, 100)}, "begin at 8"),
        ({"expected_length": 1.0}, "more than 1"),
    ],
)
def test_settings_that_cannot_be_are_refused(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ProbeSettings(**wrong)
