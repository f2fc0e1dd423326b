from collections.abc import Callable
from typing import Any

import pytest

from blockdraft.engine import Engine
from blockdraft.models.base import Target
from blockdraft.models.load import load_model
from blockdraft.models.tokenizer import Tokenizer
from blockdraft.testing.scripted import ScriptedDrafter
from blockdraft.testing.tiny_gguf import write_tiny_gguf


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Target, Tokenizer]:
    """A tiny random model of 272 tokens, most of them single bytes, and its tokenizer."""
    path = write_tiny_gguf(tmp_path_factory.mktemp("tiny") / "tiny.gguf", quant="F32", max_position_embeddings=256)
    loaded = load_model(str(path), device="cpu", dtype="float32")
    assert loaded.tokenizer is not None
    return loaded.target, loaded.tokenizer


@pytest.fixture(scope="session")
def plain(model: tuple[Target, Tokenizer]) -> Engine:
    return Engine(*model)


@pytest.fixture
def scripted(plain: Engine) -> Callable[..., Engine]:
    """An engine whose drafter knows the plain answers to some prompts; options as in ScriptedDrafter."""

    def make(*prompts: tuple[int, ...], num_known: int = 40, **options: Any) -> Engine:
        known = {prompt: plain.generate(prompt, max_tokens=num_known, ignore_eos=True).token_ids for prompt in prompts}
        drafter = ScriptedDrafter(known, vocab_size=plain.target.info.vocab_size, **options)
        return Engine(plain.target, plain.tokenizer, drafter)

    return make
