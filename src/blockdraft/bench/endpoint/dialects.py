"""How each engine is asked for the same thing, and how its answer is read.

All of them sample neutrally: temperature alone shapes the distribution, and no penalty, bias or truncation that a
server may have as a default. What an engine is not known to take is not sent to it.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any, Protocol

from blockdraft.bench.endpoint.answers import (
    Answer,
    Ask,
    Position,
    Seen,
    best_first,
    content_positions,
    legacy_positions,
)
from blockdraft.bench.endpoint.connection import Base
from blockdraft.bench.endpoint.counters import counters_of_answer
from blockdraft.errors import EndpointError

Json = dict[str, Any]


class Dialect(Protocol):
    """One way to talk to a server."""

    name: str
    takes_context: bool
    """True if an answer can continue any context; False if the server only chats."""
    takes_ids: bool
    most_top: int
    """How many likely tokens it shows at most."""

    def request(self, ask: Ask, model: str) -> tuple[str, Base, Json]:
        """Return path, base and body."""
        ...

    def read(self, answer: Json) -> Answer: ...


class Completions:
    """`/v1/completions` as OpenAI described it, and as unknown servers have it."""

    name = "/v1/completions"
    takes_context = True
    takes_ids = False
    most_top = 5

    def request(self, ask: Ask, model: str) -> tuple[str, Base, Json]:
        prompt = list(ask.context) if isinstance(ask.context, tuple) else ask.context
        body = {"model": model, "prompt": prompt, "max_tokens": ask.max_tokens, **_sampling(ask)}
        if ask.num_top:
            body["logprobs"] = ask.num_top
        return "/completions", "api", body | self._own(ask)

    def read(self, answer: Json) -> Answer:
        choice = _first_choice(answer)
        found = choice.get("logprobs") or {}
        if "content" in found:
            positions = content_positions(found["content"] or ())
        else:
            positions = legacy_positions(found, choice.get("token_ids") or ())
        return _answer(answer, choice, str(choice.get("text") or ""), positions)

    def _own(self, ask: Ask) -> Json:
        return {}


class VllmCompletions(Completions):
    """vLLM: tokens come with their ids, and a salt keeps a context out of the prefix cache.

    A context that is a text is continued by texts, so their tokens are shown as such.
    """

    name = "/v1/completions of vLLM"
    takes_ids = True
    most_top = 20

    _salts = itertools.count()

    def _own(self, ask: Ask) -> Json:
        own: Json = {"top_k": -1, "repetition_penalty": 1.0}
        if isinstance(ask.context, tuple):
            own |= {"return_token_ids": True, "return_tokens_as_token_ids": True}
        return own | ({"cache_salt": f"fresh-{next(self._salts)}"} if ask.is_fresh else {})


class LlamacppCompletion:
    """llama.cpp's own `/completion`, whose samplers can be named one by one."""

    name = "/completion of llama.cpp"
    takes_context = True
    takes_ids = True
    most_top = 50

    def request(self, ask: Ask, model: str) -> tuple[str, Base, Json]:
        body: Json = {
            "model": model,
            "prompt": list(ask.context) if isinstance(ask.context, tuple) else ask.context,
            "n_predict": ask.max_tokens,
            "temperature": ask.temperature,
            "samplers": ["temperature"],
            "n_probs": ask.num_top,
            "return_tokens": True,
            "cache_prompt": not ask.is_fresh,
        }
        return "/completion", "root", body | ({} if ask.seed is None else {"seed": ask.seed})

    def read(self, answer: Json) -> Answer:
        timings = answer.get("timings") or {}
        cached = timings.get("cache_n")
        positions = content_positions(answer.get("completion_probabilities") or ())
        ids = answer.get("tokens") or []
        if len(positions) != len(ids):
            positions = tuple(Position(token=Seen(text="", token_id=token_id)) for token_id in ids)
        return Answer(
            text=str(answer.get("content") or ""),
            positions=positions,
            finish="length" if answer.get("stop_type") == "limit" else "stop",
            num_tokens=answer.get("tokens_predicted"),
            num_prompt_tokens=timings["prompt_n"] + cached if cached is not None and "prompt_n" in timings else None,
            num_cached_tokens=cached,
            counters=counters_of_answer(answer),
        )


class SglangGenerate:
    """SGLang's own `/generate`, which takes and shows token ids and tells about drafts."""

    name = "/generate of SGLang"
    takes_context = True
    takes_ids = True
    most_top = 20

    def request(self, ask: Ask, model: str) -> tuple[str, Base, Json]:
        sampling: Json = {"max_new_tokens": ask.max_tokens, "temperature": ask.temperature, "top_p": 1.0, "top_k": -1}
        if ask.seed is not None:
            sampling["sampling_seed"] = ask.seed
        body: Json = {"sampling_params": sampling}
        body |= {"input_ids": list(ask.context)} if isinstance(ask.context, tuple) else {"text": ask.context}
        if ask.num_top:
            body |= {"return_logprob": True, "top_logprobs_num": ask.num_top, "return_text_in_logprobs": True}
        return "/generate", "root", body

    def read(self, answer: Json) -> Answer:
        meta = answer.get("meta_info") or {}
        own, tables = meta.get("output_token_logprobs") or [], meta.get("output_top_logprobs") or []
        if own:
            positions = tuple(
                Position(token=_triple(entry), top=best_first(map(_triple, table or ())))
                for entry, table in itertools.zip_longest(own, tables)
            )
        else:
            positions = tuple(Position(token=Seen(text="", token_id=one)) for one in answer.get("output_ids") or ())
        reason = meta.get("finish_reason") or {}
        return Answer(
            text=str(answer.get("text") or ""),
            positions=positions,
            finish=str(reason.get("type", reason) if isinstance(reason, Mapping) else reason),
            num_tokens=meta.get("completion_tokens"),
            num_prompt_tokens=meta.get("prompt_tokens"),
            num_cached_tokens=meta.get("cached_tokens"),
            counters=counters_of_answer(answer),
        )


class Chat:
    """`/v1/chat/completions`: answers to messages, which cannot be continued from a chosen place."""

    name = "/v1/chat/completions"
    takes_context = False
    takes_ids = False
    most_top = 20

    def request(self, ask: Ask, model: str) -> tuple[str, Base, Json]:
        messages = [{"role": "user", "content": ask.message}]
        body = {"model": model, "messages": messages, "max_tokens": ask.max_tokens, **_sampling(ask)}
        if ask.num_top:
            body |= {"logprobs": True, "top_logprobs": ask.num_top}
        return "/chat/completions", "api", body

    def read(self, answer: Json) -> Answer:
        choice = _first_choice(answer)
        positions = content_positions((choice.get("logprobs") or {}).get("content") or ())
        message = choice.get("message") or {}
        # What a reasoning parser took out was generated as well.
        thoughts = message.get("reasoning_content") or message.get("reasoning") or ""
        text = f"{thoughts}{message.get('content') or ''}"
        return _answer(answer, choice, text, positions)


def _sampling(ask: Ask) -> Json:
    fields: Json = {"temperature": ask.temperature, "top_p": 1.0}
    return fields | ({} if ask.seed is None else {"seed": ask.seed})


def _answer(answer: Json, choice: Mapping[str, Any], text: str, positions: tuple[Position, ...]) -> Answer:
    ids, usage = choice.get("token_ids") or (), answer.get("usage") or {}
    if not positions and ids:
        positions = tuple(Position(token=Seen(text="", token_id=token_id)) for token_id in ids)
    return Answer(
        text=text,
        positions=positions,
        finish=str(choice.get("finish_reason")),
        num_tokens=usage.get("completion_tokens"),
        num_prompt_tokens=usage.get("prompt_tokens"),
        num_cached_tokens=(usage.get("prompt_tokens_details") or {}).get("cached_tokens"),
        counters=counters_of_answer(answer),
    )


def _first_choice(answer: Json) -> Mapping[str, Any]:
    choices = answer.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], Mapping):
        raise EndpointError(f"the server answers without choices: {str(answer)[:120]}")
    return choices[0]


def _triple(entry: Any) -> Seen:
    logprob, token_id, text = entry
    return Seen(text=text or "", token_id=token_id, logprob=logprob)
