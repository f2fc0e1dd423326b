"""From prompts to a data folder: who has been answered already, who is left, and what was made of them.

A folder belongs to one set of settings. The same command on the same folder goes on where it stopped: finished
conversations are skipped by their id, whether the process ended, was interrupted or was killed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from time import perf_counter
from typing import Any

from blockdraft import __version__
from blockdraft.errors import DataError
from blockdraft.models.tokenizer import Tokenizer
from blockdraft.train.conversations import (
    CONVERSATIONS,
    HELD_OUT,
    MANIFEST,
    Conversation,
    ConversationWriter,
    DataManifest,
    read_conversations,
)
from blockdraft.train.generate.answers import read_answers
from blockdraft.train.generate.dialogue import Dialogue, GenerationSettings, Runtime, draw_index
from blockdraft.train.generate.prompts import Prompt, describe_file, read_prompts, read_rows, text_key, without_repeats


@dataclass(frozen=True, kw_only=True)
class DataPlan:
    """What a data folder is to hold.

    Raises:
        DataError: it holds nothing, or the held-out share is no share.
    """

    prompt_files: tuple[Path, ...] = ()
    answer_files: tuple[Path, ...] = ()
    """Conversations that are there already, to be taken over."""
    num_self_written: int = 0
    """Conversations whose user message the target writes, too."""
    limit: int | None = None
    """Most prompts taken from the files."""
    exclude: tuple[Path, ...] = ()
    """Prompts whose id stands in one of these JSON Lines files are left out."""
    held_out: float = 0.0
    """Share of the conversations that goes into a file of its own and is never trained on."""

    def __post_init__(self) -> None:
        if not (self.prompt_files or self.answer_files or self.num_self_written):
            raise DataError("there is nothing to make: give prompt files, answers to import, or --self-written N")
        if not 0 <= self.held_out < 1:
            raise DataError(f"the held-out share must be in [0, 1), not {self.held_out}")

    @property
    def method(self) -> str:
        """Where the conversations come from, for the manifest."""
        parts = {"import": self.answer_files, "prompts": self.prompt_files, "self-written": self.num_self_written}
        return "+".join(name for name, is_used in parts.items() if is_used)


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How far it is."""

    num_done: int
    """Dialogues finished by this run, discarded ones among them."""
    num_total: int
    num_tokens: int
    """Answer tokens of this run."""
    seconds: float

    @property
    def tokens_per_second(self) -> float:
        return self.num_tokens / self.seconds if self.seconds > 0 else 0.0

    @property
    def seconds_left(self) -> float | None:
        """At the pace so far; None before there is one."""
        return self.seconds / self.num_done * (self.num_total - self.num_done) if self.num_done else None


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a run made."""

    manifest: DataManifest
    progress: Progress
    num_discarded: Mapping[str, int]
    """Reasons, and how many dialogues came to nothing for them."""

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain data."""
        return {
            "manifest": self.manifest.to_dict(),
            "num_new": self.progress.num_done - sum(self.num_discarded.values()),
            "num_new_tokens": self.progress.num_tokens,
            "seconds": self.progress.seconds,
            "tokens_per_second": self.progress.tokens_per_second,
            "num_discarded": dict(self.num_discarded),
        }


class DataMaker:
    """Fills one data folder; `outcome` says at any time what there is.

    Raises:
        DataError: the folder holds data of other settings, or a file cannot be used.
        ConfigError, RequestError: the target has no chat template, or none for these settings.
    """

    def __init__(
        self,
        folder: Path,
        plan: DataPlan,
        settings: GenerationSettings,
        tokenizer: Tokenizer,
        *,
        target: str,
        origin: Mapping[str, object],
    ) -> None:
        """`target` is the model's reference; `origin` says how it is run, for the manifest."""
        # No template, or no switch for thinking: better known now than at the first answer.
        tokenizer.encode_chat(
            [{"role": "user", "content": "Hello"}], system=settings.system, thinking=settings.thinking
        )
        self._folder, self._plan, self._settings, self._tokenizer = folder, plan, settings, tokenizer
        self._manifest = DataManifest(
            target=target,
            tokenizer_sha256=tokenizer.fingerprint,
            chat_template_sha256=tokenizer.chat_template_sha256,
            thinking=settings.thinking,
            method=plan.method,
            prompt_files=tuple(map(describe_file, (*plan.answer_files, *plan.prompt_files))),
            generation={**settings.to_dict(), **origin, "held_out": plan.held_out},
            num_conversations=0,
            num_held_out=0,
            num_completion_tokens=0,
            blockdraft_version=__version__,
        )
        self._discarded: dict[str, int] = {}
        self._progress = Progress(num_done=0, num_total=0, num_tokens=0, seconds=0.0)
        self._check_folder()
        self._done_ids, self._question_keys = self._read_folder()
        self._pending = self._prompts_left()

    @property
    def outcome(self) -> Outcome:
        """What there is now."""
        return Outcome(manifest=self._manifest, progress=self._progress, num_discarded=self._discarded)

    def run(self, runtime: Runtime | None, report: Callable[[Progress], None] = lambda progress: None) -> Outcome:
        """Import, generate, and leave a manifest that counts what is there, also after an error or interrupt."""
        self._folder.mkdir(parents=True, exist_ok=True)
        self._manifest.write(self._folder)
        started = perf_counter()
        with (
            ConversationWriter(self._folder / CONVERSATIONS) as main,
            ConversationWriter(self._folder / HELD_OUT) as held_out,
        ):
            try:
                for conversation in self._answers():
                    if conversation.id not in self._done_ids:
                        self._keep(conversation, main, held_out)
                self._progress = replace(self._progress, num_total=len(self._pending))
                if runtime is None or not self._pending:
                    return self.outcome
                dialogues = (Dialogue(prompt, self._settings) for prompt in self._pending)
                for dialogue in runtime.run(dialogues):
                    self._finish(dialogue, main, held_out)
                    self._progress = replace(
                        self._progress,
                        num_done=self._progress.num_done + 1,
                        num_tokens=self._progress.num_tokens + dialogue.num_tokens,
                        seconds=perf_counter() - started,
                    )
                    report(self._progress)
            finally:
                self._manifest.write(self._folder)
        return self.outcome

    @property
    def num_pending(self) -> int:
        """How many prompts are to be answered."""
        return len(self._pending)

    def _check_folder(self) -> None:
        if not (self._folder / MANIFEST).exists():
            return
        before = DataManifest.read(self._folder)
        before.check_tokenizer(self._tokenizer)
        mine = {"target": self._manifest.target} | dict(self._manifest.generation)
        theirs = {"target": before.target} | dict(before.generation)
        if differing := [name for name in mine | theirs if mine.get(name) != theirs.get(name)]:
            name = differing[0]
            raise DataError(
                f"{self._folder} holds answers made with {name} {theirs.get(name)!r}, not {mine.get(name)!r}; "
                f"choose another folder, or the same settings to go on with this one"
            )

    def _read_folder(self) -> tuple[set[str], set[bytes]]:
        """Return the ids of what is there, and the keys of its first questions; count it."""
        ids, keys = set(), set()
        for name in (CONVERSATIONS, HELD_OUT):
            if (self._folder / name).exists():
                for conversation in read_conversations(self._folder, name):
                    ids.add(conversation.id)
                    keys.add(_question_key(conversation))
                    self._count(conversation, is_held_out=name == HELD_OUT)
        return ids, keys

    def _prompts_left(self) -> list[Prompt]:
        plan = self._plan
        excluded = {str(row.get("id")) for path in plan.exclude for _, row in read_rows(path)}
        excluded |= {conversation.id for conversation in self._answers()}
        prompts: dict[str, Prompt] = {}
        for prompt in without_repeats(prompt for path in plan.prompt_files for prompt in read_prompts(path)):
            if prompt.id in excluded:
                continue
            if len(prompts) == plan.limit:
                break
            if prompt.id in prompts:
                raise DataError(f"two different prompts have the id {prompt.id!r}; make the ids unique")
            prompts[prompt.id] = prompt
        own = (Prompt(id=f"self-written/{number:06d}", turns=(), source="self-written") for number in count())
        prompts |= {prompt.id: prompt for prompt, _ in zip(own, range(plan.num_self_written), strict=False)}
        return [prompt for prompt in prompts.values() if prompt.id not in self._done_ids]

    def _answers(self) -> Iterator[Conversation]:
        """Yield the conversations that are there already."""
        for path in self._plan.answer_files:
            yield from read_answers(path, self._tokenizer, thinking=self._settings.thinking)

    def _finish(self, dialogue: Dialogue, main: ConversationWriter, held_out: ConversationWriter) -> None:
        conversation = dialogue.conversation(self._tokenizer)
        if (
            conversation is not None
            and not dialogue.prompt.turns
            and _question_key(conversation) in self._question_keys
        ):
            dialogue.discarded, conversation = "the target wrote the same user message before", None
        if conversation is None:
            reason = str(dialogue.discarded)
            self._discarded[reason] = self._discarded.get(reason, 0) + 1
        else:
            self._keep(conversation, main, held_out)

    def _keep(self, conversation: Conversation, main: ConversationWriter, held_out: ConversationWriter) -> None:
        is_held_out = draw_index(f"held out {conversation.id}") / 2**63 < self._plan.held_out
        (held_out if is_held_out else main).append([conversation])
        self._done_ids.add(conversation.id)
        self._question_keys.add(_question_key(conversation))
        self._count(conversation, is_held_out=is_held_out)

    def _count(self, conversation: Conversation, *, is_held_out: bool) -> None:
        manifest = self._manifest
        self._manifest = replace(
            manifest,
            num_conversations=manifest.num_conversations + (not is_held_out),
            num_held_out=manifest.num_held_out + is_held_out,
            num_completion_tokens=manifest.num_completion_tokens + conversation.num_completion_tokens,
        )


def _question_key(conversation: Conversation) -> bytes:
    return text_key(message["content"] for message in conversation.messages if message["role"] == "user")
