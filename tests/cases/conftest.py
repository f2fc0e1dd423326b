"""What the cases share: a tiny random model with a tokenizer, its plain answers, and drafters that know them."""

import math
from collections.abc import Callable
from typing import Any

import pytest

from blockdraft.core.sampling import SamplingParams
from blockdraft.engine import Engine
from blockdraft.models.load import load_model
from blockdraft.testing.scripted import ScriptedDrafter
from blockdraft.testing.tiny_gguf import write_tiny_gguf


@pytest.fixture(scope="session", params=["torch", pytest.param("native", marks=pytest.mark.native)])
def plain(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Engine:
    """Plain decoding on a model of 272 tokens, most of them single bytes, on each runtime."""
    path = tmp_path_factory.mktemp("tiny") / "tiny.gguf"
    write_tiny_gguf(path, quant="F32", max_position_embeddings=256, head_dim=32)
    dtype = "float32" if request.param == "torch" else "auto"
    loaded = load_model(str(path), device="cpu", dtype=dtype, runtime=request.param)
    return Engine(loaded.target, loaded.tokenizer)


@pytest.fixture(scope="session")
def readable(plain: Engine) -> SamplingParams:
    """Sampling that gives varied text of printable ASCII characters."""
    pieces = {token_id: plain.tokenizer.token_bytes(token_id) for token_id in range(plain.target.info.vocab_size)}
    allowed = {token_id for token_id, piece in pieces.items() if piece.isascii() and piece.decode().isprintable()}
    allowed -= plain.tokenizer.special_ids
    return SamplingParams(temperature=1.0, seed=11, logit_bias=dict.fromkeys(pieces.keys() - allowed, -math.inf))


@pytest.fixture
def knowing(plain: Engine) -> Callable[..., Engine]:
    """An engine whose drafter knows what plain decoding answers under the same options.

    `num_drafts` and the like are for ScriptedDrafter, `spec` is for the engine, all others are for `generate`.
    """
    scripted = {"num_drafts", "num_right", "draft_probs", "confidence", "target_layer_ids", "max_draft_tokens"}

    def make(*prompts: tuple[int, ...], spec: Any = None, **options: Any) -> Engine:
        script = {name: options.pop(name) for name in scripted & options.keys()}
        options = {"max_tokens": 40, "ignore_eos": True} | options
        known = {prompt: plain.generate(prompt, **options).token_ids for prompt in prompts}
        drafter = ScriptedDrafter(known, vocab_size=plain.target.info.vocab_size, **script)
        return Engine(plain.target, plain.tokenizer, drafter, spec=spec)

    return make
