"""A server whose distribution is known and whose faults are planted, to test what is to find them.

It speaks like vLLM, like SGLang, like llama.cpp's server, or only what OpenAI described. Its language has six letters;
how likely each is depends on the two before it. It drafts the most likely letter for most places of a round and keeps
what agrees with the draw, so its counters tell the truth about what it says.

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
TIES = ((0.46, 0.44, 0.04, 0.03, 0.02, 0.01), *_SHAPES[1:])
"""Places with these are near-ties, 0.04 nat apart, one in four."""
Engine = Literal["vllm", "sglang", "llamacpp", "openai"]


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
    loses_drafts_behind_known: bool = False
    """Behind a prompt that it has seen, no draft is kept."""
    tips_ties: bool = False
    """No fault: where two letters are nearly tied, the verify pass says the other one."""
    sharpens: bool = False
    """First letters too are drawn from the squared distribution: what it tells is not what it draws from."""


@dataclass
class _Answer:
    """What is said, and what was drafted for it."""

    num_cached: int
    """Letters of the prompt that were known."""
    said: str = ""
    num_passes: int = 0
    num_rounds: int = 0
    num_drafted: int = 0
    num_accepted: int = 0


@dataclass
class ScriptedServer:
    """An OpenAI-compatible server in this process."""

    faults: Faults = field(default_factory=Faults)
    engine: Engine = "vllm"
    shapes: tuple[tuple[float, ...], ...] = _SHAPES
    """How likely the letters of a place are, best first; each place has one of these."""
    stop: str = ""
    """A letter that ends an answer; shown where token ids are, as engines do."""
    merged: str = ""
    """Two letters that a text's tokenizer takes for one token, which the model never says itself."""
    num_draft_tokens: int = 4
    tells_logprobs: bool = True
    only_chats: bool = False
    seed: int = 0
    num_requests: int = 0
    num_rounds: int = 0
    num_passes: int = 0
    """After prompts, with drafts or without."""
    num_said: int = 0
    num_drafted: int = 0
    num_accepted: int = 0
    num_prefix_queries: int = 0
    num_prefix_hits: int = 0
    _probs: dict[str, dict[str, float]] = field(default_factory=dict)
    _seen_prompts: set[str] = field(default_factory=set)

    def transport(self) -> httpx.MockTransport:
        """Return what a client of httpx talks to instead of a network."""
        return httpx.MockTransport(self._handle)

    def probs(self, text: str) -> dict[str, float]:
        """Return how likely each letter is after a text."""
        end = text[-2:]
        if end not in self._probs:
            number = zlib.crc32(f"{self.seed} {end}".encode())
            letters = random.Random(number).sample(LETTERS, len(LETTERS))
            self._probs[end] = dict(zip(letters, self.shapes[number % len(self.shapes)], strict=True))
        return self._probs[end]

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
        if self.engine == "sglang":
            return self._sglang(path, body)
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
        answer = self._answer(text, body["n_predict"], body)
        entries = self._entries(text, answer.said, body.get("n_probs", 0))
        if answer.num_drafted:  # This engine does not compute the log-probabilities of rounds with drafts.
            entries[1:] = [entry | {"logprob": 0.0, "top_logprobs": []} for entry in entries[1:]]
        timings = {"cache_n": answer.num_cached, "prompt_n": len(text) - answer.num_cached}
        drafts = {"draft_n": answer.num_drafted, "draft_n_accepted": answer.num_accepted}
        return {
            "content": self._visible(answer.said),
            "tokens": [ord(letter) for letter in answer.said],
            "completion_probabilities": entries,
            "stop_type": "eos" if self._is_ended(answer.said) else "limit",
            "tokens_predicted": len(answer.said),
            "timings": timings | (drafts if answer.num_drafted else {}),
        }

    def _sglang(self, path: str, body: Json) -> Json | None:
        if path == "/server_info":
            return {"version": "0.5.23", "speculative_algorithm": "DFLASH", "context_length": 8192}
        if path == "/tokenize":
            return self._tokenized(body)
        if path != "/generate":
            return None
        text = body["text"] if "text" in body else _text(body["input_ids"])
        sampling = body["sampling_params"]
        asked = {"temperature": sampling["temperature"], "seed": sampling.get("sampling_seed", self.num_requests)}
        answer = self._answer(text, sampling["max_new_tokens"], asked)
        meta: Json = {
            "finish_reason": {"type": self._finish(answer.said)},
            "completion_tokens": len(answer.said),
            "prompt_tokens": len(text),
            "cached_tokens": answer.num_cached,
        }
        if not self.faults.never_drafts:
            meta |= {
                "spec_verify_ct": answer.num_passes,
                "spec_num_proposed_drafts": answer.num_drafted,
                "spec_num_correct_drafts": answer.num_accepted,
            }
        if body.get("return_logprob") and self.tells_logprobs:
            entries = self._entries(text, answer.said, body["top_logprobs_num"])
            meta["output_token_logprobs"] = [_triple(entry) for entry in entries]
            meta["output_top_logprobs"] = [[_triple(one) for one in entry["top_logprobs"]] for entry in entries]
        ids = [ord(letter) for letter in answer.said]
        return {"text": self._visible(answer.said), "output_ids": ids, "meta_info": meta}

    def _completions(self, body: Json) -> Json:
        text = _text(body["prompt"])
        if self.merged and isinstance(body["prompt"], str):
            text = text.replace(self.merged, "_")
        answer = self._answer(text, body["max_tokens"], body)
        # Without token ids, what ends an answer is not among its tokens.
        said = answer.said if self.engine == "vllm" else self._visible(answer.said)
        choice = {"index": 0, "text": self._visible(said), "finish_reason": self._finish(answer.said)}
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
        return {"choices": [choice], "usage": self._usage(text, answer)}

    def _chat(self, body: Json) -> Json:
        text = f"{body['messages'][-1]['content']}\n"
        answer = self._answer(text, body["max_tokens"], body)
        said = self._visible(answer.said)
        choice: Json = {"message": {"role": "assistant", "content": said}, "finish_reason": self._finish(answer.said)}
        if body.get("logprobs") and self.tells_logprobs:
            entries = self._entries(text, said, body.get("top_logprobs", 0))
            for entry in entries:  # no ids, as OpenAI described it
                for token in (entry, *entry["top_logprobs"]):
                    del token["id"]
            choice["logprobs"] = {"content": entries}
        return {"choices": [choice], "usage": self._usage(text, answer)}

    def _is_ended(self, said: str) -> bool:
        return bool(self.stop) and said.endswith(self.stop)

    def _finish(self, said: str) -> str:
        return "stop" if self._is_ended(said) else "length"

    def _visible(self, said: str) -> str:
        return said[:-1] if self._is_ended(said) else said

    def _tokenized(self, body: Json) -> Json | None:
        messages = body.get("messages")
        return {"tokens": [ord(letter) for letter in f"{messages[0]['content']}\n"]} if messages else None

    def _usage(self, text: str, answer: _Answer) -> Json:
        return {
            "prompt_tokens": len(text),
            "completion_tokens": len(answer.said),
            "prompt_tokens_details": {"cached_tokens": answer.num_cached},
        }

    def _answer(self, text: str, max_tokens: int, body: Json) -> _Answer:
        self.num_requests += 1
        is_known = text in self._seen_prompts
        self._seen_prompts.add(text)
        generator = random.Random(f"{self.seed} {body.get('seed', self.num_requests)} {zlib.crc32(text.encode())}")
        is_unsteady = random.Random(f"{self.seed} {self.num_requests}").random() < self.faults.unsteady
        is_greedy = not body.get("temperature", 1.0)
        is_lost = is_known and self.faults.loses_drafts_behind_known
        answer = _Answer(num_cached=len(text) - 1 if is_known and not self.faults.forgets_prefixes else 0)
        while len(answer.said) < max_tokens and not self._is_ended(answer.said):
            room = max_tokens - len(answer.said) - 1
            num_drafts = 0 if not answer.said or self.faults.never_drafts else min(self.num_draft_tokens, room)
            answer.num_passes += bool(answer.said)
            num_kept = 0
            for place in range(num_drafts + 1):
                so_far = text + answer.said
                probs = self.probs(so_far)
                ranked = sorted(probs, key=lambda one: -probs[one])
                if is_greedy:
                    letter = ranked[1] if is_unsteady or (num_drafts and self._errs(so_far, probs)) else ranked[0]
                else:
                    letter = self._draw(generator, ranked, probs, is_drafted=num_drafts > 0)
                is_kept = letter == ranked[0] and _is_guessed(so_far) and not self._has_collapsed(text, answer.said)
                answer.said += letter
                if place == num_drafts or is_lost or not is_kept or letter == self.stop:
                    break
                num_kept += 1
            answer.num_rounds += bool(num_drafts)
            answer.num_drafted += num_drafts
            answer.num_accepted += num_kept
        self._count(text, answer)
        return answer

    def _count(self, text: str, answer: _Answer) -> None:
        self.num_said += len(answer.said)
        self.num_passes += answer.num_passes
        self.num_rounds += answer.num_rounds
        self.num_drafted += answer.num_drafted
        self.num_accepted += answer.num_accepted
        self.num_prefix_queries += len(text)
        self.num_prefix_hits += answer.num_cached

    def _has_collapsed(self, text: str, said: str) -> bool:
        after, past = self.faults.collapses_after, self.faults.collapses_past
        return (after is not None and len(said) >= after) or (past is not None and len(text) + len(said) >= past)

    def _errs(self, text: str, probs: dict[str, float]) -> bool:
        best, second = sorted(probs.values(), reverse=True)[:2]
        if self.faults.tips_ties and math.log(best / second) < 0.1:
            return True
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
        if self.engine == "sglang":
            figures = {"sglang:generation_tokens_total": self.num_said, "sglang:num_requests_total": self.num_requests}
            if not self.faults.never_drafts:
                figures["sglang:spec_verify_calls_total"] = self.num_passes
        else:
            figures = {
                f"{self.engine}:spec_decode_num_drafts_total": self.num_rounds,
                f"{self.engine}:spec_decode_num_draft_tokens_total": self.num_drafted,
                f"{self.engine}:spec_decode_num_accepted_tokens_total": self.num_accepted,
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
    return {"id": ord(letter), "token": letter, "logprob": math.log(probs[letter])}


def _triple(entry: Json) -> tuple[float, int, str]:
    return entry["logprob"], entry["id"], entry["token"]


def _named(entry: Json, as_ids: bool | None) -> str:
    return f"token_id:{entry['id']}" if as_ids else str(entry["token"])
