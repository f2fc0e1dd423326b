"""Where an answer ends, token by token; text comes from a table here, so that every split can be tried."""

import codecs
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from blockdraft.engine.stopping import AnswerText


class Pieces:
    """Token i adds the bytes pieces[i]; text appears when its characters are complete."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self._pieces = pieces
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        return self._decoder.decode(self._pieces[token_id])

    def flush(self) -> str:
        return self._decoder.decode(b"", final=True)


def answer_to(pieces: Sequence[str | bytes], stop: Sequence[str] = (), stop_ids=(), max_tokens: int = 10_000):
    """Push all pieces until the answer ends; return it and the texts that each token released."""
    stored = [piece.encode() if isinstance(piece, str) else piece for piece in pieces]
    answer = AnswerText(Pieces(stored), tuple(stop), stop_ids, max_tokens)
    released = []
    for token_id in range(len(stored)):
        released.append(answer.push(token_id))
        if answer.finish_reason:
            break
    return answer, released


def test_a_stop_string_ends_the_answer_and_is_not_part_of_it():
    answer, released = answer_to(["one ", "two", " END", " three"], ["END"])
    assert released == ["one ", "two", " "]
    assert (answer.finish_reason, answer.stopped_by) == ("stop", "END")


def test_a_stop_string_may_lie_across_tokens():
    answer, released = answer_to(["a", "bE", "N", "Dc"], ["END"])
    assert released == ["a", "b", "", ""]
    assert answer.stopped_by == "END"


def test_what_only_looked_like_a_stop_is_released_when_that_is_known():
    _, released = answer_to(["xE", "N", "E", "N", "x"], ["END"])
    assert released == ["x", "", "EN", "", "ENx"]


def test_the_stop_that_completes_first_wins_though_another_began_earlier():
    """onnxruntime-genai#2528, vllm#47616: not the first in the list, not the first to begin."""
    answer, released = answer_to(["xab", "cd"], ["abcd", "bc"])
    assert (answer.stopped_by, "".join(released)) == ("bc", "xa")
    answer, _ = answer_to(["xabcd"], ["abcd", "bc"])
    assert answer.stopped_by == "bc"


def test_of_two_stops_that_complete_together_the_longer_one_counts():
    answer, released = answer_to(["xab", "c"], ["c", "abc"])
    assert (answer.stopped_by, "".join(released)) == ("abc", "x")


def test_a_stop_inside_one_token_cuts_the_token():
    answer, released = answer_to(["hello\nworld"], ["\n"])
    assert (released, answer.stopped_by) == (["hello"], "\n")


def test_a_stop_token_adds_no_text_and_frees_what_was_held_back():
    answer, released = answer_to(["abE", "N", "!"], ["END"], stop_ids={2})
    assert released == ["ab", "", "EN"]
    assert (answer.finish_reason, answer.stopped_by) == ("stop", 2)


def test_the_length_limit_frees_what_was_held_back():
    answer, released = answer_to(["abE", "N", "D"], ["END"], max_tokens=2)
    assert released == ["ab", "EN"]
    assert (answer.finish_reason, answer.stopped_by) == ("length", None)


def test_a_stop_on_the_last_allowed_token_is_a_stop():
    """sglang#31599: the limit must not hide the stop that the same token completes."""
    assert answer_to(["ab", "END"], ["END"], max_tokens=2)[0].finish_reason == "stop"
    assert answer_to(["ab", "!"], stop_ids={1}, max_tokens=2)[0].finish_reason == "stop"


def test_a_character_split_over_tokens_appears_whole():
    _, released = answer_to(["a", b"\xe2\x82", b"\xac", "b"])
    assert released == ["a", "", "€", "b"]


def test_an_unfinished_character_at_the_end_reads_as_a_replacement():
    assert answer_to(["a", b"\xe2\x82"], max_tokens=2)[1] == ["a", "\ufffd"]
    assert answer_to(["a", b"\xe2\x82", "!"], stop_ids={2})[1] == ["a", "", "\ufffd"]


def test_a_stop_of_split_characters_is_found():
    answer, released = answer_to(["a", b"\xe2\x82", b"\xac", "b"], ["€"])
    assert (released, answer.stopped_by) == (["a", "", ""], "€")


def test_without_a_tokenizer_only_ids_and_length_end_an_answer():
    answer = AnswerText(None, (), {7}, 3)
    assert [answer.push(1), answer.push(7)] == ["", ""]
    assert answer.stopped_by == 7


def test_nothing_can_follow_the_end():
    answer, _ = answer_to(["a"], max_tokens=1)
    with pytest.raises(AssertionError, match="over"):
        answer.push(0)


def reference(text: str, stops: Sequence[str]) -> tuple[str, str | None]:
    """Read character by character and look back for each stop, longest first."""
    for end in range(1, len(text) + 1):
        for stop in sorted(stops, key=len, reverse=True):
            if text[:end].endswith(stop):
                return text[: end - len(stop)], stop
    return text, None


texts = st.text(alphabet="abc\u20ac\U0001f600", max_size=24)
stop_lists = st.lists(st.text(alphabet="abc\u20ac", min_size=1, max_size=4), max_size=3)


@settings(max_examples=300, deadline=None)
@given(text=texts, stops=stop_lists, cuts=st.lists(st.integers(0, 60), max_size=12))
def test_any_chunking_of_the_bytes_gives_the_same_answer(text, stops, cuts):
    data = text.encode()
    bounds = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    pieces = [data[start:end] for start, end in pairwise(bounds)]
    assume(pieces)
    answer, released = answer_to(pieces, stops, max_tokens=len(pieces))
    expected, stop = reference(text, stops)
    assert "".join(released) == expected
    assert answer.stopped_by == stop
    assert answer.finish_reason == ("length" if stop is None else "stop")


@settings(max_examples=200, deadline=None)
@given(text=texts, stops=stop_lists)
def test_nothing_released_has_to_be_taken_back_and_nothing_certain_is_held_back(text, stops):
    """After each character the released text is exactly what no continuation could turn into a stop."""
    expected, _ = reference(text, stops)
    shown = ""
    answer = AnswerText(Pieces([character.encode() for character in text]), tuple(stops), (), 10_000)
    for index in range(len(text)):
        shown += answer.push(index)
        assert expected.startswith(shown)
        if answer.finish_reason:
            break
        held = text[len(shown) : index + 1]
        assert held == "" or any(stop.startswith(held) and stop != held for stop in stops)
