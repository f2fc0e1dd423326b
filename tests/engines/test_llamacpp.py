"""Exported GGUF drafters in llama.cpp's server keep as much as in our engine, at the same draft length."""

import json
import urllib.request
from collections.abc import Sequence
from pathlib import Path

import pytest
from measure import MAX_TOKENS, Acceptance, check_equal, measure_own, prompts_of

from blockdraft.drafters.draft_checkpoint import open_draft_checkpoint
from blockdraft.train.export import export_drafter

xllamacpp = pytest.importorskip("xllamacpp")

pytestmark = [pytest.mark.engines, pytest.mark.slow, pytest.mark.network]

NUM_DRAFTS = 7


class Server:
    """llama.cpp's server in this process, with a target and a drafter, one slot and one thread."""

    def __init__(self, target: Path, drafter: Path, kind: str, num_drafts: int) -> None:
        params = xllamacpp.CommonParams()
        params.model.path = str(target)
        params.n_ctx = 2048
        params.n_parallel = 1
        params.port = 0
        params.warmup = False
        params.verbosity = 0
        params.endpoint_metrics = True
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
        types = xllamacpp.common_speculative_type
        params.speculative.types = [getattr(types, f"COMMON_SPECULATIVE_TYPE_{kind.upper().replace('-', '_')}")]
        draft = params.speculative.draft
        draft.mparams.path = str(drafter)
        draft.n_max = num_drafts
        draft.cpuparams.n_threads = draft.cpuparams_batch.n_threads = 1
        self._server = xllamacpp.Server(params)

    def answer(self, prompt_ids: Sequence[int]) -> None:
        body = {"prompt": list(prompt_ids), "n_predict": MAX_TOKENS, "temperature": 0, "cache_prompt": False}
        self._open("/completion", json.dumps(body).encode())

    def acceptance(self) -> Acceptance:
        counters = {}
        for line in self._open("/metrics").splitlines():
            if line.startswith("llamacpp:spec_decode_num_") and "{" not in line:
                name, value = line.split()
                counters[name.removeprefix("llamacpp:spec_decode_num_")] = int(float(value))
        return Acceptance(
            num_rounds=counters["drafts_total"],
            num_drafted=counters["draft_tokens_total"],
            num_accepted=counters["accepted_tokens_total"],
        )

    def _open(self, route: str, body: bytes | None = None) -> str:
        request = urllib.request.Request(
            self._server.listening_address + route, body, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=300) as response:
            return response.read().decode()


@pytest.mark.parametrize("method", ["dflash", "dspark"])
def test_as_much_is_accepted_as_in_our_engine(method, target, bf16_gguf, own_engine, request, tmp_path) -> None:  # noqa: PLR0917
    drafter = request.getfixturevalue(method)
    num_drafts = min(NUM_DRAFTS, open_draft_checkpoint(drafter).config.max_draft_tokens)
    exported = export_drafter(drafter, target, "gguf", tmp_path / "gguf").path
    engine = own_engine(exported, num_drafts)
    prompts = prompts_of(engine)
    ours = measure_own(engine, prompts)
    server = Server(bf16_gguf, exported, f"draft-{method}", num_drafts)
    for prompt_ids in prompts:
        server.answer(prompt_ids)
    check_equal(f"llama.cpp, {method}", ours, server.acceptance())
