"""Letters stand for tokens; a draft is checked against what a reader of the text would copy."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blockdraft.core.random import PositionalRandom
from blockdraft.core.sampling import SamplingParams
from blockdraft.drafters.base import Ask, Drafter, Observation
from blockdraft.drafters.config import NgramMapK, NgramMapK4v, NgramMod, NgramSimple
from blockdraft.drafters.ngram import (
    NgramMapK4vDrafter,
    NgramMapKDrafter,
    NgramModDrafter,
    NgramSimpleDrafter,
)
from blockdraft.drafters.ngram.base import LONGEST_MATCH, match_length, sureness


def ask(state, tokens, num_draft_tokens=1024) -> Ask:
    return Ask(
        state=state,
        token_ids=list(tokens),
        num_draft_tokens=num_draft_tokens,
        sampling=SamplingParams(),
        random=PositionalRandom(0),
    )


class Reader:
    """One sequence of one drafter, with letters for tokens."""

    def __init__(self, drafter: Drafter) -> None:
        self.drafter = drafter
        self.state = drafter.begin([])

    def draft(self, text: str, num_draft_tokens: int = 1024) -> str:
        proposal = self.drafter.propose([ask(self.state, map(ord, text), num_draft_tokens)])[0]
        assert proposal.draft_probs is None
        assert proposal.drafter == (self.drafter.traits.name if proposal else "")
        return "".join(map(chr, proposal.draft_ids))

    def confidence(self, text: str, num_draft_tokens: int = 1024) -> tuple[float, ...] | None:
        proposal = self.drafter.propose([ask(self.state, map(ord, text), num_draft_tokens)])[0]
        assert proposal.confidence is None or len(proposal.confidence) == len(proposal)
        return proposal.confidence

    def verdict(self, num_drafted: int, num_accepted: int, drafter: str | None = None) -> None:
        name = drafter or self.drafter.traits.name
        observation = Observation(
            committed_ids=[0] * (num_accepted + 1), drafter=name, num_drafted=num_drafted, num_accepted=num_accepted
        )
        self.drafter.observe(self.state, observation)


def simple(**options) -> Reader:
    return Reader(NgramSimpleDrafter(NgramSimple(**options)))


def map_k(**options) -> Reader:
    return Reader(NgramMapKDrafter(NgramMapK(**options)))


def map_k4v(**options) -> Reader:
    return Reader(NgramMapK4vDrafter(NgramMapK4v(**options)))


def mod(**options) -> Reader:
    return Reader(NgramModDrafter(NgramMod(**options)))


# how sure a copy is


COPIERS = {
    "ngram-simple": lambda: simple(size_n=2, size_m=4, min_draft=1),
    "ngram-map-k": lambda: map_k(size_n=2, size_m=4),
    "ngram-map-k4v": lambda: map_k4v(size_n=2, size_m=4),
}


@pytest.mark.parametrize("name", COPIERS)
def test_a_longer_match_is_surer(name):
    """Each slot is as sure as the first slot of a match that is so much longer."""
    two, three, four = (COPIERS[name]().confidence(text) for text in ("xabcdefgyab", "xabcdefgyabc", "xabcdefgyabcd"))
    assert two == tuple(sorted(two))
    assert two[0] == sureness(2)
    assert two[1:] == three[: len(two) - 1]
    assert two[2:] == four[: len(two) - 2]


@pytest.mark.parametrize("name", COPIERS)
def test_what_is_not_asked_for_has_no_confidence(name):
    assert len(COPIERS[name]().confidence("xabcdefgyab", 2)) == 2


def test_doubt_never_ends():
    """However long a match is, and where it reaches back to the first token."""
    for length in (60, 200):
        text = "".join(map(chr, range(100, 100 + length)))
        confidence = simple(size_n=2, size_m=4, min_draft=1).confidence(text + "!" + text[:-4])
        assert confidence == tuple(sureness(min(length - 4, LONGEST_MATCH) + slot) for slot in range(4))


def test_sureness_is_a_chance():
    chances = [sureness(length) for length in range(LONGEST_MATCH + 100)]
    assert chances == sorted(chances)
    assert chances[0] >= 0
    assert chances[-1] < 1


@pytest.mark.parametrize(
    ("text", "end", "length"), [("abcxabc", 3, 3), ("bcxabc", 2, 2), ("abxcb", 1, 0), ("aaaa", 3, 3)]
)
def test_a_match_is_what_agrees_before_both_ends(text, end, length):
    assert match_length(text, end) == length


def test_a_walk_through_a_table_has_no_place_to_be_sure_of():
    assert mod(n_match=2, n_min=1, n_max=4).confidence("xabcdefgyab") is None


# ngram-simple


def test_simple_copies_what_followed_the_latest_occurrence():
    assert simple(size_n=2, size_m=3).draft("ab123 ab456 ab") == "456"


def test_simple_never_drafts_the_anchor_itself():
    # "ab" occurred at the start; "Xa" is older than the anchor b.
    assert simple(size_n=2, size_m=9).draft("abXXab") == "XXa"


def test_simple_drops_drafts_shorter_than_size_n():
    assert simple(size_n=3, size_m=9).draft("abc12abc") == "12ab"
    assert simple(size_n=3, size_m=2).draft("abc12abc") == ""
    assert simple(size_n=3, size_m=9).draft("abcabc") == ""


def test_simple_applies_min_hits():
    reader = simple(size_n=2, size_m=3, min_hits=2)
    assert reader.draft("ab123 ab") == ""
    assert reader.draft("ab123 ab456 ab") == "456"


def test_simple_without_an_earlier_occurrence_is_silent():
    assert simple(size_n=2, size_m=3).draft("abcdefg") == ""
    assert simple(size_n=2, size_m=3).draft("a") == ""
    assert simple(size_n=2, size_m=3).draft("") == ""


def test_simple_prefers_the_longest_match_when_shorter_ones_are_allowed():
    reader = simple(size_n=3, size_n_min=1, size_m=2, min_draft=1)
    assert reader.draft("abc1 xc2 abc") == "1 "
    assert reader.draft("abc1 xc2 abc3 yc") == "3 "


def test_simple_min_draft_replaces_the_minimum_of_size_n():
    assert simple(size_n=3, size_m=9, min_draft=1).draft("abcabc") == "ab"


# ngram-map-k


def test_map_k_copies_what_followed_the_first_occurrence():
    assert map_k(size_n=2, size_m=3).draft("ab123 ab456 ab") == "123"


def test_map_k_learns_an_occurrence_once_all_its_tokens_are_older_than_the_anchor():
    reader = map_k(size_n=2, size_m=4)
    assert reader.draft("abXYab") == ""
    assert reader.draft("abXYZab") == "XYZa"


def test_map_k_applies_min_hits():
    reader = map_k(size_n=2, size_m=3, min_hits=2)
    assert reader.draft("ab123 ab") == ""
    assert reader.draft("ab123 ab456 ab") == "123"


def test_map_k_limit_shrinks_to_what_was_accepted_and_doubles_after_full_success():
    reader = map_k(size_n=2, size_m=6)
    text = "ab123456 ab"
    assert reader.draft(text) == "123456"
    reader.verdict(6, 2)
    assert reader.draft(text) == "12"
    reader.verdict(2, 2)
    assert reader.draft(text) == "1234"
    reader.verdict(4, 4)
    assert reader.draft(text) == "123456"


def test_map_k_full_success_of_a_draft_that_was_cut_does_not_shrink_the_limit():
    reader = map_k(size_n=2, size_m=6)
    assert reader.draft("ab123456 ab", num_draft_tokens=2) == "12"
    reader.verdict(2, 2)
    assert reader.draft("ab123456 ab") == "123456"


def test_map_k_key_with_nothing_accepted_recovers_with_the_continuation_that_was_right():
    reader = map_k(size_n=2, size_m=3)
    text = "ab123 ab"
    assert reader.draft(text) == "123"
    reader.verdict(3, 0)
    assert reader.draft(text + "456 ") == ""
    assert reader.draft(text + "456 ab") == "456"


def test_map_k_verdicts_of_others_and_of_dropped_drafts_teach_nothing():
    reader = map_k(size_n=2, size_m=3)
    assert reader.draft("ab123 ab") == "123"
    reader.verdict(3, 0, drafter="draft-dflash")
    reader.verdict(0, 0)
    assert reader.draft("ab123 ab") == "123"


# ngram-map-k4v


def test_k4v_drafts_the_dominant_continuation_and_not_the_latest():
    text = "ab123 ab123 ab456 ab"
    assert map_k4v(size_n=2, size_m=3).draft(text) == "123"


def test_k4v_is_silent_without_dominance():
    assert map_k4v(size_n=2, size_m=3).draft("ab123 ab456 ab") == ""
    assert map_k4v(size_n=2, size_m=3).draft("ab123 ab123 ab456 ab789 ab123 ab") == ""
    assert map_k4v(size_n=2, size_m=3).draft("ab123 ab123 ab456 ab789 ab123 ab123 ab") == "123"


def test_k4v_applies_min_hits():
    reader = map_k4v(size_n=2, size_m=3, min_hits=2)
    assert reader.draft("ab123 ab") == ""
    assert reader.draft("ab123 ab123 ab") == "123"


def test_k4v_keeps_four_continuations():
    # "5" is the fifth: it is not kept, however often it comes.
    text = "ab1 ab2 ab3 ab4 " + "ab5 " * 20
    assert map_k4v(size_n=2, size_m=1).draft(text + "ab") == ""
    assert map_k4v(size_n=2, size_m=1).draft("ab1 ab2 ab3 " + "ab5 " * 20 + "ab") == "5"


def test_k4v_forgets_only_the_continuation_that_failed():
    reader = map_k4v(size_n=2, size_m=3)
    text = "ab123 ab123 ab456 ab"
    assert reader.draft(text) == "123"
    reader.verdict(3, 0)
    assert reader.draft(text) == "456"


# ngram-mod


def test_mod_walks_from_place_to_place():
    # After "bc" came X; "cX" leads on to Y and further.
    assert mod(n_match=2, n_min=1, n_max=4).draft("abc cXYZ bcX bc") == "X bc"


def test_mod_last_occurrence_decides():
    assert mod(n_match=2, n_min=1, n_max=1).draft("ab1 ab2 ab") == "2"


def test_mod_runs_round_a_loop_up_to_n_max():
    assert mod(n_match=2, n_min=4, n_max=7).draft("xyzxyz") == "xyzxyzx"


def test_mod_walk_ends_where_the_text_ends():
    assert mod(n_match=2, n_min=1, n_max=8).draft("ab12 ab") == "12 a"


def test_mod_drops_drafts_shorter_than_n_min_before_the_cut_to_the_room():
    assert mod(n_match=2, n_min=4, n_max=8).draft("ab12 ab", num_draft_tokens=1) == "1"
    assert mod(n_match=2, n_min=5, n_max=8).draft("ab12 ab") == ""


def test_mod_learns_without_delay():
    reader = mod(n_match=3, n_min=1, n_max=2)
    assert reader.draft("xyz1") == ""
    assert reader.draft("xyz12xyz") == "12"
    assert reader.draft("xyz12xyz12") == "xy"


def test_mod_table_belongs_to_one_request():
    drafter = NgramModDrafter(NgramMod(n_match=2, n_min=1, n_max=4))
    Reader(drafter).draft("ab secret ab")
    assert Reader(drafter).draft("ab") == ""


def test_mod_shared_table_serves_other_requests():
    drafter = NgramModDrafter(NgramMod(n_match=2, n_min=1, n_max=4, shared=True))
    Reader(drafter).draft("ab1234 ")
    assert Reader(drafter).draft("ab") == "1234"


def test_mod_shared_table_drops_the_oldest_and_keeps_the_current_prompt():
    drafter = NgramModDrafter(NgramMod(n_match=2, n_min=1, n_max=4, shared=True), shared_capacity=8)
    Reader(drafter).draft("ab1234 ")
    reader = Reader(drafter)
    assert reader.draft("cd5678 cd") == "5678"
    assert Reader(drafter).draft("ab") == ""


def test_mod_request_with_bad_rounds_goes_on_with_its_own_text_and_leaves_the_others_theirs():
    drafter = NgramModDrafter(NgramMod(n_match=2, n_min=1, n_max=4, shared=True))
    reader = Reader(drafter)
    assert reader.draft("ab1234 ab") == "1234"
    Reader(drafter).draft("ab9999")
    for num_bad in range(5):
        assert reader.draft("ab1234 ab") == "9999", num_bad
        reader.verdict(4, 0)
    assert reader.draft("ab1234 ab") == "1234"
    assert Reader(drafter).draft("ab") == "9999"


def test_mod_a_good_round_forgives_the_bad_ones():
    drafter = NgramModDrafter(NgramMod(n_match=2, n_min=1, n_max=4, shared=True))
    reader = Reader(drafter)
    reader.draft("ab1234 ab")
    Reader(drafter).draft("ab9999")
    for num_accepted in (0, 0, 0, 0, 1, 0, 0, 0, 0):
        reader.verdict(4, num_accepted)
    assert reader.draft("ab1234 ab") == "9999"


# The family

SMALL = {
    "ngram-simple": lambda: NgramSimpleDrafter(NgramSimple(size_n=2, size_n_min=1, size_m=4, min_draft=1)),
    "ngram-map-k": lambda: NgramMapKDrafter(NgramMapK(size_n=2, size_m=2, min_hits=2)),
    "ngram-map-k4v": lambda: NgramMapK4vDrafter(NgramMapK4v(size_n=2, size_m=2)),
    "ngram-mod": lambda: NgramModDrafter(NgramMod(n_match=2, n_min=1, n_max=4)),
}


@pytest.mark.parametrize("name", SMALL)
@given(
    tokens=st.lists(st.integers(0, 2), min_size=1, max_size=60),
    lengths=st.lists(st.integers(1, 60), max_size=8),
)
@settings(max_examples=100, deadline=None)
def test_an_index_grown_step_by_step_drafts_what_a_fresh_one_drafts(name, tokens, lengths):
    drafter = SMALL[name]()
    state = drafter.begin([])
    for length in sorted(lengths):
        drafter.propose([ask(state, tokens[:length])])
    fresh = drafter.begin([])
    assert drafter.propose([ask(state, tokens)]) == drafter.propose([ask(fresh, tokens)])


@pytest.mark.parametrize("name", SMALL)
@given(tokens=st.lists(st.integers(0, 2), min_size=1, max_size=40), data=st.data())
@settings(max_examples=50, deadline=None)
def test_sequences_do_not_influence_each_other(name, tokens, data):
    drafter = SMALL[name]()
    other_tokens = data.draw(st.lists(st.integers(0, 2), min_size=1, max_size=40))
    mine, other = drafter.begin([]), drafter.begin([])
    together = drafter.propose([ask(other, other_tokens), ask(mine, tokens)])[1]
    assert together == SMALL[name]().propose([ask(SMALL[name]().begin([]), tokens)])[0]


@pytest.mark.parametrize("name", SMALL)
def test_traits_and_settings_are_declared(name):
    drafter = SMALL[name]()
    assert drafter.traits.name == name
    assert drafter.traits.is_deterministic
    assert drafter.traits.is_instant == drafter.traits.has_confidence == (name != "ngram-mod")
    assert not drafter.traits.confidence_is_sequential
    assert not drafter.traits.needs_target_hidden
    assert drafter.traits.max_draft_tokens in (2, 4)
    assert drafter.describe()["name"] == name
    assert len(drafter.describe()) > 3


class CountingTokens(list):
    """A token list that counts how many tokens are read from it."""

    num_read = 0

    def __getitem__(self, index):
        value = super().__getitem__(index)
        self.num_read += len(value) if isinstance(index, slice) else 1
        return value

    def __iter__(self):
        raise AssertionError("the whole text was read")


@pytest.mark.parametrize(
    "drafter", [NgramSimpleDrafter(), NgramMapKDrafter(), NgramMapK4vDrafter(), NgramModDrafter()], ids=SMALL
)
def test_a_round_reads_a_few_tokens_whatever_the_length_of_the_text(drafter):
    tokens = CountingTokens(number % 97 for number in range(4096))
    state = drafter.begin(())
    request = Ask(
        state=state, token_ids=tokens, num_draft_tokens=64, sampling=SamplingParams(), random=PositionalRandom(0)
    )
    drafter.propose([request])
    for _ in range(5):
        tokens.append(len(tokens) % 97)
        tokens.num_read = 0
        assert drafter.propose([request])[0].draft_ids[0] == len(tokens) % 97
        assert tokens.num_read < 300


@pytest.mark.slow
@pytest.mark.parametrize(
    "drafter", [NgramSimpleDrafter(), NgramMapKDrafter(), NgramMapK4vDrafter(), NgramModDrafter()], ids=SMALL
)
def test_a_round_at_4k_tokens_takes_microseconds(drafter):
    tokens = [number % 97 for number in range(4096)]
    state = drafter.begin(())
    drafter.propose([ask(state, tokens)])
    times = []
    for _ in range(200):
        tokens.append(len(tokens) % 97)
        request = ask(state, tokens)
        start = time.perf_counter()
        drafter.propose([request])
        times.append(time.perf_counter() - start)
    assert sorted(times)[len(times) // 2] < 150e-6
