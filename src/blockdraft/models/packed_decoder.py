"""A decoder that runs on the native kernels: weights as they are stored, one parallel region for a whole pass.

Rows are computed alike whatever is computed beside them, so its logits and hidden states are the same bits in a
draft block, a batch, a prefill chunk and alone.

Shape legend: T packed rows, R rows with logits, V vocabulary, D width, M tapped layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from blockdraft.cache.packed import PackedKVCache, PackedKVLayout
from blockdraft.models.base import Segment, TargetInfo, TargetOutput, logit_rows
from blockdraft.models.config import DecoderConfig
from blockdraft.models.layers.rope_angles import RopeAngles
from blockdraft.runtime.native_core import Core, PackedNetwork, int_array


class PackedDecoder:
    """A `Target` on the native kernels."""

    def __init__(
        self,
        config: DecoderConfig,
        network: PackedNetwork,
        core: Core,
        *,
        quantization: str,
        num_parameters: int,
        files: Sequence[Path] = (),
    ) -> None:
        """`files` are those that the weights came from, if any did."""
        self.config, self.network, self.core, self.files = config, network, core, files
        self._info = TargetInfo(
            family=config.family,
            num_layers=config.num_layers,
            hidden_size=config.hidden_size,
            vocab_size=config.vocab_size,
            context_length=config.context_length,
            num_parameters=num_parameters,
            weight_bytes=network.num_bytes,
            dtype=torch.float32,
            device=torch.device("cpu"),
            quantization=quantization,
        )
        self._layout = PackedKVLayout(
            num_layers=config.num_layers, num_kv_heads=config.num_kv_heads, head_dim=config.head_dim
        )
        self._angles = RopeAngles(config.rope)
        self._no_logits = torch.empty(0, config.vocab_size)

    @property
    def info(self) -> TargetInfo:
        return self._info

    @cached_property
    def embedding_weight(self) -> Tensor:
        """Input embedding [V, D] in float32; made when a drafter that runs in torch first asks for it."""
        return torch.from_numpy(self.network.embedding.unpack().to_floats())

    @cached_property
    def head_weight(self) -> Tensor:
        """Output head [V, D] in float32, made like `embedding_weight`."""
        if self.network.head is self.network.embedding:
            return self.embedding_weight
        return torch.from_numpy(self.network.head.unpack().to_floats())

    def new_cache(self, capacity: int = 0) -> PackedKVCache:
        """Return an empty cache with room for `capacity` tokens."""
        return PackedKVCache(self._layout, capacity)

    def forward(self, segments: Sequence[Segment], target_layer_ids: Sequence[int] = ()) -> TargetOutput:
        """Run the rows of all segments in one pass and append them to their caches.

        Where the most likely token of each row is all that is wanted, no logits are kept.

        Shapes: returns logits [R or 0, V] and target_hidden [T, M*D] or None, in float32.
        """
        rows = [segment.cache.take_rows(len(segment.token_ids)) for segment in segments]
        token_ids = [token_id for segment in segments for token_id in segment.token_ids]
        wanted = logit_rows(segments)
        logits = None if all(segment.only_greedy for segment in segments) else self._room_for_logits(len(wanted))
        best = int_array(len(wanted))
        tapped = sorted(set(target_layer_ids))
        taps = torch.empty(len(token_ids), len(tapped) * self.config.hidden_size) if tapped else None
        self.core.run(
            self.network,
            rows,
            token_ids,
            self._angles.up_to(max(row.num_past + row.num_rows for row in rows)),
            wanted=wanted,
            logits=logits,
            best=best,
            tapped=tapped,
            taps=taps,
        )
        for segment in segments:
            segment.cache.advance(len(segment.token_ids))
        if taps is not None and list(target_layer_ids) != tapped:
            layers = taps.view(len(taps), len(tapped), -1)
            taps = layers[:, [tapped.index(layer) for layer in target_layer_ids]].flatten(1)
        if logits is None:
            logits = self._no_logits
        elif self.network.head.padded_rows > self.config.vocab_size:
            logits = logits[:, : self.config.vocab_size]
        return TargetOutput(logits=logits, target_hidden=taps, greedy_ids=best[:])

    def _room_for_logits(self, num_rows: int) -> Tensor:
        return torch.empty(num_rows, self.network.head.padded_rows)
