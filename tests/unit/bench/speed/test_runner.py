"""Two sides take turns, an interrupt keeps what is there, and what is kept is on the disk after every pass."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_runs import BASE_S, counts, made_sample

from blockdraft.bench.speed.records import Run, SideInfo, read_run
from blockdraft.bench.speed.runner import Plan, SpeedRun
from blockdraft.bench.speed.side import AnswerSettings
from blockdraft.bench.speed.summary import summarise
from blockdraft.engine.workloads import Workload
from blockdraft.errors import ConfigError

PROMPTS = {
    "a": [Workload(id="a/1", category="a", turns=("Hello",)), Workload(id="a/2", category="a", turns=("You",))],
    "b": [Workload(id="b/1", category="b", turns=("Well?",))],
}


class FakeSide:
    """Answers at once, and writes down what it was asked."""

    def __init__(self, role, log, stop_after=None) -> None:
        self.role, self.log, self.stop_after = role, log, stop_after
        self.asked = []
        self.num_taken = 0

    @property
    def info(self):
        return SideInfo(role=self.role, where="fake", model="m")

    def warm_up(self, concurrency):
        self.log.append(("warm-up", self.role, concurrency))

    def words_per_token(self):
        return 0.5

    def serve(self, conversations, *, repeat, concurrency, emit):
        self.log.append((conversations[0].category, repeat, self.role, concurrency))
        for conversation in conversations:
            if self.stop_after is not None and len(self.asked) >= self.stop_after:
                raise KeyboardInterrupt
            self.asked.append(conversation.turns[0])
            emit(made_sample(BASE_S, prompt=conversation.id, repeat=repeat))

    def take_drafts(self):
        self.num_taken += 1
        return counts(1, 1)

    def close(self):
        pass


class FakeMeter:
    source = "fake"

    def start(self):
        pass

    def stop(self):
        return 2.5


def run(log, *, out=None, stop_after=None, meter=None, **plan) -> tuple[Run, FakeSide, FakeSide]:
    own, base = FakeSide("speculative", log, stop_after), FakeSide("baseline", log)
    made = SpeedRun(Plan(prompts=PROMPTS, **plan), [own, base], AnswerSettings(), command=("x",), out=out, meter=meter)
    return made.run(), own, base


def test_sides_take_turns_and_who_begins_alternates() -> None:
    log: list = []
    result, _, _ = run(log, repeats=2, concurrencies=(3,))
    assert log[:2] == [("warm-up", "speculative", 3), ("warm-up", "baseline", 3)]
    assert [(category, repeat, role) for category, repeat, role, _ in log[2:]] == [
        ("a", 0, "baseline"),
        ("a", 0, "speculative"),
        ("a", 1, "speculative"),
        ("a", 1, "baseline"),
        ("b", 0, "speculative"),
        ("b", 0, "baseline"),
        ("b", 1, "baseline"),
        ("b", 1, "speculative"),
    ]
    assert result.is_complete
    assert [one.order for one in result.passes] == list(range(8))


def test_cells_are_every_depth_and_load_and_both_sides_are_asked_the_same() -> None:
    result, own, base = run([], repeats=1, depths=(0, 100), concurrencies=(1, 2))
    assert [(c.cell.depth, c.cell.concurrency, c.cell.category) for c in result.passes[::2]] == [
        (depth, load, category) for depth in (0, 100) for load in (1, 2) for category in ("a", "b")
    ]
    assert sorted(own.asked) == sorted(base.asked)
    # 100 tokens are 50 words of filler, after the mark and its introduction.
    deep = [text for text in own.asked if "On day" in text]
    assert len(deep) == 7  # a has two prompts; the one of b is asked twice for two places
    notes = deep[0].split("\n\n")[2]
    assert len(notes.split()) == 50


def test_no_two_passes_send_the_same_text_unless_asked_to() -> None:
    _, own, _ = run([], repeats=2, concurrencies=(1, 2))
    assert len(set(own.asked)) == len(own.asked) == 14
    assert all(text.endswith(("Hello", "You", "Well?")) for text in own.asked)
    _, own, _ = run([], repeats=2, marked=False)
    assert set(own.asked) == {"Hello", "You", "Well?"}


def test_an_interrupt_keeps_what_is_there(tmp_path: Path) -> None:
    out = tmp_path / "run.json"
    result, _, _ = run([], repeats=3, out=out, stop_after=3)
    assert not result.is_complete
    # Two turns of the baseline, one whole pass of the other side, and one that was cut after a request.
    assert [(one.role, len(one.samples)) for one in result.passes] == [
        ("baseline", 2),
        ("speculative", 2),
        ("speculative", 1),
    ]
    assert read_run(out) == result


def test_what_breaks_a_run_leaves_the_passes_before_it_on_the_disk(tmp_path: Path) -> None:
    out = tmp_path / "run.json"

    class Broken(FakeSide):
        def serve(self, conversations, *, repeat, concurrency, emit):
            if repeat == 1:
                raise RuntimeError("lost")
            super().serve(conversations, repeat=repeat, concurrency=concurrency, emit=emit)

    sides = [Broken("speculative", []), FakeSide("baseline", [])]
    with pytest.raises(RuntimeError, match="lost"):
        SpeedRun(Plan(prompts=PROMPTS, repeats=2), sides, AnswerSettings(), out=out).run()
    kept = read_run(out)
    assert not kept.is_complete
    assert [len(one.samples) for one in kept.passes] == [2, 2, 0]


def test_energy_and_drafts_are_of_each_pass() -> None:
    result, own, _ = run([], repeats=1, meter=FakeMeter())
    assert [one.energy_j for one in result.passes] == [2.5] * 4
    assert result.energy_source == "fake"
    assert own.num_taken == 2
    assert all(one.drafts for one in result.passes)


@pytest.mark.parametrize("wrong", [{"prompts": {}}, {"depths": (-1,)}, {"concurrencies": (0,)}, {"repeats": 0}])
def test_a_plan_that_makes_no_sense_is_refused(wrong) -> None:
    with pytest.raises(ConfigError):
        Plan(**{"prompts": PROMPTS, **wrong})


def test_a_load_is_reached_with_copies_that_no_cache_knows_and_that_are_no_other_prompts() -> None:
    result, own, base = run([], repeats=2, concurrencies=(4,))
    assert [len(one.samples) for one in result.passes] == [4] * 8
    assert len(set(own.asked)) == len(own.asked) == 16
    assert sorted(own.asked) == sorted(base.asked)
    [first, second] = summarise(result).cells
    assert [(one.decode_ratio.num_prompts, one.decode_ratio.num_pairs) for one in (first, second)] == [(2, 8), (1, 8)]
