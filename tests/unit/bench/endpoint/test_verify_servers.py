"""The gate on servers whose faults are known: those that are lossy fail, sound ones pass, and what cannot be told is
called inconclusive."""

from dataclasses import replace

import pytest
from scripted_runs import QUICK, verdicts, verified

from blockdraft.bench.endpoint.samples import SamplingPlan
from blockdraft.bench.endpoint.verify import VerifyReport, VerifySettings
from blockdraft.errors import ConfigError
from blockdraft.testing.scripted_server import TIES, Engine, Faults, ScriptedServer

ENGINES: tuple[Engine, ...] = ("vllm", "sglang", "llamacpp", "openai")
LOSSY = Faults(greedy_error_rate=0.02)


def reason(report: VerifyReport, name: str) -> str:
    [check] = [check for check in report.checks if check.name == name]
    return check.reason


@pytest.mark.parametrize("seed", range(20))
def test_a_sound_server_passes(seed: int) -> None:
    server = ScriptedServer(seed=seed, engine=ENGINES[seed % 4])
    report = verified(server, sampling=replace(QUICK, seed=seed))
    assert report.verdict == "pass", report.checks
    assert not report.greedy.deviations
    assert report.sampling.power >= 0.9
    # Servers of the plain interface of OpenAI do not tell about drafts.
    assert verdicts(report).get("drafts") == (None if server.engine == "openai" else "pass")


@pytest.mark.slow
def test_sound_servers_pass_the_default_plan_twenty_times_of_twenty() -> None:
    servers = [ScriptedServer(seed=seed, engine=ENGINES[seed % 4]) for seed in range(20)]
    reports = [verified(server, sampling=SamplingPlan(seed=server.seed)) for server in servers]
    assert [report.verdict for report in reports] == ["pass"] * 20


@pytest.mark.parametrize("engine", ENGINES)
def test_answers_that_drafts_changed_are_a_failure(engine: Engine) -> None:
    report = verified(ScriptedServer(engine=engine, faults=LOSSY))
    assert (report.verdict, verdicts(report)["greedy"]) == ("fail", "fail")
    faults = [deviation for deviation in report.greedy.deviations if deviation.kind == "fault"]
    assert faults
    assert all(fault.said != fault.baseline and fault.gap >= 0.25 for fault in faults)
    assert "no near-tie: the worst is" in reason(report, "greedy")


def test_a_bias_of_three_points_is_a_failure_of_the_default_plan() -> None:
    report = verified(ScriptedServer(faults=Faults(sampling_bias=0.03)), sampling=SamplingPlan())
    assert verdicts(report) == {"greedy": "pass", "sampling": "fail", "drafts": "pass"}
    assert report.sampling.result.excess == pytest.approx(0.03, abs=4 * report.sampling.result.standard_error)
    assert "more often than it should" in reason(report, "sampling")


@pytest.mark.slow
def test_a_bias_of_three_points_is_found_as_often_as_stated() -> None:
    faults = Faults(sampling_bias=0.03)
    reports = [verified(ScriptedServer(seed=n, faults=faults), sampling=SamplingPlan(seed=n)) for n in range(30)]
    # With a power of 0.9 fewer than 22 of 30 come once in two thousand times.
    assert sum(verdicts(report)["sampling"] == "fail" for report in reports) >= 22


def test_a_bias_is_found_against_samples_of_a_baseline_that_tells_no_probabilities() -> None:
    baseline = ScriptedServer(tells_logprobs=False, faults=Faults(never_drafts=True))
    server = ScriptedServer(tells_logprobs=False, faults=Faults(sampling_bias=0.15))
    report = verified(server, baseline, sampling=QUICK)
    assert verdicts(report) == {"greedy": "pass", "sampling": "fail", "drafts": "pass"}
    assert report.sampling.power >= 0.9


@pytest.mark.parametrize("engine", ENGINES)
def test_near_ties_that_tip_are_counted_and_do_not_fail(engine: Engine) -> None:
    report = verified(ScriptedServer(engine=engine, shapes=TIES, faults=Faults(tips_ties=True)))
    assert report.verdict == "pass", report.checks
    assert {deviation.kind for deviation in report.greedy.deviations} == {"near-tie"}
    assert f"{len(report.greedy.deviations)} near-ties aside" in reason(report, "greedy")


@pytest.mark.parametrize("has_baseline", [False, True])
def test_a_baseline_that_disagrees_with_itself_convicts_nobody(has_baseline: bool) -> None:
    unsteady = ScriptedServer(faults=Faults(unsteady=0.1, greedy_error_rate=0.02))
    report = verified(ScriptedServer(faults=LOSSY), unsteady) if has_baseline else verified(unsteady)
    assert verdicts(report)["greedy"] == "inconclusive"
    assert "the baseline disagrees with itself" in reason(report, "greedy")


@pytest.mark.parametrize("engine", ["vllm", "openai"])
def test_a_server_without_logprobs_is_held_against_its_own_samples(engine: Engine) -> None:
    report = verified(ScriptedServer(engine=engine, tells_logprobs=False), sampling=QUICK)
    assert report.verdict == "pass", report.checks
    assert "samples of each side" in reason(report, "sampling")


@pytest.mark.parametrize(("rate", "verdict"), [(0.01, "inconclusive"), (0.3, "fail")])
def test_differences_of_unknown_size_fail_only_if_rounding_cannot_make_so_many(rate: float, verdict: str) -> None:
    report = verified(ScriptedServer(tells_logprobs=False, faults=Faults(greedy_error_rate=rate)))
    assert verdicts(report)["greedy"] == verdict
    assert {deviation.kind for deviation in report.greedy.deviations} == {"unknown"}


def test_a_server_that_only_chats_needs_a_baseline() -> None:
    report = verified(ScriptedServer(only_chats=True), sampling=QUICK)
    assert verdicts(report) == {"greedy": "inconclusive", "sampling": "inconclusive"}
    assert "--baseline" in reason(report, "greedy")
    assert report.baseline == "none"


@pytest.mark.parametrize("chats", [(True, True), (True, False), (False, True)])
def test_chats_are_compared_with_chats(chats: tuple[bool, bool]) -> None:
    server, baseline = (ScriptedServer(only_chats=only_chats) for only_chats in chats)
    assert verified(server, baseline, sampling=QUICK if all(chats) else None).verdict == "pass"
    lossy = ScriptedServer(only_chats=chats[0], faults=LOSSY)
    assert verified(lossy, baseline).verdict == "fail"


def test_another_target_as_baseline_is_a_failure() -> None:
    assert verified(ScriptedServer(seed=1), ScriptedServer(seed=2)).verdict == "fail"


@pytest.mark.parametrize("engine", ["vllm", "sglang", "llamacpp"])
def test_a_server_that_never_drafts_is_not_called_lossless(engine: Engine) -> None:
    report = verified(ScriptedServer(engine=engine, faults=Faults(never_drafts=True)), sampling=QUICK)
    assert report.verdict == ("pass" if engine == "sglang" else "inconclusive")
    if engine == "sglang":  # It has no counters then.
        assert any("does not tell how much it drafts" in note for note in report.notes)
    else:
        assert "never drafted" in reason(report, "drafts")
        assert "nothing was drafted" in reason(report, "sampling")


def test_drafts_that_are_all_refused_test_nothing() -> None:
    report = verified(ScriptedServer(faults=Faults(collapses_after=0)))
    assert verdicts(report) == {"greedy": "pass", "drafts": "inconclusive"}
    assert "no draft was accepted" in reason(report, "drafts")


def test_a_sampler_that_its_own_logprobs_do_not_describe_is_not_blamed_on_drafts() -> None:
    report = verified(ScriptedServer(faults=Faults(sharpens=True)), sampling=QUICK)
    assert verdicts(report)["sampling"] == "inconclusive"
    assert "first tokens" in reason(report, "sampling")


@pytest.mark.parametrize("engine", ["vllm", "sglang", "llamacpp"])
def test_answers_that_end_are_compared_to_their_end(engine: Engine) -> None:
    report = verified(ScriptedServer(engine=engine, stop="e"))
    assert report.verdict == "pass", report.checks
    assert report.greedy.num_places < 8 * 24
    samples = verified(ScriptedServer(engine=engine, stop="e"), sampling=QUICK, max_tokens=2).sampling
    assert samples.check().verdict == "pass"
    assert samples.num_hidden_ends == 0


def test_ends_that_are_not_shown_make_samples_inconclusive_and_not_wrong() -> None:
    report = verified(ScriptedServer(engine="openai", stop="e"), sampling=QUICK)
    assert verdicts(report) == {"greedy": "pass", "sampling": "inconclusive"}
    assert "a token that the server does not show" in reason(report, "sampling")


def test_texts_that_are_cut_into_other_tokens_convict_nobody() -> None:
    server = ScriptedServer(engine="openai", merged="ab", seed=4)
    report = verified(server, sampling=QUICK)
    assert report.verdict == "pass", report.checks
    assert report.greedy.num_left_out > 0
    assert report.sampling.num_left_out > 0
    assert f"{report.greedy.num_left_out} more could not be compared" in reason(report, "greedy")


def test_too_few_samples_for_the_stated_power_are_inconclusive() -> None:
    report = verified(ScriptedServer(), sampling=SamplingPlan(max_samples=240))
    assert verdicts(report)["sampling"] == "inconclusive"
    assert "raise --max-samples" in reason(report, "sampling")
    assert report.sampling.num_samples == 240
    assert report.sampling.power < 0.9


def test_a_report_is_plain_data_with_all_figures() -> None:
    report = verified(ScriptedServer(faults=LOSSY), sampling=QUICK).to_dict()
    assert report["verdict"] == "fail"
    assert report["endpoint"]["engine"] == "vllm"
    assert report["greedy"]["num_faults"] == len(report["greedy"]["deviations"]) > 0
    assert report["greedy"]["baseline_against_itself"]["is_stable"]
    assert set(report["sampling"]["result"]["p_values"]) == {"top", "likelihood", "tail", "counts"}
    assert report["drafts"]["num_drafted"] > 0


@pytest.mark.parametrize("wrong", [{"max_tokens": 1}, {"near_tie": -0.1}])
def test_settings_that_cannot_be_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        VerifySettings(**wrong)
