"""Answers from the target itself, on blockdraft's own runtime: hundreds of dialogues at once.

Models of own families run through `PackedBatchDecoder` on the native kernels and through `BatchDecoder` in torch.
Others (the generic path through transformers) have their own attention and go through the engine, sequence by
sequence, which is slower and is said.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Protocol

from blockdraft.engine import Engine, Request
from blockdraft.models.base import Target
from blockdraft.models.decoder import Decoder
from blockdraft.models.packed_decoder import PackedDecoder
from blockdraft.models.tokenizer import Tokenizer
from blockdraft.train.generate.batched import GROUP_SIZE, BatchDecoder
from blockdraft.train.generate.dialogue import Answer, Dialogue, Task
from blockdraft.train.generate.jobs import Completion, Job
from blockdraft.train.generate.packed import PackedBatchDecoder
from blockdraft.train.generate.side_by_side import SideBySideDecoder
from blockdraft.train.lanes import num_lanes

_LOOK_AHEAD = 8
"""Groups that wait, so that those of similar length can be put together."""
_MARK = "\x02question\x03"


class _Worker(Protocol):
    """Continues many texts; `BatchDecoder` and `PackedBatchDecoder` are such."""

    @property
    def num_running(self) -> int: ...

    def add(self, jobs: Sequence[Job]) -> list[Completion]: ...

    def step(self) -> list[Completion]: ...


class OwnRuntime:
    """Answers dialogues with a target in this process."""

    def __init__(
        self, target: Target, tokenizer: Tokenizer, *, batch_size: int = 256, notify: Callable[[str], None]
    ) -> None:
        """`batch_size` dialogues are answered at once."""
        self._tokenizer = tokenizer
        self._context_length = target.info.context_length
        self._batch_size = batch_size
        self._group_size = min(GROUP_SIZE, batch_size)
        self._worker: _Worker
        if isinstance(target, PackedDecoder):
            self._worker = PackedBatchDecoder(target)
        elif isinstance(target, Decoder):
            count = min(num_lanes(target.info.device), batch_size // self._group_size)  # a whole group each
            if count > 1:
                self._worker = SideBySideDecoder(target, self._group_size, count)
            else:
                self._worker = BatchDecoder(target, self._group_size)
        else:
            notify(f"{target.info.family} runs through transformers, which answers one sequence at a time: slowly")
            self._worker = _EngineWorker(Engine(target, max_running=batch_size))

    def run(self, dialogues: Iterable[Dialogue]) -> Iterator[Dialogue]:
        """Yield the dialogues as they are finished; at most a few groups more than `batch_size` are begun."""
        source = iter(dialogues)
        waiting: list[Job] = []
        by_id: dict[str, Dialogue] = {}
        while True:
            missing = _LOOK_AHEAD * self._group_size - len(waiting)
            taken = list(islice(source, missing)) if 2 * missing >= _LOOK_AHEAD * self._group_size else []
            for dialogue in taken:
                by_id[dialogue.prompt.id] = dialogue
                if (job := self._job(dialogue)) is not None:
                    waiting.append(job)
                else:
                    yield by_id.pop(dialogue.prompt.id)
            waiting.sort(key=lambda job: len(job.prompt_ids))
            completions: list[Completion] = []
            while waiting and self._worker.num_running + self._group_size <= self._batch_size:
                completions += self._worker.add(waiting[: self._group_size])
                del waiting[: self._group_size]
            if not (taken or waiting or completions or self._worker.num_running):
                return
            completions += self._worker.step()
            for completion in completions:
                dialogue = by_id[str(completion.key)]
                dialogue.take(self._answer(completion))
                job = None if dialogue.is_finished else self._job(dialogue)
                if job is not None:
                    waiting.append(job)
                else:
                    yield by_id.pop(dialogue.prompt.id)

    def _job(self, dialogue: Dialogue) -> Job | None:
        """Return the dialogue's next job; None, and it is discarded, if the context has no room for it."""
        task = dialogue.task()
        prompt_ids = self._prompt_ids(task, dialogue.settings.thinking)
        room = self._context_length - len(prompt_ids)
        if room < task.max_tokens:
            dialogue.discarded = "prompt and longest answer exceed the target's context"
            return None
        return Job(
            key=dialogue.prompt.id,
            prompt_ids=prompt_ids,
            max_tokens=task.max_tokens,
            sampling=task.sampling,
            sample_index=task.sample_index,
            stop_ids=self._tokenizer.eos_ids,
        )

    def _prompt_ids(self, task: Task, thinking: bool | None) -> list[int]:
        if not task.is_question:
            return self._tokenizer.encode_chat(task.messages, thinking=thinking)
        return self._tokenizer.encode(question_prefix(self._tokenizer, task), add_special_tokens=False)

    def _answer(self, completion: Completion) -> Answer:
        return Answer(
            text=self._tokenizer.decode(completion.token_ids),
            finish=completion.finish,
            num_tokens=len(completion.token_ids) + (completion.finish == "stop"),
            token_ids=completion.token_ids,
        )


def question_prefix(tokenizer: Tokenizer, task: Task) -> str:
    """Return what the chat template writes before a user's message, so that the target continues with one.

    Ref: arXiv:2406.08464 (Magpie), Sec. 2.
    """
    question = {"role": "user", "content": _MARK}
    return tokenizer.render_chat([*task.messages, question]).partition(_MARK)[0]


class _EngineWorker:
    """The engine without a drafter, behind the face of `BatchDecoder`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._jobs: dict[object, Job] = {}

    @property
    def num_running(self) -> int:
        return len(self._jobs)

    def add(self, jobs: Sequence[Job]) -> list[Completion]:
        for job in jobs:
            request = Request(
                prompt_ids=tuple(job.prompt_ids),
                max_tokens=job.max_tokens,
                sampling=job.sampling,
                stop_ids=job.stop_ids,
                sample_index=job.sample_index,
            )
            self._jobs[self._engine.submit(request)] = job
        return []

    def step(self) -> list[Completion]:
        completions = []
        for sequence in self._engine.step():
            job, answer = self._jobs.pop(sequence), sequence.to_generation("")
            ids = answer.token_ids[:-1] if answer.finish_reason == "stop" else answer.token_ids
            completions.append(Completion(key=job.key, token_ids=ids, finish=answer.finish_reason))
        return completions
