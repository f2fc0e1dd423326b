"""Engines are told apart by what only they have; what they say about drafts is taken down."""

import asyncio
from typing import Any

import httpx
import pytest

from blockdraft.bench.endpoint.connection import Connection
from blockdraft.bench.endpoint.engines import ServedEngine, recognise

VLLM_METRICS = 'vllm:spec_decode_num_drafts_total{engine="0"} 3\n'


def look(routes: dict[str, Any]) -> ServedEngine:
    def answer(request: httpx.Request) -> httpx.Response:
        found = routes.get(request.url.path)
        if found is None:
            return httpx.Response(404, json={"error": {"message": "no"}})
        return httpx.Response(200, text=found) if isinstance(found, str) else httpx.Response(200, json=found)

    async def run() -> ServedEngine:
        async with Connection("http://here/v1", transport=httpx.MockTransport(answer)) as connection:
            return await recognise(connection)

    return asyncio.run(run())


def models(**fields: Any) -> dict[str, Any]:
    return {"data": [{"id": "m", **fields}]}


PROPS = {
    "default_generation_settings": {"n_ctx": 2048, "params": {"speculative.types": "none"}},
    "total_slots": 2,
    "build_info": "b9999",
}
SLOT = {"id": 0, "speculative": True, "params": {"speculative.types": "none,ngram-mod,draft-dflash"}}

CASES = {
    "llama.cpp that drafts": (
        {"/v1/models": models(), "/props": PROPS, "/slots": [SLOT], "/metrics": "llamacpp:n_decode_total 1\n"},
        ("llamacpp", "b9999", 2048, True, "ngram-mod,draft-dflash", True),
    ),
    "llama.cpp without slots": (
        {"/v1/models": models(), "/props": PROPS},
        ("llamacpp", "b9999", 2048, None, None, False),
    ),
    "vLLM that drafts": (
        {
            "/v1/models": models(owned_by="vllm", max_model_len=4096),
            "/version": {"version": "0.33.0"},
            "/metrics": VLLM_METRICS,
        },
        ("vllm", "0.33.0", 4096, True, None, True),
    ),
    "vLLM without a drafter": (
        {"/v1/models": models(owned_by="vllm"), "/metrics": "vllm:num_requests_running 0\n"},
        ("vllm", None, None, False, None, True),
    ),
    "SGLang that drafts": (
        {
            "/v1/models": models(owned_by="sglang", max_model_len=100),
            "/server_info": {"version": "0.5.23", "speculative_algorithm": "DFLASH", "context_length": 8192},
        },
        ("sglang", "0.5.23", 8192, True, "DFLASH", False),
    ),
    "SGLang of old, plain": (
        {"/v1/models": models(), "/get_server_info": {"version": "0.5.9", "speculative_algorithm": None}},
        ("sglang", "0.5.9", None, False, None, False),
    ),
    "something else": ({"/v1/models": models()}, ("unknown", None, None, None, None, False)),
}


@pytest.mark.parametrize(("routes", "expected"), CASES.values(), ids=CASES.keys())
def test_an_engine_is_recognised(routes: dict[str, Any], expected: tuple[Any, ...]) -> None:
    found = look(routes)
    figures = (found.engine, found.version, found.context_length, found.speculates, found.method, found.has_metrics)
    assert figures == expected
    assert found.to_dict()["model"] == "m"
