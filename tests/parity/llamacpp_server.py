"""A llama.cpp server inside the process, through the `xllamacpp` package."""

import json
import urllib.request
from pathlib import Path
from typing import Any

import xllamacpp


class LlamaCpp:
    """Serves one GGUF file on a free port, with one thread and one slot."""

    def __init__(self, path: Path, *, context_length: int = 64, is_exact: bool = False) -> None:
        """`is_exact` keeps keys and values in float32 and leaves flash attention off."""
        params = xllamacpp.CommonParams()
        params.model.path = str(path)
        params.n_ctx = context_length
        params.n_parallel = 1
        params.port = 0
        params.warmup = False
        params.verbosity = 0
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
        if is_exact:
            params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
            params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
        self.server = xllamacpp.Server(params)

    def post(self, route: str, **body: object) -> dict[str, Any]:
        request = urllib.request.Request(
            self.server.listening_address + route, json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=120) as response:
            return json.load(response)

    def tokenize(self, text: str, *, add_special: bool) -> list[int]:
        return self.post("/tokenize", content=text, add_special=add_special, parse_special=True)["tokens"]
