"""Tiny random GGUF files with a tokenizer, from which a whole engine can run.

The weights are those of `tiny_models` for the same family, seed and overrides, in any type that the `gguf`
package can quantise. The vocabulary is byte-level BPE: three special tokens, the 256 bytes, a few merges.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf.quants import quantize
from numpy.typing import NDArray
from tokenizers.pre_tokenizers import ByteLevel
from torch import Tensor

from blockdraft.models.families import FAMILIES
from blockdraft.testing.tiny_models import tiny_config, tiny_tensors

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MERGES = ("h e", "l l", "he ll", "hell o", "Ġ w", "o r", "Ġw or", "Ġwor l", "Ġworl d", "Ġ t", "Ġt he", "i n", "Ġ a")
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

_WIDTHS: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 96, "head_dim": 16, "moe_intermediate_size": 32}
"""Multiples of 32, the block of the simple quantisations."""


def tiny_vocabulary() -> list[str]:
    """Return the tokens of every tiny GGUF file, in the order of their ids."""
    return [*SPECIAL_TOKENS, *sorted(ByteLevel.alphabet()), *(merge.replace(" ", "") for merge in MERGES)]


def tiny_gguf_config(family: str = "llama", **overrides: Any) -> dict[str, Any]:
    """Return the config.json that corresponds to a tiny GGUF file."""
    return tiny_config(family, **{**_WIDTHS, "vocab_size": len(tiny_vocabulary()), **overrides})


def write_tiny_gguf(
    path: Path,
    family: str = "llama",
    quant: str = "Q8_0",
    seed: int = 0,
    *,
    extra: Mapping[str, NDArray[np.float32]] | None = None,
    **overrides: Any,
) -> Path:
    """Write a GGUF file with matrices in the type `quant` ("F32", "Q4_1", ...); return its path.

    `overrides` are keys of config.json; `extra` are more tensors to store, in float32. Types with blocks of
    256 need widths that are multiples of it.
    """
    config = tiny_gguf_config(family, **overrides)
    (architecture,) = FAMILIES[family].gguf_architectures
    writer = gguf.GGUFWriter(path, architecture)
    _add_sizes(writer, config)
    _add_tokenizer(writer)
    kind = gguf.GGMLQuantizationType[quant]
    for name, tensor in gguf_tensors(config, seed).items():
        used = kind if tensor.ndim > 1 else gguf.GGMLQuantizationType.F32
        writer.add_tensor(name, quantize(tensor.numpy(), used), raw_dtype=used)
    for name, values in (extra or {}).items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def gguf_tensors(config: dict[str, Any], seed: int = 0) -> dict[str, Tensor]:
    """Return the weights of a tiny model as a GGUF file holds them: its names, its order of rows, stacked experts."""
    family = FAMILIES[config["model_type"]]
    names = {hf_name: gguf_name for gguf_name, hf_name in family.gguf_names.items()}
    grouped: dict[str, list[Tensor]] = {}
    for hf_name, tensor in tiny_tensors(config, seed).items():
        parts = hf_name.split(".")
        layer = parts[2] if hf_name.startswith("model.layers.") else ""
        if layer:
            parts[2] = "{i}"
        if "experts" in parts:
            del parts[parts.index("experts") + 1]
        grouped.setdefault(names[".".join(parts)].replace("{i}", layer), []).append(tensor)
    stored = {
        name: torch.stack(tensors) if name.endswith("_exps.weight") else tensors[0] for name, tensors in grouped.items()
    }
    if not family.gguf_interleaves_rope:
        return stored
    rotated = (".attn_q.weight", ".attn_k.weight", ".attn_q.bias", ".attn_k.bias")
    return {
        name: interleave_rope(tensor, config["head_dim"]) if name.endswith(rotated) else tensor
        for name, tensor in stored.items()
    }


def interleave_rope(rows: Tensor, head_dim: int) -> Tensor:
    """Reorder the rows of each head from halves (i, i + H/2) to pairs (2i, 2i + 1).

    Shapes: rows [N * H, ...]; returns the same.
    """
    halves = rows.view(-1, 2, head_dim // 2, *rows.shape[1:])
    return halves.transpose(1, 2).reshape(rows.shape).contiguous()


def _add_sizes(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    writer.add_name(f"tiny {config['model_type']}")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    if "num_experts" in config:
        writer.add_expert_count(config["num_experts"])
        writer.add_expert_used_count(config["num_experts_per_tok"])
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])


def _add_tokenizer(writer: gguf.GGUFWriter) -> None:
    tokens = tiny_vocabulary()
    kinds = np.full(len(tokens), gguf.TokenType.NORMAL)
    kinds[: len(SPECIAL_TOKENS)] = gguf.TokenType.CONTROL
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds.tolist())
    writer.add_token_merges(list(MERGES))
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)
