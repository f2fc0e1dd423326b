"""Our decoders against transformers' own classes, on checkpoints that transformers wrote."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from blockdraft.models.base import Segment
from blockdraft.models.config import RopeConfig
from blockdraft.models.decoder import Decoder
from blockdraft.models.layers.rope import rope_frequencies
from blockdraft.models.load import load_target

SIZES: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,
}
MOE = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 1e6,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 5e5,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama, tied, biases everywhere": (
        "llama",
        {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True},
    ),
    "llama, wide heads, llama3 rope": ("llama", {"head_dim": 20, "rope_parameters": LLAMA3}),
    "qwen2": ("qwen2", {"tie_word_embeddings": True}),
    "qwen2, sliding window in upper layers": (
        "qwen2",
        {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 2},
    ),
    "qwen3": ("qwen3", {"head_dim": 16}),
    "qwen3, yarn rope, biases": ("qwen3", {"head_dim": 16, "rope_parameters": YARN, "attention_bias": True}),
    "qwen3_moe": ("qwen3_moe", {"head_dim": 16, **MOE, "norm_topk_prob": True, "mlp_only_layers": [2]}),
    "qwen3_moe, every other layer, raw weights": (
        "qwen3_moe",
        {"head_dim": 16, **MOE, "norm_topk_prob": False, "decoder_sparse_step": 2},
    ),
    "qwen3_moe, one window": ("qwen3_moe", {"head_dim": 16, **MOE, "use_sliding_window": True, "sliding_window": 6}),
}


def build(model_type: str, options: dict[str, Any], folder: Path) -> tuple[Any, Decoder]:
    """Return a random transformers model, and ours loaded from what it saved."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(model_type, **{**SIZES, **options})
    reference = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for name, parameter in reference.named_parameters():
            if name.endswith("bias") or "norm" in name:
                parameter.add_(0.1 * torch.randn_like(parameter))  # they start at 0 and 1, which hides mistakes
    reference.save_pretrained(folder)
    ours = load_target(folder, device="cpu", dtype="float32")
    assert isinstance(ours, Decoder)
    return reference, ours


@torch.no_grad()
def reference_states(reference: Any, token_ids: list[int]) -> tuple[Tensor, Tensor]:
    """Return logits [T, V] and all layers' outputs [T, L*D], taken by hooks: the last is before the final norm."""
    outputs: list[Tensor] = []
    hooks = [
        layer.register_forward_hook(lambda module, inputs, output: outputs.append(output[0]))
        for layer in reference.model.layers
    ]
    logits = reference(torch.tensor([token_ids])).logits[0]
    for hook in hooks:
        hook.remove()
    return logits, torch.cat([output.view(len(token_ids), -1) for output in outputs], dim=-1)


def random_ids(count: int, seed: int) -> list[int]:
    return torch.randint(0, SIZES["vocab_size"], (count,), generator=torch.Generator().manual_seed(seed)).tolist()


def close(actual: Tensor | None, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=5e-5)


@pytest.mark.parametrize("case", CASES)
def test_logits_and_hidden_states_equal_transformers(case: str, tmp_path: Path) -> None:
    """Prefill, rows added later, two sequences in one pass, a rollback and other rows after it."""
    reference, ours = build(*CASES[case], tmp_path)
    layers = range(ours.info.num_layers)
    a, b = random_ids(40, seed=1), random_ids(23, seed=2)
    a_logits, a_hidden = reference_states(reference, a)
    b_logits, b_hidden = reference_states(reference, b)

    a_cache, b_cache = ours.new_cache(), ours.new_cache()
    prefill = ours.forward([Segment(token_ids=a[:25], cache=a_cache, num_logits=25)], layers)
    close(prefill.logits, a_logits[:25])
    close(prefill.target_hidden, a_hidden[:25])

    packed = ours.forward(
        [
            Segment(token_ids=b[:17], cache=b_cache, num_logits=2),
            Segment(token_ids=a[25:33], cache=a_cache, num_logits=8),
        ],
        layers,
    )
    close(packed.logits, torch.cat((b_logits[15:17], a_logits[25:33])))
    close(packed.target_hidden, torch.cat((b_hidden[:17], a_hidden[25:33])))

    other = a[:30] + random_ids(6, seed=3)
    other_logits, other_hidden = reference_states(reference, other)
    a_cache.rollback(30)
    again = ours.forward(
        [
            Segment(token_ids=other[30:], cache=a_cache, num_logits=6),
            Segment(token_ids=b[17:18], cache=b_cache, num_logits=1),
        ],
        [3, 0],
    )
    close(again.logits, torch.cat((other_logits[30:], b_logits[17:18])))
    width = ours.info.hidden_size
    expected = torch.cat((other_hidden[30:], b_hidden[17:18]))
    close(again.target_hidden, torch.cat((expected[:, 3 * width :], expected[:, :width]), dim=-1))


def test_the_parameter_count_is_that_of_transformers(tmp_path: Path) -> None:
    for case in ("llama, tied, biases everywhere", "qwen3", "qwen3_moe"):
        reference, ours = build(*CASES[case], tmp_path / case.replace(" ", "_"))
        assert ours.info.num_parameters == sum(parameter.numel() for parameter in reference.parameters())
        assert ours.info.weight_bytes == 4 * ours.info.num_parameters


def test_experts_load_from_fused_and_from_single_tensors(tmp_path: Path) -> None:
    reference, ours = build(*CASES["qwen3_moe"], tmp_path)
    single = load_file(tmp_path / "model.safetensors")
    fused = {name: tensor.clone() for name, tensor in reference.state_dict().items()}
    name = "model.layers.0.mlp.experts.gate_up_proj"
    assert name in fused, "this test wants the fused layout"
    assert name not in single, "and the one of single experts"
    save_file(fused, tmp_path / "model.safetensors")
    other = load_target(tmp_path, device="cpu", dtype="float32")
    ids = random_ids(12, seed=4)
    logits = [
        target.forward([Segment(token_ids=ids, cache=target.new_cache(), num_logits=12)]).logits
        for target in (ours, other)
    ]
    torch.testing.assert_close(logits[0], logits[1], rtol=0, atol=0)


ROPES: dict[str, dict[str, Any]] = {
    "linear": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0},
    "llama3": LLAMA3,
    "llama3, other bounds": {**LLAMA3, "low_freq_factor": 2.0, "high_freq_factor": 9.0, "factor": 32.0},
    "yarn": YARN,
    "yarn, not truncated": {**YARN, "truncate": False, "beta_fast": 16.0, "beta_slow": 2.0},
    "yarn, factor on cos and sin": {**YARN, "attention_factor": 0.7},
    "yarn, two magnitudes": {**YARN, "mscale": 0.8, "mscale_all_dim": 1.2},
}


@pytest.mark.parametrize("name", ROPES)
@pytest.mark.parametrize("head_dim", [12, 64])
def test_rope_frequencies_equal_transformers(name: str, head_dim: int) -> None:
    config = AutoConfig.for_model("llama", **SIZES, head_dim=head_dim, rope_parameters=dict(ROPES[name]))
    inverse, factor = ROPE_INIT_FUNCTIONS[ROPES[name]["rope_type"]](config, torch.device("cpu"))
    ours, our_factor = rope_frequencies(RopeConfig.from_hf(config.to_dict(), head_dim))
    torch.testing.assert_close(ours, inverse, rtol=1e-6, atol=0)
    assert our_factor == pytest.approx(factor)
