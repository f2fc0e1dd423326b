"""The decoder that all own families run on: packed rows of several sequences, few operations per layer.

One pass embeds all rows, runs the linear layers on them together, and attends segment by segment over each
sequence's own cache. Logits are computed only for the rows that were asked for. It knows nothing of files:
`models.load` reads a checkpoint into `DecoderWeights`.

Shape legend: T packed rows, V vocabulary, D width, N query heads, G key/value heads, H head size, M taps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from blockdraft.cache import KVCache, KVLayout
from blockdraft.models.base import Segment, TargetInfo, TargetOutput, logit_rows
from blockdraft.models.config import DecoderConfig
from blockdraft.models.layers.attention import attend, attention_bias, causal_mask
from blockdraft.models.layers.linear import linear
from blockdraft.models.layers.rope import Rope, apply_rope
from blockdraft.models.weights.layout import DecoderWeights, LayerWeights

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""Keeps what one layer has to remember, and attends: (layer, queries [T, N, H], keys, values [T, G, H]) to [T, N*H]."""


@dataclass(frozen=True, slots=True)
class _Pass:
    """What all layers of one pass share."""

    caches: list[KVCache]
    lengths: list[int]
    biases: dict[int | None, list[Tensor]]
    """For each window, what the scores of each segment get added."""
    positions: Tensor
    max_position: int


class Decoder:
    """A `Target` of own PyTorch operations."""

    def __init__(self, config: DecoderConfig, weights: DecoderWeights, quantization: str) -> None:
        """Take over filled weights; `quantization` names how they were stored."""
        self.config = config
        self.weights = weights
        embedding = weights.embedding
        tensors = list(weights.tensors())
        self._info = TargetInfo(
            family=config.family,
            num_layers=config.num_layers,
            hidden_size=config.hidden_size,
            vocab_size=config.vocab_size,
            context_length=config.context_length,
            num_parameters=sum(tensor.numel() for tensor in tensors),
            weight_bytes=sum(tensor.nbytes for tensor in tensors),
            dtype=embedding.dtype,
            device=embedding.device,
            quantization=quantization,
        )
        self._layout = KVLayout(
            num_layers=config.num_layers,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            dtype=embedding.dtype,
            device=embedding.device,
        )
        self._rope = Rope(config.rope, embedding.dtype, embedding.device)
        self._qk_norms = [_stack_head_norms(layer, config) for layer in weights.layers]

    @property
    def info(self) -> TargetInfo:
        return self._info

    @property
    def embedding_weight(self) -> Tensor:
        return self.weights.embedding

    @property
    def head_weight(self) -> Tensor:
        return self.weights.head

    def new_cache(self, capacity: int = 0) -> KVCache:
        """Return an empty cache with room for `capacity` tokens."""
        return KVCache(self._layout, capacity)

    @torch.inference_mode()
    def forward(self, segments: Sequence[Segment], target_layer_ids: Sequence[int] = ()) -> TargetOutput:
        """Run the rows of all segments in one pass and append them to their caches.

        Shapes: returns logits [R, V] and target_hidden [T, M*D] or None.
        """
        shared = self._prepare(segments)
        token_ids = [token_id for segment in segments for token_id in segment.token_ids]
        hidden, taps = self._run_layers(
            torch.tensor(token_ids, device=self._info.device),
            self._rope.rows(shared.positions, shared.max_position),
            partial(self._attend_segments, shared),
            target_layer_ids,
        )
        for cache, length in zip(shared.caches, shared.lengths, strict=True):
            cache.advance(length)
        return TargetOutput(
            logits=self._logits(hidden, segments),
            target_hidden=torch.cat([taps[index] for index in target_layer_ids], dim=-1) if taps else None,
        )

    @torch.inference_mode()
    def run_rows(self, token_ids: Tensor, positions: Tensor, max_position: int, attend: Attend) -> Tensor:
        """Run one row for each of many sequences; what they remember is the caller's, who attends for all of them.

        Shapes: token_ids and positions [T], all positions <= max_position; returns logits [T, V].
        """
        hidden, _ = self._run_layers(token_ids, self._rope.rows(positions, max_position), attend)
        return self._head(hidden)

    def _prepare(self, segments: Sequence[Segment]) -> _Pass:
        device = self._info.device
        caches = [segment.cache for segment in segments]
        lengths = [len(segment.token_ids) for segment in segments]
        positions: list[int] = []
        for cache, length in zip(caches, lengths, strict=True):
            cache.reserve(length)
            positions.extend(range(cache.length, cache.length + length))
        group = self.config.num_heads // self.config.num_kv_heads
        biases = {
            window: [
                attention_bias(causal_mask(cache.length, length, device, window), group, self._info.dtype)
                for cache, length in zip(caches, lengths, strict=True)
            ]
            for window in set(self.config.windows)
        }
        return _Pass(
            caches=caches,
            lengths=lengths,
            biases=biases,
            positions=torch.tensor(positions, device=device),
            max_position=max(positions),
        )

    def _run_layers(
        self,
        token_ids: Tensor,
        rotation: tuple[Tensor, Tensor],
        attend_layer: Attend,
        target_layer_ids: Sequence[int] = (),
    ) -> tuple[Tensor, dict[int, Tensor]]:
        """Shapes: token_ids [T]; returns the last layer's output [T, D], and that of each tapped layer."""
        hidden = F.embedding(token_ids, self.weights.embedding)
        taps: dict[int, Tensor] = {}
        for index, layer in enumerate(self.weights.layers):
            heads = self._heads(index, layer, self._norm(hidden, layer.attention_norm), rotation)
            hidden = hidden + linear(attend_layer(index, *heads), layer.output, layer.output_bias)
            hidden = hidden + layer.mlp(self._norm(hidden, layer.mlp_norm))
            if index in target_layer_ids:
                taps[index] = hidden
        return hidden, taps

    def _heads(
        self, index: int, layer: LayerWeights, rows: Tensor, rotation: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Shapes: rows [T, D], normed; returns queries [T, N, H], keys and values [T, G, H]."""
        config = self.config
        num_rotated = config.num_heads + config.num_kv_heads
        heads = linear(rows, layer.qkv, layer.qkv_bias)
        heads = heads.view(len(rows), num_rotated + config.num_kv_heads, config.head_dim)
        rotated, values = heads[:, :num_rotated], heads[:, num_rotated:]
        if (weight := self._qk_norms[index]) is not None:
            rotated = F.rms_norm(rotated, (config.head_dim,), None, config.rms_norm_eps) * weight
        rotated = apply_rope(rotated, *rotation)
        return rotated[:, : config.num_heads], rotated[:, config.num_heads :], values

    def _attend_segments(self, shared: _Pass, index: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Attend segment by segment, each over its own cache."""
        biases = shared.biases[self.config.windows[index]]
        attended: list[Tensor] = []
        start = 0
        for cache, length, bias in zip(shared.caches, shared.lengths, biases, strict=True):
            end = start + length
            cache.write(index, keys[start:end], values[start:end])
            attended.append(attend(queries[start:end], cache, index, bias))
            start = end
        return attended[0] if len(attended) == 1 else torch.cat(attended)

    def _norm(self, rows: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(rows, weight.shape, weight, self.config.rms_norm_eps)

    def _logits(self, hidden: Tensor, segments: Sequence[Segment]) -> Tensor:
        """Shapes: hidden [T, D]; returns [R, V]."""
        wanted = logit_rows(segments)
        if len(wanted) < len(hidden):
            hidden = hidden[torch.tensor(wanted, dtype=torch.long, device=hidden.device)]
        return self._head(hidden)

    def _head(self, hidden: Tensor) -> Tensor:
        return linear(self._norm(hidden, self.weights.final_norm), self.weights.head)


def _stack_head_norms(layer: LayerWeights, config: DecoderConfig) -> Tensor | None:
    """Return one weight [N + G, H] for q and k heads together, so that both are normed in one operation."""
    if layer.q_norm is None or layer.k_norm is None:
        return None
    queries = layer.q_norm.expand(config.num_heads, -1)
    return torch.cat((queries, layer.k_norm.expand(config.num_kv_heads, -1)))
