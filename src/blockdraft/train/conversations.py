"""Conversations whose answers the target gave: how they are stored, and which of their tokens teach a drafter.

A data folder holds `conversations.jsonl`, one row for each conversation, and `manifest.json`, which says what
the answers came from. Rows are only ever appended, each in one write with its newline, so a process that is
killed leaves at most one torn row at the end; it is left out when reading and cut off before the next append.

What the drafter sees in training has to be what the engine sees when it serves: the prompt as the chat template
renders it for an answer, then the answer's own tokens, then the token that ended it.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from blockdraft.errors import DataError
from blockdraft.models.tokenizer import Tokenizer
from blockdraft.train.features import TrainingText

CONVERSATIONS = "conversations.jsonl"
HELD_OUT = "held_out.jsonl"
"""Conversations set aside when the data was made, never to be trained on."""
MANIFEST = "manifest.json"

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Conversation:
    """Messages that end with an answer of the target.

    Only the last answer can be cut off by the length limit: nothing is asked after such an answer.
    """

    id: str
    messages: tuple[Mapping[str, str], ...]
    """{"role": ..., "content": ...}: perhaps a system message, then user and assistant in turns."""
    temperature: float = 0.0
    finish: Literal["stop", "length"]
    num_completion_tokens: int
    """Over all answers."""
    thinking: bool | None = None
    """What the switch of the chat template was set to; None if it was left alone."""
    source: str = ""
    category: str = ""
    answer_ids: tuple[tuple[int, ...], ...] | None = None
    """The tokens of each answer without the one that ended it, where encoding its text would give others."""

    def to_json(self) -> str:
        """Return one row, without a newline."""
        row = asdict(self)
        if self.answer_ids is None:
            del row["answer_ids"]
        return json.dumps(row, ensure_ascii=False)

    @classmethod
    def from_json(cls, row: str) -> Conversation:
        """Read one row.

        Raises:
            DataError: it is no conversation.
        """
        try:
            data = json.loads(row)
            if unknown := data.keys() - {field.name for field in fields(cls)}:
                raise DataError(f"unknown key {min(unknown)!r}")
            data["messages"] = tuple(data["messages"])
            if data.get("answer_ids") is not None:
                data["answer_ids"] = tuple(tuple(ids) for ids in data["answer_ids"])
            conversation = cls(**data)
            is_answered = conversation.messages[-1]["role"] == "assistant"
            is_text = all(isinstance(message["content"], str) for message in conversation.messages)
        except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
            raise DataError(f"it is no conversation ({error})") from error
        if not is_answered or not is_text or conversation.finish not in ("stop", "length"):
            raise DataError('it is no conversation of texts that ends with an answer and "stop" or "length"')
        return conversation


@dataclass(frozen=True, kw_only=True)
class PromptFile:
    """A file that prompts or answers were read from."""

    name: str
    sha256: str


@dataclass(frozen=True, kw_only=True)
class DataManifest:
    """What the conversations of a folder came from."""

    target: str
    """The reference of the model that answered."""
    tokenizer_sha256: str
    chat_template_sha256: str
    thinking: bool | None
    method: str
    """"import", "prompts", "self-written", or several of them joined with "+"."""
    prompt_files: tuple[PromptFile, ...]
    generation: Mapping[str, object]
    """Every setting that had a say in the answers."""
    num_conversations: int
    num_held_out: int
    num_completion_tokens: int
    blockdraft_version: str

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        return asdict(self)

    def write(self, folder: Path) -> None:
        """Write `manifest.json`, whole or not at all.

        Raises:
            DataError: the disk is full or the folder cannot be written.
        """
        part = folder / f"{MANIFEST}.part"
        try:
            part.write_text(json.dumps(self.to_dict(), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
            part.replace(folder / MANIFEST)
        except OSError as error:
            raise DataError(f"{folder / MANIFEST} cannot be written: {error.strerror}") from error

    @classmethod
    def read(cls, folder: Path) -> DataManifest:
        """Read the manifest of a data folder.

        Raises:
            DataError: there is none, or it is damaged.
        """
        path = folder / MANIFEST
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            data["prompt_files"] = tuple(PromptFile(**file) for file in data["prompt_files"])
            return cls(**data)
        except FileNotFoundError as error:
            raise DataError(f"{folder} is no data folder: it has no {MANIFEST}; make one with `blockdraft data`") from (
                error
            )
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise DataError(f"{path} is damaged ({error}); make the data again") from error

    def check_tokenizer(self, tokenizer: Tokenizer) -> None:
        """Refuse data that was made with another tokenizer or chat template than the target's.

        Raises:
            DataError: the answers would be other tokens than those the target chose.
        """
        for what, made_with, found in (
            ("tokenizer", self.tokenizer_sha256, tokenizer.fingerprint),
            ("chat template", self.chat_template_sha256, tokenizer.chat_template_sha256),
        ):
            if made_with != found:
                raise DataError(
                    f"the data was made with another {what} than the target's: {self.target} (sha256 {made_with[:12]}) "
                    f"and {tokenizer.name} ({found[:12]}); train on answers of this target, from `blockdraft data`"
                )


def read_conversations(folder: Path, name: str = CONVERSATIONS) -> Iterator[Conversation]:
    """Yield the conversations of a data folder; a torn row at the end is left out, and that is logged.

    Raises:
        DataError: there are none, or a row is damaged.
    """
    path = folder / name
    try:
        file = path.open(encoding="utf-8", newline="\n")
    except FileNotFoundError as error:
        raise DataError(f"there is no {path}; make data with `blockdraft data`") from error
    with file:
        try:
            for number, row in enumerate(file, 1):
                if not row.endswith("\n"):
                    logger.warning("%s ends in the middle of row %d, which is left out", path, number)
                    return
                yield _read_row(row, path, number)
        except UnicodeDecodeError as error:
            raise DataError(f"{path} is no text in UTF-8 ({error.reason})") from error


def _read_row(row: str, path: Path, number: int) -> Conversation:
    try:
        return Conversation.from_json(row)
    except DataError as error:
        raise DataError(f"row {number} of {path} cannot be used: {error}") from error


class ConversationWriter:
    """Appends conversations to a file; every row is on its way to the disk when `append` returns.

    Raises:
        DataError: the disk is full or the file cannot be written; what was appended before is kept.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        cut_torn_row(path)
        self._file = path.open("ab", buffering=0)
        self._end = self._file.seek(0, 2)

    def append(self, conversations: Iterable[Conversation]) -> None:
        """Append rows; after an error the file ends with the last whole one."""
        for conversation in conversations:
            row = (conversation.to_json() + "\n").encode()
            try:
                written = self._file.write(row)
                if written != len(row):  # a full disk takes what fits, and refuses the next write
                    self._file.write(row[written:])
            except OSError as error:
                self._file.truncate(self._end)
                raise DataError(
                    f"{self._path} cannot be written: {error.strerror}; the conversations before are kept, "
                    f"and the same command goes on where it stopped"
                ) from error
            self._end += len(row)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()


def cut_torn_row(path: Path) -> None:
    """Cut off what stands behind the last newline: a row that a killed process did not finish."""
    if not path.exists():
        return
    with path.open("r+b") as file:
        end = file.seek(0, 2)
        while end > 0:
            start = max(0, end - 65536)
            file.seek(start)
            newline = file.read(end - start).rfind(b"\n")
            if newline >= 0:
                end = start + newline + 1
                break
            end = start
        file.truncate(end)


def tokenize(conversation: Conversation, tokenizer: Tokenizer) -> TrainingText:
    """Return the tokens of a conversation as they are when the engine serves it, and which the target chose.

    The prompt of the last answer is rendered with all messages before it. An earlier answer is supervised if it
    stands in that prompt as it was given; some templates change old answers (those that drop thoughts, for
    example), and a drafter never sees the target choose these tokens after such a context.

    Raises:
        DataError: the chat template puts no known end token behind an answer, so none can be taught.
        ConfigError, RequestError: as for `Tokenizer.encode_chat`.
    """
    turns = [index for index, message in enumerate(conversation.messages) if message["role"] == "assistant"]
    prompts = [tokenizer.encode_chat(conversation.messages[:index], thinking=conversation.thinking) for index in turns]
    answers = [
        tokenizer.encode(conversation.messages[index]["content"], add_special_tokens=False)
        if conversation.answer_ids is None
        else list(conversation.answer_ids[turn])
        for turn, index in enumerate(turns)
    ]
    end_id = end_of_turn_id(tokenizer)
    for turn in range(len(turns)):
        if turn < len(turns) - 1 or conversation.finish == "stop":
            answers[turn].append(end_id)
    token_ids = prompts[-1] + answers[-1]
    supervised = [False] * len(token_ids)
    for prompt, answer in zip(prompts, answers, strict=True):
        end = len(prompt) + len(answer)
        if token_ids[:end] == prompt + answer:
            supervised[len(prompt) : end] = [True] * len(answer)
    return TrainingText(token_ids=token_ids, supervised=supervised)


@lru_cache(maxsize=4)
def end_of_turn_id(tokenizer: Tokenizer) -> int:
    """Return the end token that the chat template puts behind an answer.

    Raises:
        DataError: it puts none there.
    """
    if len(tokenizer.eos_ids) == 1:
        return next(iter(tokenizer.eos_ids))
    question, answer = {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}
    start = len(tokenizer.encode_chat([question]))
    for token_id in tokenizer.encode_chat([question, answer, question])[start:]:
        if token_id in tokenizer.eos_ids:
            return token_id
    raise DataError(
        f"the chat template of {tokenizer.name} puts none of its end tokens behind an answer, so a drafter cannot "
        f"learn where answers end; set eos_token_id in generation_config.json to the one that ends a turn"
    )
