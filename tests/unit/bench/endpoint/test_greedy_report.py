"""What differences of greedy answers amount to: one verdict, and one reason."""

import re

import pytest
from scripted_runs import PROMPTS, on_server

from blockdraft.bench.endpoint.answers import Seen
from blockdraft.bench.endpoint.greedy import Deviation, GreedyReport, check_free
from blockdraft.bench.endpoint.reference import Reference, SelfCheck, is_tie, spread
from blockdraft.bench.endpoint.served_model import NextToken, ServedModel
from blockdraft.bench.endpoint.verdict import EXIT_CODES, Check, overall
from blockdraft.testing.scripted_server import TIES, Faults, ScriptedServer


def report(kinds: str = "", *, num_places: int = 100, num_unstable: int = 0, **more: object) -> GreedyReport:
    """Return a report with a deviation for each word of `kinds`."""
    self_check = SelfCheck(
        num_places=9, num_changed_choices=num_unstable, num_unstable=num_unstable, logprob_noise=0.0, prob_noise=0.0
    )
    gaps = {"near-tie": 0.1, "fault": 1.5}
    deviations = [
        Deviation(prompt="p", position=index, said="a", baseline="b", gap=gaps.get(kind), kind=kind)
        for index, kind in enumerate(kinds.split())
    ]
    return GreedyReport(
        method="m",
        near_tie=0.25,
        num_prompts=2,
        num_places=num_places,
        deviations=tuple(deviations),
        self_check=self_check,
        answers={},
        **more,
    )


@pytest.mark.parametrize(
    ("found", "verdict", "reason"),
    [
        (report(), "pass", "100 places of 2 prompts are what the baseline says"),
        (report("near-tie near-tie"), "pass", "2 near-ties aside"),
        (report(num_left_out=7), "pass", "7 more could not be compared"),
        (report("near-tie fault"), "fail", "1 of 100 places .* 1.50 nat below its choice"),
        (report("fault unstable"), "inconclusive", "disagrees with itself at 1 places"),
        (report("fault", num_unstable=2), "inconclusive", "disagrees with itself at 2 places"),
        (report("unknown unknown"), "inconclusive", "2 differences in 100 places of 2 prompts cannot be judged"),
        (report("unknown " * 15), "fail", "15 differences in 100 places of 2 prompts: more than one in 33"),
        (report("unknown " * 15, is_by_pieces=True), "inconclusive", "cannot be judged"),
        (report("unknown " * 15, num_places=500), "inconclusive", "cannot be judged"),
        (report(num_places=0), "inconclusive", "neither tokens nor text"),
        (report(num_places=0, num_left_out=9), "inconclusive", "continues texts only"),
    ],
)
def test_a_report_has_one_verdict(found: GreedyReport, verdict: str, reason: str) -> None:
    check = found.check()
    assert check.verdict == verdict
    assert re.search(reason, check.reason), check.reason


def test_the_worst_check_decides() -> None:
    passed, open_, failed = (Check("c", verdict, "r") for verdict in ("pass", "inconclusive", "fail"))
    assert overall([passed, passed]) == "pass"
    assert overall([passed, open_]) == "inconclusive"
    assert overall([open_, failed, passed]) == "fail"
    assert EXIT_CODES == {"pass": 0, "fail": 1, "inconclusive": 3}


def test_answers_that_are_compared_freely_are_judged_at_their_first_difference() -> None:
    async def free(model: ServedModel, baseline: ServedModel) -> GreedyReport:
        return await check_free(model, baseline, PROMPTS, max_tokens=20, near_tie=0.25)

    def kinds(faults: Faults) -> list[str]:
        server, baseline = (ScriptedServer(shapes=TIES, only_chats=True, faults=one) for one in (faults, Faults()))
        found = on_server(free, server, baseline)
        assert len({deviation.prompt for deviation in found.deviations}) == len(found.deviations)
        assert found.num_places <= 20 * len(PROMPTS)
        return sorted({deviation.kind for deviation in found.deviations})

    assert kinds(Faults()) == []
    assert kinds(Faults(tips_ties=True)) == ["near-tie"]
    assert kinds(Faults(greedy_error_rate=0.3, tips_ties=True)) == ["fault", "near-tie"]


def next_token(**logprobs: float) -> NextToken:
    top = tuple(Seen(text=text, logprob=value) for text, value in logprobs.items())
    return NextToken(choice=top[0], top=top)


def test_two_readings_are_a_tie_only_if_both_are_close() -> None:
    close, turned, far = next_token(a=-0.7, b=-0.8), next_token(b=-0.7, a=-0.8), next_token(b=-0.2, a=-2.0)
    assert is_tie(close, turned, 0.25)
    assert not is_tie(close, far, 0.25)
    assert not is_tie(close, turned, 0.05)
    assert not is_tie(close, NextToken(choice=Seen(text="b"), top=()), 0.25)


def test_a_gap_to_a_token_that_is_not_shown_is_at_least_that_to_the_last_one() -> None:
    token = next_token(a=-0.1, b=-3.0)
    assert token.gap_to(Seen(text="b")) == pytest.approx(2.9)
    assert token.gap_to(Seen(text="z")) == pytest.approx(2.9)
    assert NextToken(choice=Seen(text="a"), top=()).gap_to(Seen(text="b")) is None


def test_items_are_chosen_at_even_distances() -> None:
    items = [(number,) for number in range(10)]
    assert spread(items, 20) == items
    assert spread(items, 5) == [(0,), (2,), (4,), (6,), (8,)]


def test_texts_count_only_where_they_are_cut_as_they_were_generated() -> None:
    async def cut(model: ServedModel) -> list[bool]:
        reference = Reference(model)
        await reference.read(["x", "xa", "xab"])
        return [reference.is_as_generated(text, "x", len(text) - 1) for text in ("x", "xa", "xab")]

    assert on_server(cut, ScriptedServer(engine="openai", merged="ab")) == [True, True, False]
    assert on_server(cut, ScriptedServer(engine="openai")) == [True, True, True]


def test_each_place_is_read_once_and_compared_with_a_second_reading() -> None:
    server = ScriptedServer()

    async def read(model: ServedModel) -> tuple[int, SelfCheck]:
        reference, before = Reference(model), server.num_requests
        for _ in range(2):
            await reference.read([(120, one) for one in (97, 98, 99)])
        return server.num_requests - before, await reference.check_itself(2, 0.25)

    num_requests, self_check = on_server(read, server)
    assert num_requests == 3
    assert (self_check.num_places, self_check.num_unstable, self_check.prob_noise) == (2, 0, 0.0)
