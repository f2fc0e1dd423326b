"""After rollback(n), a target continues as if it had only ever seen the first n tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from blockdraft.errors import UnsupportedModelError
from blockdraft.models.base import Segment, Target
from blockdraft.models.transformers_adapter import TransformersTarget
from blockdraft.testing.tiny_models import tiny_packed_target, tiny_target

SIZES: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "initializer_range": 0.2,
}


def generic(model_type: str, **options: Any) -> TransformersTarget:
    torch.manual_seed(0)
    config = AutoConfig.for_model(model_type, **{**SIZES, **options})
    return TransformersTarget(AutoModelForCausalLM.from_config(config), stored_as="f32")


TARGETS: dict[str, Callable[[], Target]] = {
    "llama": lambda: tiny_target("llama"),
    "qwen2, sliding": lambda: tiny_target(
        "qwen2", use_sliding_window=True, sliding_window=5, layer_types=["full_attention"] + ["sliding_attention"] * 2
    ),
    "qwen3": lambda: tiny_target("qwen3"),
    "qwen3_moe": lambda: tiny_target("qwen3_moe"),
    "native llama": lambda: tiny_packed_target("llama"),
    "native qwen2, sliding": lambda: tiny_packed_target(
        "qwen2", use_sliding_window=True, sliding_window=5, layer_types=["full_attention"] + ["sliding_attention"] * 2
    ),
    "native qwen3": lambda: tiny_packed_target("qwen3"),
    "transformers: olmo2": lambda: generic("olmo2"),
    "transformers: mistral, sliding": lambda: generic("mistral", sliding_window=5),
    "transformers: gemma2, sliding every other layer": lambda: generic("gemma2", sliding_window=5, head_dim=12),
    "transformers: gpt2": lambda: generic("gpt2"),
}


def marked(names: Iterable[str]) -> list[Any]:
    return [pytest.param(name, marks=pytest.mark.native) if name.startswith("native") else name for name in names]


@cache
def target_of(name: str) -> Target:
    return TARGETS[name]()


def ids(count: int, seed: int) -> list[int]:
    return torch.randint(3, 96, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


def from_scratch(target: Target, token_ids: list[int], num_rows: int) -> tuple[Tensor, Tensor]:
    """Return logits and hidden states of the last rows of a single pass over everything."""
    segment = Segment(token_ids=token_ids, cache=target.new_cache(), num_logits=num_rows)
    output = target.forward([segment], [0, target.info.num_layers - 1])
    assert output.target_hidden is not None
    return output.logits, output.target_hidden[-num_rows:]


@pytest.mark.parametrize("name", marked(TARGETS))
@pytest.mark.parametrize(("kept_a", "kept_b"), [(0, 9), (1, 20), (13, 8), (20, 9), (19, 0)])
def test_two_sequences_continue_as_recomputed(name: str, kept_a: int, kept_b: int) -> None:
    target = target_of(name)
    a, b = ids(20, seed=1), ids(20, seed=2)
    a_cache, b_cache = target.new_cache(), target.new_cache(40)
    target.forward([Segment(token_ids=a[:11], cache=a_cache, num_logits=1)])
    target.forward(
        [
            Segment(token_ids=a[11:], cache=a_cache, num_logits=9),
            Segment(token_ids=b, cache=b_cache, num_logits=0),
        ]
    )
    a_cache.rollback(kept_a)
    b_cache.rollback(kept_b)
    assert (a_cache.length, b_cache.length) == (kept_a, kept_b)

    more_a, more_b = ids(6, seed=3), ids(9, seed=4)
    output = target.forward(
        [
            Segment(token_ids=more_a, cache=a_cache, num_logits=6),
            Segment(token_ids=more_b, cache=b_cache, num_logits=9),
        ],
        [0, target.info.num_layers - 1],
    )
    expected_a = from_scratch(target, a[:kept_a] + more_a, 6)
    expected_b = from_scratch(target, b[:kept_b] + more_b, 9)
    for actual, first, second in zip((output.logits, output.target_hidden), expected_a, expected_b, strict=True):
        torch.testing.assert_close(actual, torch.cat((first, second)), rtol=1e-5, atol=2e-5)
    assert (a_cache.length, b_cache.length) == (kept_a + 6, kept_b + 9)


WINDOWED: dict[str, Callable[[], Target]] = {
    "qwen2, sliding": lambda: tiny_target("qwen2"),
    "native qwen2, sliding": lambda: tiny_packed_target("qwen2"),
    "transformers: mistral, sliding": lambda: generic("mistral", sliding_window=None),
}
"""The same without a window."""


@pytest.mark.parametrize("name", marked(WINDOWED))
def test_a_window_changes_the_result(name: str) -> None:
    """Otherwise the sliding-window cases above would show nothing."""
    token_ids = ids(30, seed=5)
    difference = from_scratch(target_of(name), token_ids, 1)[0] - from_scratch(WINDOWED[name](), token_ids, 1)[0]
    assert difference.abs().max() > 1e-3


@pytest.mark.parametrize(
    ("model_type", "options"),
    [
        ("mamba", {"state_size": 4, "num_hidden_layers": 2}),
        ("qwen3_next", {"layer_types": ["linear_attention", "full_attention", "linear_attention"]}),
        ("lfm2", {"layer_types": ["conv", "full_attention", "conv"]}),
    ],
)
def test_recurrent_state_is_refused(model_type: str, options: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedModelError, match=f"transformers:{model_type}.*cannot forget"):
        generic(model_type, **options)
