"""What a server that was just started really loaded: its model, its context, and whether it drafts."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from blockdraft.bench.endpoint.connection import Connection
from blockdraft.bench.endpoint.counters import DraftCounters, counted_between
from blockdraft.bench.endpoint.engines import ServedEngine, recognise
from blockdraft.bench.endpoint.served_model import ServedModel

_SENTENCE = "The red door opens to the green garden, the green gate opens to the blue lake, and the boat is tied. "
_PROMPT = "Copy this text again and again, word for word:\n" + _SENTENCE * 6 + "The red door opens to"
"""Text that goes on as it began: even drafters that only look at what was written find something in it.

It ends inside a sentence and without a space, so that its last tokens stood in it before, and few models stop there.
"""

_MAX_TOKENS = 96
"""ngram-mod of llama.cpp drafts 48 tokens or none."""


@dataclass(frozen=True, kw_only=True)
class ReadBack:
    """A server after one short answer."""

    engine: ServedEngine
    drafted: DraftCounters | None
    """What was drafted for the answer; None if the server does not tell."""
    num_tokens: int

    @property
    def does_draft(self) -> bool | None:
        """Whether something was drafted; None if that cannot be known."""
        if self.drafted is None:
            # vLLM has no counters without a way to draft, and says so of itself.
            return False if self.engine.speculates is False else None
        # SGLang counts verify passes and accepted tokens, but not always drafted ones.
        return bool(self.drafted.num_drafted or self.drafted.num_accepted)

    def describe(self) -> str:
        """Return in one line what is served and how it drafts."""
        engine = self.engine
        parts = [f"{engine.model} on {engine.engine}" + (f" {engine.version}" if engine.version else "")]
        if engine.context_length:
            parts.append(f"context {engine.context_length}")
        parts.append(self._drafts())
        return ", ".join(parts)

    def _drafts(self) -> str:
        if self.drafted is None:
            return "it does not tell whether it drafts" if self.does_draft is None else "it does not draft"
        if not self.does_draft:
            return f"it drafted nothing in {self.num_tokens} tokens"
        method = f" ({self.engine.method})" if self.engine.method else ""
        if self.drafted.num_drafted is None:
            return f"it drafts{method}: {self.drafted.num_accepted} drafts kept in {self.num_tokens} tokens"
        return f"it drafts{method}: {self.drafted.num_accepted} of {self.drafted.num_drafted} drafts kept"

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain data."""
        return {
            "engine": asdict(self.engine),
            "drafted": self.drafted.to_dict() if self.drafted else None,
            "does_draft": self.does_draft,
            "num_tokens": self.num_tokens,
        }


async def read_back(connection: Connection) -> ReadBack:
    """Ask a server what it is, and for one answer whose drafts are counted.

    Raises:
        EndpointError: it does not answer.
    """
    model = await ServedModel.connect(connection)
    before = await model.read_counters()
    # Engines may leave drafts out of requests that show likely tokens.
    answer = await model.answer(replace(model.ask(_PROMPT, max_tokens=_MAX_TOKENS), num_top=0))
    after = await model.read_counters()
    drafted = counted_between(before, after, [answer.counters])
    # llama.cpp names its ways to draft in the settings of a request that ran.
    engine = model.engine if model.engine.method else await recognise(connection)
    return ReadBack(engine=engine, drafted=drafted, num_tokens=answer.num_tokens or _MAX_TOKENS)
