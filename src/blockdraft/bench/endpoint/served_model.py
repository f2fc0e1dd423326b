"""A model on a server: contexts from prompts, answers, and what the model itself would say next.

An answer of one token is never drafted: it comes from the pass over its context, whatever the engine. So a server that
can continue any context shows its own target's choice and log-probabilities at every place, drafter or not: that is
the baseline of a server that has no other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from blockdraft.bench.endpoint.answers import Answer, Ask, Context, Seen
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
        problem: EndpointError | None = None
        for dialect in (*_OWN.get(engine.engine, ()), Completions(), Chat()):
            for num_top in (dialect.most_top, 5, 0):
                model = cls(connection, engine, dialect, num_top)
                try:
                    answer = await model.answer(model.ask(_PROBE, max_tokens=2))
                except EndpointRefusedError as error:
                    problem = error
                    continue
                shown = max((len(position.top) for position in answer.positions[:1]), default=0)
                model.num_top = min(num_top, shown) if shown > 1 else 0
                model.shows_tokens = bool(answer.positions)
                return model
        raise EndpointError(f"{connection.api_url} answers neither /completions nor /chat/completions: {problem}")

    @property
    def can_be_forced(self) -> bool:
        """True if it can be asked what follows any beginning of an answer."""
        return self.dialect.takes_context

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
        if answer.finish != "length":  # the one token was the last one, shown or not
            return NextToken(choice=None, top=top)
        choice = answer.tokens[0] if answer.positions else Seen(text=answer.text)
        return NextToken(choice=choice, top=top)

    async def read_prefix_hits(self) -> float | None:
        """Return how many prompt tokens were found in the prefix cache since the start; None if it does not tell."""
        return total_of(await read_metrics(self._connection) or [], "vllm:prefix_cache_hits")

    async def read_counters(self) -> DraftCounters | None:
        """Return what the server counted about drafts since its start; None if it does not tell."""
        return await read_counters(self._connection)

    async def stepwise(self, ask: Ask) -> Answer:
        """Return an answer to a text, made of answers of one token: plain decoding, whatever the server does else."""
        assert isinstance(ask.context, str), "only a text can be continued by texts"
        text, finish = "", "length"
        for step in range(ask.max_tokens):
            seed = None if ask.seed is None else (ask.seed * _SEED_STRIDE + step) % 2**31
            one = replace(ask, context=ask.context + text, max_tokens=1, seed=seed)
            answer = await self.answer(one)
            text += answer.text
            if answer.finish != "length" or not answer.text:
                finish = "stop"
                break
        return Answer(text=text, positions=(), finish=finish, num_tokens=None)

    async def context_of(self, message: str) -> Context:
        """Return what the model reads when a user says `message`, as far as the server tells; else the message."""
        if not self.can_be_forced:
            return message
        try:
            return await self._templated(message) or message
        except EndpointError:
            return message

    async def _templated(self, message: str) -> Context | None:
        messages = [{"role": "user", "content": message}]
        if self.engine.engine == "llamacpp":
            text = (await self._connection.post_json("/apply-template", {"messages": messages}, "root"))["prompt"]
            body = {"content": text, "add_special": True, "parse_special": True}
            return _ids((await self._connection.post_json("/tokenize", body, "root")).get("tokens"))
        if self.engine.engine in ("vllm", "sglang"):
            body = {"model": self.engine.model, "messages": messages, "add_generation_prompt": True}
            return _ids((await self._connection.post_json("/tokenize", body, "root")).get("tokens"))
        return None


def _ids(tokens: Any) -> Context | None:
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
