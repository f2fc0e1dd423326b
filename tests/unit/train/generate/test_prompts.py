"""Prompt files of every documented form are read, repeats are left out, and damage is named."""

import gzip
import json
from pathlib import Path

import pytest

from blockdraft.errors import DataError
from blockdraft.models.tokenizer import Tokenizer, load_tokenizer
from blockdraft.testing.tiny_gguf import write_tiny_gguf
from blockdraft.train.generate.answers import read_answers
from blockdraft.train.generate.prompts import Prompt, describe_file, read_prompts, without_repeats


def write(path: Path, *rows: object) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return load_tokenizer(write_tiny_gguf(tmp_path_factory.mktemp("prompts") / "tiny.gguf"))


def test_turns_prompt_and_messages_are_read(tmp_path: Path) -> None:
    path = write(
        tmp_path / "p.jsonl",
        {"id": "a", "turns": ["one", "two"], "category": "chat", "source": "here", "reference": ["x"]},
        {"prompt": "three"},
        {"messages": [{"role": "system", "content": "be kind"}, {"role": "user", "content": "four"}]},
    )
    assert list(read_prompts(path)) == [
        Prompt(id="a", turns=("one", "two"), category="chat", source="here"),
        Prompt(id="p.jsonl:2", turns=("three",)),
        Prompt(id="p.jsonl:3", turns=("four",), system="be kind"),
    ]


def test_a_compressed_file_reads_like_a_plain_one(tmp_path: Path) -> None:
    plain = write(tmp_path / "p.jsonl", {"id": "a", "prompt": "hé"})
    packed = tmp_path / "q.jsonl.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert list(read_prompts(packed)) == list(read_prompts(plain))


@pytest.mark.parametrize(
    "row", [{}, {"turns": []}, {"prompt": " "}, {"prompt": 3}, {"messages": ["x"]}, {"turns": [1]}]
)
def test_a_row_without_a_prompt_is_named(tmp_path: Path, row: object) -> None:
    path = write(tmp_path / "p.jsonl", {"prompt": "fine"}, row)
    with pytest.raises(DataError, match=r"row 2 of .*is no prompt"):
        list(read_prompts(path))


def test_what_is_no_json_or_not_there_is_named(tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_text('{"prompt": "fine"}\nhello\n')
    with pytest.raises(DataError, match=r"line 2 of .* is no JSON"):
        list(read_prompts(tmp_path / "p.jsonl"))
    with pytest.raises(DataError, match="cannot be read"):
        list(read_prompts(tmp_path / "none.jsonl"))
    (tmp_path / "bad.jsonl.gz").write_bytes(b"no gzip")
    with pytest.raises(DataError, match="cannot be read"):
        list(read_prompts(tmp_path / "bad.jsonl.gz"))
    with pytest.raises(DataError, match="cannot be read"):
        describe_file(tmp_path / "none.jsonl")


def test_prompts_that_differ_in_case_and_punctuation_only_are_asked_once() -> None:
    texts = ["What is DNA?", "what is dna", "What  is -- DNA?!", "What is RNA?", "?!", "!?", "+"]
    kept = without_repeats(Prompt(id=str(number), turns=(text,)) for number, text in enumerate(texts))
    assert [prompt.turns[0] for prompt in kept] == ["What is DNA?", "What is RNA?", "?!", "!?", "+"]


def test_answers_are_taken_over_with_what_is_known_about_them(tmp_path: Path, tokenizer: Tokenizer) -> None:
    path = write(
        tmp_path / "a.jsonl",
        {"id": "a", "prompt": "q", "answer": "hello", "finish": "length", "temperature": 0.7, "completion_tokens": 9},
        {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "hello"}]},
    )
    first, second = read_answers(path, tokenizer, thinking=None)
    assert (first.id, first.finish, first.temperature, first.num_completion_tokens) == ("a", "length", 0.7, 9)
    assert (second.id, second.finish, second.num_completion_tokens) == ("a.jsonl:2", "stop", 2)


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "q"},
        {"prompt": "q", "answer": None},
        {"prompt": "q", "answer": "a", "finish": "eos"},
        {"messages": []},
    ],
)
def test_a_prompt_without_an_answer_is_named(tmp_path: Path, tokenizer: Tokenizer, row: object) -> None:
    with pytest.raises(DataError, match=r"row 1 of .*is no answered prompt"):
        list(read_answers(write(tmp_path / "a.jsonl", row), tokenizer, thinking=None))
