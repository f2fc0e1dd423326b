"""Conversations survive storage and kills, and become the tokens that the engine saw."""

import errno
import json
from dataclasses import replace
from pathlib import Path

import pytest

from blockdraft.engine import Engine
from blockdraft.errors import DataError
from blockdraft.models.load import load_model
from blockdraft.models.tokenizer import Tokenizer, load_tokenizer
from blockdraft.testing.tiny_gguf import SPECIAL_TOKENS, write_tiny_gguf
from blockdraft.train.conversations import (
    CONVERSATIONS,
    Conversation,
    ConversationWriter,
    DataManifest,
    PromptFile,
    end_of_turn_id,
    read_conversations,
    tokenize,
)

END = SPECIAL_TOKENS.index("<|im_end|>")


def conversation(*contents: str, **changes: object) -> Conversation:
    roles = ("user", "assistant") * len(contents)
    messages = tuple({"role": role, "content": text} for role, text in zip(roles, contents, strict=False))
    fields = {"id": "a/1", "messages": messages, "finish": "stop", "num_completion_tokens": 3, "source": "here"}
    return Conversation(**(fields | changes))


@pytest.fixture(scope="module")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_gguf(tmp_path_factory.mktemp("conversations") / "tiny.gguf", quant="F32")


@pytest.fixture(scope="module")
def tokenizer(model_path: Path) -> Tokenizer:
    return load_tokenizer(model_path)


def supervised_text(text, tokenizer: Tokenizer) -> str:
    ids = [token_id for token_id, taught in zip(text.token_ids, text.supervised, strict=True) if taught]
    return tokenizer.decode(ids, skip_special_tokens=False)


class TestStorage:
    def test_what_is_written_is_read(self, tmp_path: Path) -> None:
        rows = [
            conversation("Hä?\n", "Nö."),
            conversation("q", "a", id="b", answer_ids=((5, 6),), finish="length", thinking=True),
        ]
        with ConversationWriter(tmp_path / CONVERSATIONS) as writer:
            writer.append(rows)
        assert list(read_conversations(tmp_path)) == rows

    def test_a_row_torn_by_a_kill_is_left_out_and_overwritten(self, tmp_path: Path) -> None:
        path = tmp_path / CONVERSATIONS
        first, second = conversation("q", "a"), conversation("q", "ä" * 100_000, id="second")
        path.write_bytes((first.to_json() + "\n" + second.to_json()).encode()[:-5])
        assert list(read_conversations(tmp_path)) == [first]
        with ConversationWriter(path) as writer:
            writer.append([second])
        assert list(read_conversations(tmp_path)) == [first, second]

    def test_a_file_that_is_one_torn_row_becomes_empty(self, tmp_path: Path) -> None:
        (tmp_path / CONVERSATIONS).write_text('{"id": "a')
        with ConversationWriter(tmp_path / CONVERSATIONS):
            pass
        assert list(read_conversations(tmp_path)) == []

    def test_a_full_disk_keeps_whole_rows_and_says_so(self, tmp_path: Path) -> None:
        class FullDisk:
            """Takes ten bytes of a row, then nothing."""

            def __init__(self, file) -> None:
                self.file, self.is_full = file, False

            def write(self, data: bytes) -> int:
                if self.is_full:
                    raise OSError(errno.ENOSPC, "No space left on device")
                self.is_full = True
                return self.file.write(data[:10])

            def __getattr__(self, name: str):
                return getattr(self.file, name)

        with ConversationWriter(tmp_path / CONVERSATIONS) as writer:
            writer.append([conversation("q", "a")])
            writer._file = FullDisk(writer._file)
            with pytest.raises(DataError, match="No space left on device; the conversations before are kept"):
                writer.append([conversation("q", "b", id="b")])
        assert list(read_conversations(tmp_path)) == [conversation("q", "a")]
        assert (tmp_path / CONVERSATIONS).read_bytes().endswith(b"\n")

    @pytest.mark.parametrize(
        ("row", "message"),
        [
            ("{", "it is no conversation"),
            ("3", "it is no conversation"),
            (json.dumps({"id": "a", "prompt": "q"}), "unknown key 'prompt'"),
            (conversation("only a question").to_json(), "ends with an answer"),
            (conversation("q", "a", finish="eos").to_json(), "ends with an answer"),
        ],
    )
    def test_a_damaged_row_is_named(self, tmp_path: Path, row: str, message: str) -> None:
        (tmp_path / CONVERSATIONS).write_text(conversation("q", "a").to_json() + "\n" + row + "\n")
        with pytest.raises(DataError, match=rf"(?s)row 2 of .*{CONVERSATIONS} cannot be used.*{message}"):
            list(read_conversations(tmp_path))

    def test_a_folder_without_data_says_how_to_make_some(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match="blockdraft data"):
            list(read_conversations(tmp_path))
        with pytest.raises(DataError, match="blockdraft data"):
            DataManifest.read(tmp_path)


class TestManifest:
    def manifest(self, tokenizer: Tokenizer) -> DataManifest:
        return DataManifest(
            target="tiny",
            tokenizer_sha256=tokenizer.fingerprint,
            chat_template_sha256=tokenizer.chat_template_sha256,
            thinking=None,
            method="prompts",
            prompt_files=(PromptFile(name="p.jsonl", sha256="00"),),
            generation={"seed": 1},
            num_conversations=2,
            num_held_out=0,
            num_completion_tokens=7,
            blockdraft_version="0",
        )

    def test_it_reads_back(self, tmp_path: Path, tokenizer: Tokenizer) -> None:
        manifest = self.manifest(tokenizer)
        manifest.write(tmp_path)
        assert DataManifest.read(tmp_path) == manifest

    def test_the_tokenizer_it_was_made_with_fits(self, tmp_path: Path, tokenizer: Tokenizer) -> None:
        other_weights = load_tokenizer(write_tiny_gguf(tmp_path / "finetuned.gguf", seed=5))
        self.manifest(tokenizer).check_tokenizer(other_weights)

    def test_another_tokenizer_or_template_is_refused(self, tokenizer: Tokenizer) -> None:
        manifest = self.manifest(tokenizer)
        with pytest.raises(DataError, match=r"another tokenizer than the target's: tiny \(sha256 beef"):
            replace(manifest, tokenizer_sha256="beef").check_tokenizer(tokenizer)
        with pytest.raises(DataError, match="another chat template"):
            replace(manifest, chat_template_sha256="beef").check_tokenizer(tokenizer)

    def test_a_damaged_manifest_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "manifest.json").write_text("{}")
        with pytest.raises(DataError, match="damaged"):
            DataManifest.read(tmp_path)


class TestTokens:
    def test_they_are_those_of_the_engine(self, model_path: Path) -> None:
        loaded = load_model(str(model_path), dtype="float32")
        generation = Engine(loaded.target, loaded.tokenizer).generate("hello world", max_tokens=12)
        ids = generation.token_ids
        is_stop = generation.finish_reason == "stop"
        made = conversation(
            "hello world",
            generation.text,
            finish=generation.finish_reason,
            answer_ids=(ids[:-1] if is_stop else ids,),
        )
        text = tokenize(made, loaded.tokenizer)
        assert tuple(text.token_ids) == generation.prompt_ids + ids
        assert list(text.supervised) == [False] * len(generation.prompt_ids) + [True] * len(ids)

    def test_an_answer_is_taught_with_the_token_that_ended_it(self, tokenizer: Tokenizer) -> None:
        text = tokenize(conversation("hello", "the world"), tokenizer)
        assert supervised_text(text, tokenizer) == "the world<|im_end|>"
        assert text.token_ids[-1] == end_of_turn_id(tokenizer) == END

    def test_an_answer_that_was_cut_off_teaches_no_end(self, tokenizer: Tokenizer) -> None:
        text = tokenize(conversation("hello", "the world", finish="length"), tokenizer)
        assert supervised_text(text, tokenizer) == "the world"

    def test_every_turn_is_taught_in_the_context_of_its_time(self, tokenizer: Tokenizer) -> None:
        text = tokenize(conversation("hello", "the world", "more", "a word", finish="length"), tokenizer)
        assert supervised_text(text, tokenizer) == "the world<|im_end|>a word"
        rendered = tokenizer.decode(text.token_ids, skip_special_tokens=False)
        assert rendered.endswith("the world<|im_end|>\n<|im_start|>user\nmore<|im_end|>\n<|im_start|>assistant\na word")

    def test_a_turn_that_the_template_changes_later_is_not_taught(self, tokenizer: Tokenizer) -> None:
        ids = tuple(tokenizer.encode("the w") + tokenizer.encode("orld"))
        last = tuple(tokenizer.encode("fine"))
        made = conversation("hello", "the world", "more", "fine", answer_ids=(ids, last))
        assert supervised_text(tokenize(made, tokenizer), tokenizer) == "fine<|im_end|>"
