"""The network that DFlash and DSpark share: a few Qwen3-style layers that read the target's hidden states.

Each committed token's tapped states are fused into one vector (`fc`, `hidden_norm`), which every draft layer
turns into a key and a value with its own projections: the context. A block of rows, the anchor and masks,
then passes through the layers once; its queries see the context and the block. Only context is kept: the
block's keys and values are written past the end of the cache and overwritten by whatever comes next.

Shape legend: T packed rows, S context rows, L draft layers, M tapped target layers, D width, F MLP width,
N query heads, G key/value heads, H head size.
Ref: arXiv:2602.06036.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from blockdraft.cache import KVCache, KVLayout
from blockdraft.drafters.block_config import BlockDraftConfig, LayerAttention
from blockdraft.models.layers.attention import attend, block_mask
from blockdraft.models.layers.rope import Rope, apply_rope

MAX_CONTEXT_ROWS = 4096
"""Context is projected at most this many rows of a sequence at a time, which bounds the intermediate tensors."""

_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_pytorch_tanh": lambda gate: F.gelu(gate, approximate="tanh"),
}


@dataclass(frozen=True, kw_only=True)
class _Layer:
    """Weights of one draft layer. Shapes: qk_norm [N+G, H], o [D, N*H], gate_up [2F, D], down [D, F]."""

    attention: LayerAttention
    input_norm: Tensor
    qk_norm: Tensor
    o: Tensor
    post_norm: Tensor
    gate_up: Tensor
    down: Tensor


@dataclass(frozen=True, kw_only=True)
class _Block:
    """The rows of one pass: how many each sequence has, where their context is, how they are rotated."""

    caches: Sequence[KVCache]
    counts: Sequence[int]
    rotation: tuple[Tensor, Tensor]


class BlockNetwork:
    """The shared network, for packed rows of several sequences."""

    def __init__(self, config: BlockDraftConfig, tensors: dict[str, Tensor]) -> None:
        self.config = config
        self.fc = tensors["fc.weight"]
        self.dtype, self.device = self.fc.dtype, self.fc.device
        self.hidden_norm, self.norm = tensors["hidden_norm.weight"], tensors["norm.weight"]
        self.rope = Rope(config.rope, self.dtype, self.device)
        self.layers = [self._layer(index, tensors) for index in range(len(config.layers))]
        # One tensor [L, (N+2G)*H, D]: a block reads a layer of it, context the key/value part of all layers.
        self.qkv = torch.stack(
            [
                torch.cat([tensors[f"layers.{index}.self_attn.{part}_proj.weight"] for part in "qkv"])
                for index in range(len(config.layers))
            ]
        )
        self.context_k_norm = torch.stack([layer.qk_norm[-1] for layer in self.layers])[:, None, None]
        self._activate = _ACTIVATIONS[config.activation]

    def _layer(self, index: int, tensors: dict[str, Tensor]) -> _Layer:
        config = self.config
        own = {name.removeprefix(f"layers.{index}."): tensor for name, tensor in tensors.items()}
        q_norm = own["self_attn.q_norm.weight"].expand(config.num_heads, -1)
        k_norm = own["self_attn.k_norm.weight"].expand(config.num_kv_heads, -1)
        return _Layer(
            attention=config.layers[index],
            input_norm=own["input_layernorm.weight"],
            qk_norm=torch.cat([q_norm, k_norm]),
            o=own["self_attn.o_proj.weight"],
            post_norm=own["post_attention_layernorm.weight"],
            gate_up=torch.cat([own["mlp.gate_proj.weight"], own["mlp.up_proj.weight"]]),
            down=own["mlp.down_proj.weight"],
        )

    def new_cache(self, capacity: int = 0) -> KVCache:
        """Return an empty context for one sequence."""
        layout = KVLayout(
            num_layers=len(self.layers),
            num_kv_heads=self.config.num_kv_heads,
            head_dim=self.config.head_dim,
            dtype=self.dtype,
            device=self.device,
        )
        return KVCache(layout, capacity)

    def extend_context(self, caches: Sequence[KVCache], features: Sequence[Tensor]) -> None:
        """Append the keys and values of new tokens to each sequence's context.

        Shapes: features [S, M*D] per sequence, in the order of the tokens; S may be 0.
        """
        tails: list[tuple[KVCache, Tensor]] = []
        for cache, rows in zip(caches, features, strict=True):
            done = 0
            while len(rows) - done > MAX_CONTEXT_ROWS:
                self._project_context([(cache, rows[done : done + MAX_CONTEXT_ROWS])])
                done += MAX_CONTEXT_ROWS
            if done < len(rows):
                tails.append((cache, rows[done:]))
        if tails:
            self._project_context(tails)

    def _project_context(self, pieces: Sequence[tuple[KVCache, Tensor]]) -> None:
        config = self.config
        G, H = config.num_kv_heads, config.head_dim
        spans = [range(cache.length, cache.length + len(rows)) for cache, rows in pieces]
        features = torch.cat([rows for _, rows in pieces]) if len(pieces) > 1 else pieces[0][1]
        fused = self._rms_norm(F.linear(features.to(self.dtype), self.fc), self.hidden_norm)
        kv_weight = self.qkv[:, config.num_heads * H :]
        keys, values = torch.matmul(fused, kv_weight.transpose(1, 2)).chunk(2, dim=-1)
        keys = keys.view(*keys.shape[:2], G, H)
        keys = F.rms_norm(keys, (H,), None, config.rms_norm_eps) * self.context_k_norm
        keys = apply_rope(keys, *self._rotation(spans))
        values = values.view(*values.shape[:2], G, H)
        start = 0
        for cache, rows in pieces:
            count = len(rows)
            cache.reserve(count)
            for index in range(len(self.layers)):
                cache.write(index, keys[index, start : start + count], values[index, start : start + count])
            cache.advance(count)
            start += count

    def run_block(self, embeddings: Tensor, caches: Sequence[KVCache], counts: Sequence[int]) -> Tensor:
        """Run each sequence's block behind its context and leave the context as it was.

        Shapes: embeddings [T, D] with T the sum of counts; returns normalised hidden states [T, D].
        """
        for cache, count in zip(caches, counts, strict=True):
            cache.reserve(count)
        block = _Block(
            caches=caches,
            counts=counts,
            rotation=self._rotation(
                [range(cache.length, cache.length + count) for cache, count in zip(caches, counts, strict=True)]
            ),
        )
        masks = {
            attention: [
                block_mask(cache.length, count, self.device, causal=attention.causal, window=attention.window)
                for cache, count in zip(caches, counts, strict=True)
            ]
            for attention in set(self.config.layers)
        }
        hidden = embeddings.to(self.dtype)
        for index, layer in enumerate(self.layers):
            attended = self._attend(index, hidden, block, masks[layer.attention])
            hidden = hidden + F.linear(attended, layer.o)
            gate, up = F.linear(self._rms_norm(hidden, layer.post_norm), layer.gate_up).chunk(2, dim=-1)
            hidden = hidden + F.linear(self._activate(gate) * up, layer.down)
        return self._rms_norm(hidden, self.norm)

    def _attend(self, index: int, hidden: Tensor, block: _Block, masks: Sequence[Tensor]) -> Tensor:
        config, layer = self.config, self.layers[index]
        N, G, H = config.num_heads, config.num_kv_heads, config.head_dim
        qkv = F.linear(self._rms_norm(hidden, layer.input_norm), self.qkv[index]).view(-1, N + 2 * G, H)
        heads, values = qkv[:, : N + G], qkv[:, N + G :]
        heads = F.rms_norm(heads, (H,), None, config.rms_norm_eps) * layer.qk_norm
        heads = apply_rope(heads, *block.rotation)
        queries, keys = heads[:, :N], heads[:, N:]
        outputs = []
        start = 0
        for cache, count, mask in zip(block.caches, block.counts, masks, strict=True):
            rows = slice(start, start + count)
            cache.write(index, keys[rows], values[rows])
            outputs.append(attend(queries[rows], cache, index, mask))
            start += count
        return torch.cat(outputs) if len(outputs) > 1 else outputs[0]

    def _rotation(self, spans: Sequence[range]) -> tuple[Tensor, Tensor]:
        """Return cos and sin of the packed positions."""
        positions = torch.tensor([position for span in spans for position in span], device=self.device)
        return self.rope.rows(positions, max(span.stop for span in spans) - 1)

    def _rms_norm(self, hidden: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(hidden, weight.shape, weight, self.config.rms_norm_eps)
