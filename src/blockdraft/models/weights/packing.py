"""From stored tensors to the packed network that the native kernels run.

Quantised types that the kernels know are kept as they are stored; all others are rounded to eight bits, group by
group. Rows are only put in another order: q, k and v one below the other, gate and up in turns of 32 rows, and the
interleaved rope of GGUF undone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import torch
from numpy.typing import NDArray

from blockdraft.models.config import DecoderConfig
from blockdraft.models.weights.fill import StoredTensor, match
from blockdraft.models.weights.kept import KeptMatrices
from blockdraft.models.weights.layout import allocate, destinations
from blockdraft.runtime.native_core import MOST_HEADS_OF_A_GROUP, PackedLayer, PackedMatrix, PackedNetwork
from blockdraft.runtime.quantized import GROUP, KEPT_TYPES, UNIT_ROWS, Quantized, from_gguf, quantize, stack


def why_not_packed(config: DecoderConfig) -> str | None:
    """Return what of a model the native kernels do not do, in half a sentence; None if they run it."""
    if config.moe is not None:
        return "they have no experts"
    if config.mlp_bias:
        return "they add no biases in the MLP"
    if reason := why_not_grouped(config.num_heads, config.num_kv_heads):
        return reason
    attention_width = config.num_heads * config.head_dim
    for name, size, step in (
        ("hidden size", config.hidden_size, UNIT_ROWS),
        ("intermediate size", config.intermediate_size, UNIT_ROWS),
        ("head size", config.head_dim, UNIT_ROWS),
        ("attention width", attention_width, GROUP),
        ("rotary size", config.rope.rotary_dim, 2),
    ):
        if size % step:
            return f"its {name} {size} is no multiple of {step}"
    return None


def why_not_grouped(num_heads: int, num_kv_heads: int) -> str | None:
    """Return why the kernels cannot attend with so many heads, in half a sentence; None if they can."""
    if num_heads // num_kv_heads <= MOST_HEADS_OF_A_GROUP:
        return None
    return f"more than {MOST_HEADS_OF_A_GROUP} query heads share a key/value head"


def pack_decoder(
    config: DecoderConfig, stored: list[StoredTensor], kept: KeptMatrices, *, interleaved_rope: bool, source: str
) -> PackedNetwork:
    """Pack the tensors of a decoder, as strictly as `fill` copies them, unless `kept` has them packed.

    Raises:
        CheckpointError: tensors are missing, surplus, or of another shape.
    """
    sizes = allocate(config, torch.float32, torch.device("meta"))
    by_name = match(destinations(sizes, config, {tensor.name for tensor in stored}), stored, source)
    reader = _Reader(by_name, config, interleaved_rope, kept)
    embedding = kept.matrix("embedding", lambda: read_matrix(by_name["model.embed_tokens.weight"]))
    head = embedding
    if not config.tie_embeddings:
        head = kept.matrix("head", lambda: read_matrix(by_name["lm_head.weight"]))
    network = PackedNetwork(
        layers=[reader.layer(index) for index in range(config.num_layers)],
        final_norm=read_vector(by_name["model.norm.weight"]),
        head=head,
        embedding=embedding,
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        rotary_dim=config.rope.rotary_dim,
        norm_eps=config.rms_norm_eps,
    )
    kept.keep()
    return network


def read_matrix(tensor: StoredTensor) -> Quantized:
    """Return a stored matrix in groups."""
    if tensor.raw_rows is not None and tensor.type_name in KEPT_TYPES:
        return from_gguf(tensor.type_name, tensor.raw_rows)
    return quantize(tensor.read_rows(0, tensor.shape[0]).float().numpy())


def read_vector(tensor: StoredTensor) -> NDArray[np.float32]:
    """Return a stored vector."""
    return np.ascontiguousarray(tensor.read_rows(0, tensor.shape[0]).float().numpy())


def interleave(gate: Quantized, up: Quantized) -> Quantized:
    """Return gate and up as one matrix, in turns of `UNIT_ROWS` rows."""
    both = stack([gate, up])
    order = np.arange(len(both.values)).reshape(2, -1, UNIT_ROWS).swapaxes(0, 1).ravel()
    return both.take_rows(order)


class _Reader:
    """Reads the layers of one checkpoint."""

    def __init__(
        self, by_name: Mapping[str, StoredTensor], config: DecoderConfig, interleaved_rope: bool, kept: KeptMatrices
    ) -> None:
        self._by_name, self._config, self._interleaved, self._kept = by_name, config, interleaved_rope, kept

    def layer(self, index: int) -> PackedLayer:
        config = self._config
        self._prefix = f"model.layers.{index}."

        def matrix(name: str, make: Callable[[], Quantized]) -> PackedMatrix:
            return self._kept.matrix(f"{index}.{name}", make)

        norm = self._vector if config.qk_norm else lambda _: None
        return PackedLayer(
            attention_norm=self._vector("input_layernorm.weight"),
            mlp_norm=self._vector("post_attention_layernorm.weight"),
            q_norm=norm("self_attn.q_norm.weight"),
            k_norm=norm("self_attn.k_norm.weight"),
            qkv=matrix("qkv", lambda: stack([self._heads(part) for part in "qkv"])),
            qkv_bias=np.concatenate([self._head_bias(part) for part in "qkv"]) if config.qkv_bias else None,
            output=matrix("output", lambda: self._matrix("self_attn.o_proj.weight")),
            output_bias=self._vector("self_attn.o_proj.bias") if config.output_bias else None,
            gate_up=matrix(
                "gate_up",
                lambda: interleave(self._matrix("mlp.gate_proj.weight"), self._matrix("mlp.up_proj.weight")),
            ),
            down=matrix("down", lambda: self._matrix("mlp.down_proj.weight")),
            window=config.windows[index],
        )

    def _matrix(self, name: str) -> Quantized:
        return read_matrix(self._by_name[self._prefix + name])

    def _vector(self, name: str) -> NDArray[np.float32]:
        return read_vector(self._by_name[self._prefix + name])

    def _heads(self, part: str) -> Quantized:
        matrix = self._matrix(f"self_attn.{part}_proj.weight")
        return matrix.take_rows(self._order(len(matrix.values))) if self._turns(part) else matrix

    def _head_bias(self, part: str) -> NDArray[np.float32]:
        bias = self._vector(f"self_attn.{part}_proj.bias")
        return bias[self._order(len(bias))] if self._turns(part) else bias

    def _turns(self, part: str) -> bool:
        return self._interleaved and part != "v"

    def _order(self, num_rows: int) -> NDArray[np.intp]:
        """Return where the rows of q or k are: pairs (2i, 2i + 1) of each head become (i, i + H/2)."""
        return np.arange(num_rows).reshape(-1, self._config.head_dim // 2, 2).swapaxes(1, 2).ravel()
