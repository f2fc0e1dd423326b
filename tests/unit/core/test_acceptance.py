import pytest

from blockdraft.core.acceptance import AcceptanceStats


def stats_of(*rounds: tuple[int, int, str]) -> AcceptanceStats:
    """Count rounds of (drafted, accepted, drafter), each with the target's own token."""
    stats = AcceptanceStats()
    for num_drafted, num_accepted, drafter in rounds:
        stats.add_round(
            num_drafted=num_drafted, num_accepted=num_accepted, num_emitted=num_accepted + 1, drafter=drafter
        )
    return stats


def test_before_the_first_round_every_figure_is_zero():
    stats = AcceptanceStats()
    assert stats.mean_acceptance_length == stats.acceptance_rate == 0.0
    assert stats.to_dict()["survival"] == []


def test_plain_rounds_emit_one_token_each():
    stats = stats_of((0, 0, ""), (0, 0, ""))
    assert stats.mean_acceptance_length == 1.0
    assert stats.acceptance_rate == 0.0
    assert stats.rounds_by_drafter == {"none": 2}


def test_the_two_figures_people_quote_differ_and_both_are_there():
    """vllm#42508, llama.cpp#24536: emitted by rounds is not accepted by drafted."""
    stats = stats_of((4, 4, "a"), (4, 0, "a"), (2, 1, "b"), (0, 0, "a"))
    assert stats.mean_acceptance_length == (5 + 1 + 2 + 1) / 4
    assert stats.acceptance_rate == 5 / 10
    assert stats.rounds_by_drafter == {"a": 2, "b": 1, "none": 1}


def test_survival_and_conditional_acceptance_by_slot():
    stats = stats_of((3, 3, "a"), (3, 1, "a"), (3, 0, "a"), (3, 2, "a"))
    assert [stats.survival_at(slot) for slot in range(3)] == [3 / 4, 2 / 4, 1 / 4]
    assert [stats.conditional_acceptance_at(slot) for slot in range(3)] == [3 / 4, 2 / 3, 1 / 2]


def test_with_drafts_of_varying_length_only_rounds_that_drafted_the_slot_count():
    stats = stats_of((1, 1, "a"), (1, 1, "a"), (2, 1, "a"), (2, 2, "a"), (2, 0, "a"))
    assert stats.survival_at(1) == 1 / 3
    assert stats.conditional_acceptance_at(1) == 1 / 2  # two rounds kept slot 0 and drafted slot 1


def test_an_answer_that_ends_inside_the_draft_emits_no_token_of_the_target():
    stats = AcceptanceStats()
    stats.add_round(num_drafted=4, num_accepted=2, num_emitted=2, drafter="a")
    assert stats.mean_acceptance_length == 2
    assert (stats.drafted_at, stats.accepted_at) == ([1, 1, 1, 1], [1, 1, 0, 0])


def test_merging_is_adding():
    first, second = [(3, 1, "a"), (0, 0, "")], [(5, 5, "b"), (1, 0, "a")]
    merged = AcceptanceStats.merge([stats_of(*first), stats_of(*second)])
    assert merged == stats_of(*first, *second)
    assert AcceptanceStats.merge([]) == AcceptanceStats()


def test_merging_leaves_its_parts_alone():
    part = stats_of((2, 1, "a"))
    before = part.to_dict()
    AcceptanceStats.merge([part, part]).add_round(num_drafted=9, num_accepted=9, num_emitted=10, drafter="c")
    assert part.to_dict() == before


def test_plain_data_holds_counters_and_figures():
    data = stats_of((2, 1, "a"), (2, 2, "a")).to_dict()
    assert data == {
        "num_rounds": 2,
        "num_drafted": 4,
        "num_accepted": 3,
        "num_emitted": 5,
        "mean_acceptance_length": 2.5,
        "acceptance_rate": 0.75,
        "survival": [1.0, 0.5],
        "conditional_acceptance": [1.0, pytest.approx(0.5)],
        "rounds_by_drafter": {"a": 2},
    }
