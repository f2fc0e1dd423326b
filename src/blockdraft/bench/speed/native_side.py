"""A side that is blockdraft's own engine, in this process. The only module here that needs torch."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from blockdraft.bench.speed.drafts import DraftCounts
from blockdraft.bench.speed.records import Failure, Role, Sample, SideInfo
from blockdraft.bench.speed.side import WARM_UP_PROMPT, WARM_UP_TOKENS, AnswerSettings, Emit
from blockdraft.bench.speed.workload import WORDS_TO_CALIBRATE, filler
from blockdraft.core.acceptance import AcceptanceStats
from blockdraft.core.sampling import SamplingParams
from blockdraft.engine import Engine
from blockdraft.engine.request import SequenceState
from blockdraft.engine.workloads import Workload
from blockdraft.errors import RequestError


@dataclass(eq=False)
class _Talk:
    """A conversation that is being answered."""

    workload: Workload
    messages: list[dict[str, str]] = field(default_factory=list)
    turn: int = 0
    num_prompt_tokens: int | None = None
    sent_at: float = 0.0
    chunk_s: list[float] = field(default_factory=list)
    chunk_tokens: list[int] = field(default_factory=list)
    chunk_characters: list[int] = field(default_factory=list)
    text: list[str] = field(default_factory=list)


class NativeSide:
    """An engine, with or without its drafter; it must be made for as many requests as are to be in flight."""

    def __init__(self, engine: Engine, role: Role, settings: AnswerSettings, *, model: str, version: str) -> None:
        self._engine, self._role, self._settings = engine, role, settings
        self._model, self._version = model, version
        self._stats: list[AcceptanceStats] = []

    @property
    def info(self) -> SideInfo:
        details: dict[str, Any] = {
            "spec": self._engine.spec.to_dict(),
            "drafter": self._engine.drafter.describe() if self._engine.drafter else None,
        }
        return SideInfo(
            role=self._role,
            where="native",
            engine=f"blockdraft {self._version}",
            model=self._model,
            details=details,
        )

    def warm_up(self, concurrency: int) -> None:
        prompts = [[{"role": "user", "content": f"({number}) {WARM_UP_PROMPT}"}] for number in range(concurrency)]
        self._engine.run([self._engine.request(prompt, max_tokens=WARM_UP_TOKENS) for prompt in prompts])

    def words_per_token(self) -> float:
        tokenizer = self._engine.tokenizer
        if tokenizer is None:
            raise RequestError("this engine has no tokenizer; prompts are texts")
        return WORDS_TO_CALIBRATE / len(tokenizer.encode(filler(WORDS_TO_CALIBRATE, "size"), add_special_tokens=False))

    def serve(self, conversations: Sequence[Workload], *, repeat: int, concurrency: int, emit: Emit) -> None:
        began = perf_counter()
        waiting = deque(_Talk(workload) for workload in conversations)
        running: dict[SequenceState, _Talk] = {}

        def begin(talk: _Talk) -> None:
            try:
                running[self._ask(talk)] = talk
            except RequestError as error:  # a prompt longer than the context ends its conversation, not the run
                emit(_sample(talk, repeat, began, failure=Failure(kind="refused", message=str(error))))

        try:
            while waiting or running:
                while waiting and len(running) < concurrency:
                    begin(waiting.popleft())
                finished = self._engine.step()
                for sequence, talk in running.items():
                    _take(talk, sequence)
                for sequence in finished:
                    talk = running.pop(sequence)
                    emit(self._end(talk, sequence, repeat, began))
                    if talk.turn < len(talk.workload.turns):
                        begin(talk)
        finally:
            for sequence, talk in running.items():
                self._engine.cancel(sequence)
                emit(_sample(talk, repeat, began, failure=Failure(kind="cancelled", message="the run was stopped")))

    def take_drafts(self) -> DraftCounts | None:
        stats, self._stats = AcceptanceStats.merge(self._stats), []
        return _counts(stats)

    def close(self) -> None:
        """Nothing is held open."""

    def _ask(self, talk: _Talk) -> SequenceState:
        talk.messages.append({"role": "user", "content": talk.workload.turns[talk.turn]})
        talk.chunk_s, talk.chunk_tokens, talk.chunk_characters, talk.text = [], [], [], []
        talk.sent_at, talk.num_prompt_tokens = perf_counter(), None
        settings = self._settings
        request = self._engine.request(
            talk.messages,
            max_tokens=settings.max_tokens,
            sampling=SamplingParams(temperature=settings.temperature, top_p=settings.top_p, seed=settings.seed),
            ignore_eos=settings.ignore_eos,
        )
        talk.num_prompt_tokens = len(request.prompt_ids)
        return self._engine.submit(request)

    def _end(self, talk: _Talk, sequence: SequenceState, repeat: int, began: float) -> Sample:
        generation = sequence.to_generation(self._engine.drafter_name)
        self._stats.append(generation.stats)
        drafts = _counts(generation.stats)
        sample = _sample(talk, repeat, began, drafts=drafts, finish_reason=generation.finish_reason)
        talk.messages.append({"role": "assistant", "content": "".join(talk.text)})
        talk.turn += 1
        return sample


def _take(talk: _Talk, sequence: SequenceState) -> None:
    chunk = sequence.take_chunk()
    if chunk.tokens:
        talk.chunk_s.append(perf_counter() - talk.sent_at)
        talk.chunk_tokens.append(len(chunk.tokens))
        talk.chunk_characters.append(len(chunk.text))
        talk.text.append(chunk.text)


def _sample(
    talk: _Talk,
    repeat: int,
    began: float,
    *,
    failure: Failure | None = None,
    drafts: DraftCounts | None = None,
    finish_reason: str | None = None,
) -> Sample:
    return Sample(
        prompt_id=talk.workload.id,
        turn=talk.turn,
        repeat=repeat,
        started_s=round(talk.sent_at - began, 6),
        chunk_s=tuple(round(moment, 6) for moment in talk.chunk_s),
        chunk_tokens=tuple(talk.chunk_tokens),
        chunk_characters=tuple(talk.chunk_characters),
        num_tokens=sum(talk.chunk_tokens),
        num_prompt_tokens=talk.num_prompt_tokens,
        num_cached_tokens=0,
        finish_reason=finish_reason,
        text_sha256=hashlib.sha256("".join(talk.text).encode()).hexdigest(),
        drafts=drafts,
        failure=failure,
    )


def _counts(stats: AcceptanceStats) -> DraftCounts:
    """Return the engine's counters; as `num_accepted` leaves a token out if a stop cut its round, so does this."""
    return DraftCounts(
        source="rounds",
        num_rounds=stats.num_rounds,
        num_drafted=stats.num_drafted,
        num_accepted=stats.num_accepted,
        accepted_at=tuple(stats.accepted_at),
        counts_plain_rounds=True,
        reached_at=tuple(stats.reached_at),
    )
