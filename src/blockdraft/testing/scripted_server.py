"""A server whose distribution is known and whose faults are planted, to test what is to find them.

It speaks like vLLM, like llama.cpp's server, or only what OpenAI described. Its language has six letters; how likely
each is depends on the two before it. It drafts the most likely letter for most places of a round and keeps what
agrees with the draw, so its counters tell the truth about what it says.

    server = ScriptedServer(faults=Faults(sampling_bias=0.03))
    connection = Connection("http://scripted", transport=server.transport())
"""

from __future__ import annotations

import json
import math
import random
import zlib
from dataclasses import dataclass, field
from typing import Any, Literal

import httpx

Json = dict[str, Any]

LETTERS = "abcdef"
_SHAPES = (
    (0.60, 0.30, 0.04, 0.03, 0.02, 0.01),
    (0.45, 0.35, 0.12, 0.04, 0.03, 0.01),
    (0.88, 0.06, 0.03, 0.01, 0.01, 0.01),
    (0.55, 0.20, 0.15, 0.06, 0.03, 0.01),
)
_LOG_ZERO = -9999.0


@dataclass(frozen=True, kw_only=True)
class Faults:
    """What is wrong with a server; nothing by default. Only drafted places are touched unless it says otherwise."""

    greedy_error_rate: float = 0.0
    """Share of places where a greedy answer says the second-best letter."""
    sampling_bias: float = 0.0
    """How much more likely the best letter is drawn than it should."""
    never_drafts: bool = False
    collapses_after: int | None = None
    """From this token of an answer on, no draft is kept."""
    collapses_past: int | None = None
    """Where prompt and answer are longer than this, no draft is kept."""
    unsteady: float = 0.0
    """Share of requests, drafted or not, that choose otherwise than the rest: a baseline that cannot be trusted."""
    forgets_prefixes: bool = False
    sharpens: bool = False
    """First letters too are drawn from the squared distribution: what it tells is not what it draws from."""


@dataclass
class ScriptedServer:
    """An OpenAI-compatible server in this process."""

    faults: Faults = field(default_factory=Faults)
    engine: Literal["vllm", "llamacpp", "openai"] = "vllm"
    num_draft_tokens: int = 4
    tells_logprobs: bool = True
    only_chats: bool = False
    seed: int = 0
    num_requests: int = 0
    num_rounds: int = 0
    num_drafted: int = 0
    num_accepted: int = 0
    num_prefix_queries: int = 0
    num_prefix_hits: int = 0
    _seen_prompts: set[str] = field(default_factory=set)

    def transport(self) -> httpx.MockTransport:
        """Return what a client of httpx talks to instead of a network."""
        return httpx.MockTransport(self._handle)

    def probs(self, text: str) -> dict[str, float]:
        """Return how likely each letter is after a text."""
        number = zlib.crc32(f"{self.seed} {text[-2:]}".encode())
        shape = _SHAPES[number % len(_SHAPES)]
        letters = random.Random(number).sample(LETTERS, len(LETTERS))
        return dict(zip(letters, shape, strict=True))

    def _handle(self, request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content) if request.content else {}
        answer = self.respond(request.method, request.url.path, body)
        if answer is None:
            return httpx.Response(404, json={"error": {"message": "there is no such route"}})
        return httpx.Response(200, text=answer) if isinstance(answer, str) else httpx.Response(200, json=answer)

    def respond(self, method: str, path: str, body: Json) -> Json | list[Any] | str | None:
        """Return the answer to a request, as JSON or text; None for a route that is not there."""
        if path == "/v1/models":
            return {"data": [{"id": "scripted", "owned_by": self.engine, "max_model_len": 8192}]}
        if path == "/metrics" and self.engine != "openai":
            return self._metrics()
        if path == "/v1/chat/completions":
            return self._chat(body)
        if self.only_chats:
            return None
        if path == "/v1/completions":
            return self._completions(body)
        if self.engine == "vllm":
            return {"/version": {"version": "0.33.0"}, "/tokenize": self._tokenized(body)}.get(path)
        return self._llamacpp(path, body) if self.engine == "llamacpp" else None

    def _llamacpp(self, path: str, body: Json) -> Json | list[Any] | None:
        if path == "/props":
            return {"default_generation_settings": {"n_ctx": 8192, "params": {}}, "build_info": "scripted"}
        if path == "/slots":
            return [{"speculative": True, "params": {"speculative.types": "none,draft-dflash"}}]
        if path == "/apply-template":
            return {"prompt": f"{body['messages'][0]['content']}\n"}
        if path == "/tokenize":
            return {"tokens": [ord(letter) for letter in body["content"]]}
        if path != "/completion":
            return None
        text = _text(body["prompt"])
        said, drafted, accepted, cached = self._answer(text, body["n_predict"], body)
        entries = self._entries(text, said, body.get("n_probs", 0))
        if drafted:  # This engine does not compute the log-probabilities of rounds with drafts.
            entries[1:] = [entry | {"logprob": 0.0, "top_logprobs": []} for entry in entries[1:]]
        timings = {"cache_n": cached, "prompt_n": len(text) - cached, "predicted_n": len(said)}
        return {
            "content": said,
            "tokens": [ord(letter) for letter in said],
            "completion_probabilities": entries,
            "stop_type": "limit",
            "tokens_predicted": len(said),
            "timings": timings | ({"draft_n": drafted, "draft_n_accepted": accepted} if drafted else {}),
        }

    def _completions(self, body: Json) -> Json:
        text = _text(body["prompt"])
        said, _, _, cached = self._answer(text, body["max_tokens"], body)
        choice: Json = {"index": 0, "text": said, "finish_reason": "length"}
        num_top = body.get("logprobs") or 0
        if num_top and self.tells_logprobs:
            entries = self._entries(text, said, num_top)
            as_ids = body.get("return_tokens_as_token_ids")
            choice["logprobs"] = {
                "tokens": [_named(entry, as_ids) for entry in entries],
                "token_logprobs": [entry["logprob"] for entry in entries],
                "top_logprobs": [
                    {_named(one, as_ids): one["logprob"] for one in entry["top_logprobs"]} for entry in entries
                ],
            }
        if self.engine == "vllm" and body.get("return_token_ids"):
            choice["token_ids"] = [ord(letter) for letter in said]
        return {"choices": [choice], "usage": self._usage(text, said, cached)}

    def _chat(self, body: Json) -> Json:
        text = f"{body['messages'][-1]['content']}\n"
        said, _, _, cached = self._answer(text, body["max_tokens"], body)
        choice: Json = {"message": {"role": "assistant", "content": said}, "finish_reason": "length"}
        if body.get("logprobs") and self.tells_logprobs:
            entries = self._entries(text, said, body.get("top_logprobs", 0))
            choice["logprobs"] = {
                "content": [{name: one for name, one in entry.items() if name != "id"} for entry in entries]
            }
        return {"choices": [choice], "usage": self._usage(text, said, cached)}

    def _tokenized(self, body: Json) -> Json | None:
        messages = body.get("messages")
        return {"tokens": [ord(letter) for letter in f"{messages[0]['content']}\n"]} if messages else None

    def _usage(self, text: str, said: str, cached: int) -> Json:
        return {
            "prompt_tokens": len(text),
            "completion_tokens": len(said),
            "prompt_tokens_details": {"cached_tokens": cached},
        }

    def _answer(self, text: str, max_tokens: int, body: Json) -> tuple[str, int, int, int]:
        """Return what is said, how many tokens were drafted and accepted, and how much of the prompt was known."""
        self.num_requests += 1
        is_known = text in self._seen_prompts and not self.faults.forgets_prefixes
        self._seen_prompts.add(text)
        cached = len(text) - 1 if is_known else 0
        self.num_prefix_queries += len(text)
        self.num_prefix_hits += cached
        generator = random.Random(f"{self.seed} {body.get('seed', self.num_requests)} {zlib.crc32(text.encode())}")
        is_unsteady = random.Random(f"{self.seed} {self.num_requests}").random() < self.faults.unsteady
        said = ""
        rounds: list[tuple[int, int]] = []
        while len(said) < max_tokens:
            room = max_tokens - len(said) - 1
            num_drafts = 0 if not said or self.faults.never_drafts else min(self.num_draft_tokens, room)
            num_kept = 0
            for place in range(num_drafts + 1):
                probs = self.probs(text + said)
                ranked = sorted(probs, key=lambda one: -probs[one])
                if body.get("temperature", 1.0):
                    letter = self._draw(generator, ranked, probs, is_drafted=num_drafts > 0)
                else:
                    is_wrong = num_drafts > 0 and self._errs(text + said)
                    letter = ranked[1] if is_unsteady or is_wrong else ranked[0]
                is_right = letter == ranked[0] and _is_guessed(text + said) and not self._has_collapsed(text, said)
                said += letter
                if place == num_drafts or not is_right:
                    break
                num_kept += 1
            if num_drafts:
                rounds.append((num_drafts, num_kept))
        drafted, accepted = sum(one for one, _ in rounds), sum(kept for _, kept in rounds)
        self.num_rounds += len(rounds)
        self.num_drafted += drafted
        self.num_accepted += accepted
        return said, drafted, accepted, cached

    def _has_collapsed(self, text: str, said: str) -> bool:
        after, past = self.faults.collapses_after, self.faults.collapses_past
        return (after is not None and len(said) >= after) or (past is not None and len(text) + len(said) >= past)

    def _errs(self, text: str) -> bool:
        return zlib.crc32(f"wrong {text}".encode()) % 1000 < 1000 * self.faults.greedy_error_rate

    def _draw(self, generator: random.Random, ranked: list[str], probs: dict[str, float], *, is_drafted: bool) -> str:
        weights = [probs[letter] for letter in ranked]
        if self.faults.sharpens:
            weights = [weight * weight for weight in weights]
        if is_drafted and self.faults.sampling_bias:
            rest = (1 - weights[0] - self.faults.sampling_bias) / (1 - weights[0])
            weights = [weights[0] + self.faults.sampling_bias, *(weight * rest for weight in weights[1:])]
        return generator.choices(ranked, weights)[0]

    def _entries(self, text: str, said: str, num_top: int) -> list[Json]:
        """Return the log-probabilities of an answer, as llama.cpp writes them."""
        entries = []
        for index, letter in enumerate(said):
            probs = self.probs(text + said[:index])
            ranked = sorted(probs, key=lambda one: -probs[one])[:num_top]
            entries.append(_entry(letter, probs) | {"top_logprobs": [_entry(one, probs) for one in ranked]})
        return entries

    def _metrics(self) -> str:
        prefix = {"vllm": "vllm:", "llamacpp": "llamacpp:"}.get(self.engine, "")
        figures = {
            f"{prefix}spec_decode_num_drafts_total": self.num_rounds,
            f"{prefix}spec_decode_num_draft_tokens_total": self.num_drafted,
            f"{prefix}spec_decode_num_accepted_tokens_total": self.num_accepted,
        }
        if self.engine == "vllm":
            figures |= {
                "vllm:prefix_cache_queries_total": self.num_prefix_queries,
                "vllm:prefix_cache_hits_total": self.num_prefix_hits,
            }
        return "".join(f"{name} {value}\n" for name, value in figures.items())


def _is_guessed(text: str) -> bool:
    """True if the drafter proposes the most likely letter; else it proposes one that nobody says."""
    return zlib.crc32(f"guess {text[-7:]}".encode()) % 100 < 85


def _text(prompt: str | list[int]) -> str:
    return prompt if isinstance(prompt, str) else "".join(map(chr, prompt))


def _entry(letter: str, probs: dict[str, float]) -> Json:
    return {"id": ord(letter), "token": letter, "logprob": math.log(probs[letter]) if letter in probs else _LOG_ZERO}


def _named(entry: Json, as_ids: bool | None) -> str:
    return f"token_id:{entry['id']}" if as_ids else str(entry["token"])
