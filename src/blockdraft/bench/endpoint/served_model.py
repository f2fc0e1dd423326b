"""A model on a server: contexts from prompts, answers, and what the model itself would say next.

An answer of one token is never drafted: it comes from the pass over its context, whatever the engine. So a server that
can continue any context shows its own target's choice and log-probabilities at every place, drafter or not: that is
the baseline of a server that has no other.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from blockdraft.bench.endpoint.answers import Answer, Ask, Context, Seen, extended
from blockdraft.bench.endpoint.connection import Connection
from blockdraft.bench.endpoint.counters import DraftCounters, read_counters, read_metrics, total_of
from blockdraft.bench.endpoint.dialects import (
    Chat,
    Completions,
    Dialect,
    LlamacppCompletion,
    SglangGenerate,
    VllmCompletions,
)
from blockdraft.bench.endpoint.engines import ServedEngine, recognise
from blockdraft.errors import EndpointError, EndpointRefusedError

_OWN: dict[str, tuple[Dialect, ...]] = {
    "vllm": (VllmCompletions(),),
    "llamacpp": (LlamacppCompletion(),),
    "sglang": (SglangGenerate(),),
}
_SEED_STRIDE = 7919
_PROBE = "The capital of France is"


@dataclass(frozen=True, kw_only=True)
class NextToken:
    """What a model says after a context: its choice, and the most likely tokens if the server tells."""

    choice: Seen | None
    """The most likely token; None if the answer ends here."""
    top: tuple[Seen, ...]
    num_context_tokens: int | None = None
    """How many tokens the server cut the context into; None if it does not tell."""

    @property
    def key(self) -> int | str | None:
        """What choices are compared by; None for the end."""
        return None if self.choice is None else self.choice.key

    def logprob_of(self, token: Seen) -> float | None:
        """Return a token's log-probability; None if it is not among the most likely ones."""
        return next((one.logprob for one in self.top if one.key == token.key), None)

    def gap_to(self, token: Seen) -> float | None:
        """Return how far, in nat, a token is below the most likely one; None if nothing is told.

        For a token that is not among those shown it is the distance to the last of them, which is less than the truth.
        """
        if not self.top or self.top[0].logprob is None:
            return None
        own = self.logprob_of(token)
        lowest = own if own is not None else self.top[-1].logprob
        return None if lowest is None else self.top[0].logprob - lowest


class ServedModel:
    """One model behind a connection, asked in the words of its engine."""

    def __init__(self, connection: Connection, engine: ServedEngine, dialect: Dialect, num_top: int) -> None:
        self._connection = connection
        self.engine = engine
        self.dialect = dialect
        self.num_top = num_top
        """How many likely tokens it shows; 0 if it tells none."""
        self.shows_tokens = False
        """True if an answer comes as tokens, and not as a text alone."""

    @classmethod
    async def connect(cls, connection: Connection) -> ServedModel:
        """Find out what the server is, what it takes and what it shows.

        Raises:
            EndpointError: it cannot be reached, or answers neither completions nor chats.
        """
        engine = await recognise(connection)
        return await cls._speaking(connection, engine, (*_OWN.get(engine.engine, ()), Completions(), Chat()))

    async def chatting(self) -> ServedModel:
        """Return the same model asked by messages alone, to be compared with one that only chats.

        Raises:
            EndpointError: it does not chat.
        """
        return await self._speaking(self._connection, self.engine, (Chat(),))

    @classmethod
    async def _speaking(cls, connection: Connection, engine: ServedEngine, dialects: Sequence[Dialect]) -> ServedModel:
        problem: EndpointError | None = None
        for dialect in dialects:
            for num_top in (dialect.most_top, 5, 0):
                model = cls(connection, engine, dialect, num_top)
                [context] = (await model.contexts_of({"probe": _PROBE})).values()
                try:
                    answer = await model.answer(model.ask(context, max_tokens=2))
                except EndpointRefusedError as error:
                    problem = error
                    continue
                shown = max((len(position.top) for position in answer.positions[:1]), default=0)
                model.num_top = min(num_top, shown) if shown > 1 else 0
                model.shows_tokens = bool(answer.positions)
                return model
        asked = " nor ".join(dialect.name for dialect in dialects)
        raise EndpointError(f"{connection.root_url} answers neither {asked}: {problem}")

    @property
    def can_be_forced(self) -> bool:
        """True if it can be asked what follows any beginning of an answer."""
        return self.dialect.takes_context

    def shows_same_tokens_as(self, other: ServedModel) -> bool:
        """True if tokens of the two can be compared: both shown, and in the same way."""
        return self.shows_tokens and other.shows_tokens and self.dialect.takes_ids == other.dialect.takes_ids

    def ask(
        self,
        prompt: Context,
        *,
        max_tokens: int,
        temperature: float = 0.0,
        seed: int | None = None,
        fresh: bool = False,
    ) -> Ask:
        """Return a request that shows as much as this server does."""
        is_message = not self.dialect.takes_context
        assert not (is_message and isinstance(prompt, tuple)), "a chat takes a message"
        return Ask(
            context=None if is_message else prompt,
            message=str(prompt) if is_message else None,
            max_tokens=max_tokens,
            temperature=temperature,
            seed=seed,
            num_top=self.num_top,
            is_fresh=fresh,
        )

    async def answer(self, ask: Ask) -> Answer:
        """Send a request.

        Raises:
            EndpointError: the server does not answer it.
        """
        path, base, body = self.dialect.request(ask, self.engine.model)
        return self.dialect.read(await self._connection.post_json(path, body, base))

    async def next_token(self, context: Context, *, fresh: bool = False) -> NextToken:
        """Return what the target says after a context, in a pass that nothing was drafted for."""
        answer = await self.answer(self.ask(context, max_tokens=1, fresh=fresh))
        top = proper(answer.positions[0].top) if answer.positions else ()
        choice = answer.tokens[0] if answer.positions else Seen(text=answer.text)
        is_end = answer.finish != "length"  # the one token was the last one, shown or not
        return NextToken(choice=None if is_end else choice, top=top, num_context_tokens=answer.num_prompt_tokens)

    async def read_prefix_hits(self) -> float | None:
        """Return how many prompt tokens were found in the prefix cache since the start; None if it does not tell."""
        return total_of(await read_metrics(self._connection) or [], "vllm:prefix_cache_hits")

    async def read_counters(self) -> DraftCounters | None:
        """Return what the server counted about drafts since its start; None if it does not tell."""
        return await read_counters(self._connection)

    async def stepwise(self, ask: Ask) -> Answer:
        """Return an answer that is made of answers of one token: plain decoding, whatever the server does else."""
        assert ask.context is not None, "a message cannot be continued"
        context, pieces = ask.context, list[Answer]()
        while len(pieces) < ask.max_tokens and (not pieces or pieces[-1].finish == "length"):
            seed = None if ask.seed is None else (ask.seed * _SEED_STRIDE + len(pieces)) % 2**31
            piece = await self.answer(replace(ask, context=context, max_tokens=1, seed=seed))
            pieces.append(piece)
            context = context + piece.text if isinstance(context, str) else extended(context, piece.tokens)
        return Answer(
            text="".join(piece.text for piece in pieces),
            positions=tuple(position for piece in pieces for position in piece.positions),
            finish=pieces[-1].finish,
            num_tokens=len(pieces),
        )

    async def contexts_of(self, messages: Mapping[str, str]) -> dict[str, Context]:
        """Return what the model reads when a user says each message; the messages, if the server does not tell.

        All of them are of one kind, token ids or texts.
        """
        if not self.can_be_forced:
            return dict(messages)
        contexts: dict[str, Context] = {}
        for name, message in messages.items():
            try:
                context = await self._templated(message)
            except EndpointError:
                context = None
            if context is None:
                return dict(messages)
            contexts[name] = context
        return contexts

    async def _templated(self, message: str) -> tuple[int, ...] | None:
        messages = [{"role": "user", "content": message}]
        if self.engine.engine == "llamacpp":
            text = (await self._connection.post_json("/apply-template", {"messages": messages}, "root")).get("prompt")
            body = {"content": text, "add_special": True, "parse_special": True}
            return _ids((await self._connection.post_json("/tokenize", body, "root")).get("tokens"))
        if self.engine.engine in ("vllm", "sglang"):
            body = {"model": self.engine.model, "messages": messages, "add_generation_prompt": True}
            return _ids((await self._connection.post_json("/tokenize", body, "root")).get("tokens"))
        return None


def _ids(tokens: Any) -> tuple[int, ...] | None:
    is_list = isinstance(tokens, list) and tokens and all(isinstance(token, int) for token in tokens)
    return tuple(tokens) if is_list else None


def proper(top: Sequence[Seen]) -> tuple[Seen, ...]:
    """Return the most likely tokens if they can be a distribution; nothing if they cannot.

    A server that does not compute log-probabilities of drafted tokens shows zeros: more than all of the mass.
    """
    values = [token.logprob for token in top]
    if any(value is None or math.isnan(value) for value in values):
        return ()
    mass = math.fsum(math.exp(value) for value in values if value is not None)
    return tuple(top) if mass <= 1.02 else ()
