"""What runs the network of a block drafter: torch, or the native kernels where the target runs on them.

Shape legend: T packed rows that predict, D width, U draft vocabulary, S feature rows, M tapped target layers.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from blockdraft.cache.packed import PackedKVCache, PackedKVLayout
from blockdraft.drafters.block_config import BlockDraftConfig
from blockdraft.drafters.block_network import BlockNetwork
from blockdraft.drafters.draft_checkpoint import DraftCheckpoint
from blockdraft.models.base import Target
from blockdraft.models.layers.rope_angles import RopeAngles
from blockdraft.models.packed_decoder import PackedDecoder
from blockdraft.models.weights.kept import KeptMatrices
from blockdraft.models.weights.packing import interleave, why_not_grouped
from blockdraft.runtime.native_core import (
    ContextRows,
    PackedLayer,
    PackedMatrix,
    PackedNetwork,
    PackedSegment,
    Walk,
)
from blockdraft.runtime.quantized import UNIT_ROWS, Quantized, quantize_to_nibbles

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Blocks:
    """The blocks of one draft, packed. `counts` are their rows, of which the first `num_skipped` predict nothing."""

    caches: Sequence[Any]
    features: Sequence[Sequence[Tensor]]
    """What each context lacks, as `extend_context` takes it."""
    token_ids: Sequence[int]
    counts: Sequence[int]
    num_skipped: int

    @property
    def num_predicting(self) -> int:
        """Rows that predict something."""
        return sum(self.counts) - self.num_skipped * len(self.counts)


class BlockRunner(Protocol):
    """The network of a block drafter with the embedding and the head it borrows."""

    kernels: str
    """What it runs on: "torch", or the name of a set of native kernels."""

    def new_cache(self, capacity: int) -> Any:
        """Return an empty context for one sequence."""
        ...

    def extend_context(self, caches: Sequence[Any], features: Sequence[Sequence[Tensor]]) -> None:
        """Append the tapped states of new tokens, [S, M*D] in pieces, to each sequence's context."""
        ...

    def predict(self, blocks: Blocks) -> tuple[Tensor, Tensor]:
        """Extend each context by its features, and run each block behind it.

        Shapes: returns normalised hidden states [T, D] and logits [T, U] of the rows that predict.
        """
        ...


def make_runner(checkpoint: DraftCheckpoint, target: Target, target_ids: Tensor | None) -> BlockRunner:
    """Return what runs a drafter beside its target; `target_ids` are those of a reduced vocabulary."""
    if isinstance(target, PackedDecoder) and not why_not_packed(checkpoint.config):
        return PackedRunner(checkpoint, target, target_ids)
    return TorchRunner(checkpoint, target, target_ids)


def why_not_packed(config: BlockDraftConfig) -> str | None:
    """Return what of a drafter the native kernels do not do, in half a sentence; None if they run it."""
    if config.activation != "silu":
        return f"they have no {config.activation}"
    if reason := why_not_grouped(config.num_heads, config.num_kv_heads):
        return reason
    for name, size in (
        ("hidden size", config.hidden_size),
        ("intermediate size", config.intermediate_size),
        ("head size", config.head_dim),
    ):
        if size % UNIT_ROWS:
            return f"its {name} {size} is no multiple of {UNIT_ROWS}"
    return None


class TorchRunner:
    """Runs the network in the target's dtype and on its device."""

    kernels = "torch"

    def __init__(self, checkpoint: DraftCheckpoint, target: Target, target_ids: Tensor | None) -> None:
        config = checkpoint.config
        self.network = BlockNetwork(config, checkpoint.tensors)
        self._embedding, self._scale = target.embedding_weight, config.input_embedding_scale
        if target_ids is None:
            self._head = target.head_weight
        elif config.borrows_head:
            self._head = target.head_weight[target_ids]
        else:
            self._head = checkpoint.tensors["lm_head.weight"]

    def new_cache(self, capacity: int) -> Any:
        return self.network.new_cache(capacity)

    @torch.inference_mode()
    def extend_context(self, caches: Sequence[Any], features: Sequence[Sequence[Tensor]]) -> None:
        fc = self.network.fc
        rows = [torch.cat(list(pieces)) if pieces else fc.new_empty(0, fc.shape[1]) for pieces in features]
        self.network.extend_context(caches, rows)

    def predict(self, blocks: Blocks) -> tuple[Tensor, Tensor]:
        self.extend_context(blocks.caches, blocks.features)
        ids = torch.tensor(blocks.token_ids, device=self.network.device)
        rows = F.embedding(ids, self._embedding) * self._scale
        hidden = self.network.run_block(rows, blocks.caches, blocks.counts)
        if blocks.num_skipped:
            hidden = torch.cat([block[blocks.num_skipped :] for block in torch.split(hidden, list(blocks.counts))])
        return hidden, F.linear(hidden, self._head.to(hidden.dtype))


class PackedRunner:
    """Runs the network on the kernels, and the threads, of its target; weights are rounded to four bits.

    That changes what is proposed, not what is emitted.
    """

    def __init__(self, checkpoint: DraftCheckpoint, target: PackedDecoder, target_ids: Tensor | None) -> None:
        config, tensors = checkpoint.config, checkpoint.tensors
        self.core, self.kernels = target.core, target.core.kernels
        self.files = _files(checkpoint, target)
        kept = self.open_kept("network")
        head = target.network.head
        if target_ids is not None:
            head = kept.matrix("head", lambda: _head(checkpoint, target, target_ids))
        self._fuse = kept.matrix("fuse", lambda: round_for_drafts(tensors["fc.weight"]))
        self._hidden_norm = torch.from_numpy(packed_floats(tensors["hidden_norm.weight"]))
        self.network = PackedNetwork(
            layers=[_layer(config, index, tensors, kept) for index in range(len(config.layers))],
            final_norm=packed_floats(tensors["norm.weight"]),
            head=head,
            embedding=target.network.embedding,
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            rotary_dim=config.rope.rotary_dim,
            norm_eps=config.rms_norm_eps,
            embedding_scale=config.input_embedding_scale,
        )
        kept.keep()
        self._layout = PackedKVLayout(
            num_layers=len(config.layers), num_kv_heads=config.num_kv_heads, head_dim=config.head_dim
        )
        self._angles = RopeAngles(config.rope)
        self._buffers = self._room(0)

    def open_kept(self, part: str) -> KeptMatrices:
        """Return the packed matrices of a part of the drafter, as they were kept on disk if they were."""
        return KeptMatrices(self.files, f"{self.files[0].name if self.files else 'a drafter'} ({part})", logger.info)

    def new_cache(self, capacity: int) -> PackedKVCache:
        return PackedKVCache(self._layout, capacity)

    def extend_context(self, caches: Sequence[PackedKVCache], features: Sequence[Sequence[Tensor]]) -> None:
        if context := self._take_context(caches, features):
            self.core.extend(self.network, context)

    def predict(self, blocks: Blocks) -> tuple[Tensor, Tensor]:
        hidden, logits = self._room(blocks.num_predicting)
        self._run(blocks, hidden, logits, None)
        return hidden, logits[:, : self.network.head.num_rows]

    def choose(self, blocks: Blocks, walk: Walk) -> tuple[Tensor, list[list[int]]]:
        """Predict, and walk through the logits, in one call.

        Returns a buffer whose first rows are the hidden states [T, D] until the next call, and what the walk chose.
        """
        if len(self._buffers[0]) < blocks.num_predicting:
            self._buffers = self._room(blocks.num_predicting)
        hidden, logits = self._buffers
        return hidden, self._run(blocks, hidden, logits, walk)

    def _room(self, num_rows: int) -> tuple[Tensor, Tensor]:
        return torch.empty(num_rows, self.network.width), torch.empty(num_rows, self.network.head.padded_rows)

    def _run(self, blocks: Blocks, hidden: Tensor, logits: Tensor, walk: Walk | None) -> list[list[int]]:
        context = self._take_context(blocks.caches, blocks.features, max(blocks.counts))
        segments = [cache.take_rows(count) for cache, count in zip(blocks.caches, blocks.counts, strict=True)]
        starts = accumulate(blocks.counts[:-1], initial=0)
        wanted = [
            start + row
            for start, count in zip(starts, blocks.counts, strict=True)
            for row in range(blocks.num_skipped, count)
        ]
        return self.core.run(
            self.network,
            segments,
            blocks.token_ids,
            self._angles_for(segments),
            wanted=wanted,
            logits=logits,
            hidden=hidden,
            context=context,
            walk=walk,
        )

    def _take_context(
        self, caches: Sequence[PackedKVCache], features: Sequence[Sequence[Tensor]], num_spare: int = 0
    ) -> ContextRows | None:
        """Count features as part of the contexts and return how they get there; None if there are none.

        The caches then have room for `num_spare` rows more, without being moved before the context is in them.
        """
        pieces = [piece for own in features for piece in own]
        if not pieces:
            return None
        segments = []
        for cache, own in zip(caches, features, strict=True):
            if count := sum(piece.shape[0] for piece in own):
                cache.reserve(count + num_spare)
                segments.append(cache.take_rows(count))
                cache.advance(count)
        return ContextRows(
            segments=segments,
            features=pieces[0] if len(pieces) == 1 else torch.cat(pieces),
            angles=self._angles_for(segments),
            fuse=self._fuse,
            hidden_norm=self._hidden_norm,
        )

    def _angles_for(self, segments: Sequence[PackedSegment]) -> tuple[Tensor, Tensor]:
        return self._angles.up_to(max(segment.num_past + segment.num_rows for segment in segments))


def _files(checkpoint: DraftCheckpoint, target: PackedDecoder) -> tuple[Path, ...]:
    """Return the files that the network is made from; nothing if a part of it came from none."""
    if not checkpoint.config.borrows_head:
        return checkpoint.files
    return (*checkpoint.files, *target.files) if checkpoint.files and target.files else ()


def _layer(config: BlockDraftConfig, index: int, tensors: dict[str, Tensor], kept: KeptMatrices) -> PackedLayer:
    prefix = f"layers.{index}."
    own = {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}

    def matrix(name: str, *parts: str) -> PackedMatrix:
        weights = [own[f"{part}_proj.weight"] for part in parts]
        return kept.matrix(f"{index}.{name}", lambda: round_for_drafts(*weights))

    halves = own["mlp.gate_proj.weight"], own["mlp.up_proj.weight"]
    return PackedLayer(
        attention_norm=packed_floats(own["input_layernorm.weight"]),
        mlp_norm=packed_floats(own["post_attention_layernorm.weight"]),
        q_norm=packed_floats(own["self_attn.q_norm.weight"]),
        k_norm=packed_floats(own["self_attn.k_norm.weight"]),
        qkv=matrix("qkv", "self_attn.q", "self_attn.k", "self_attn.v"),
        output=matrix("output", "self_attn.o"),
        gate_up=kept.matrix(f"{index}.gate_up", lambda: interleave(*map(round_for_drafts, halves))),
        down=matrix("down", "mlp.down"),
        window=config.layers[index].window,
        causal=config.layers[index].causal,
    )


def _head(checkpoint: DraftCheckpoint, target: PackedDecoder, target_ids: Tensor) -> Quantized:
    """Return the head of a reduced vocabulary."""
    if checkpoint.config.borrows_head:
        return quantize_to_nibbles(target.network.head.unpack().take_rows(target_ids.numpy()).to_floats())
    return round_for_drafts(checkpoint.tensors["lm_head.weight"])


def round_for_drafts(*parts: Tensor) -> Quantized:
    """Round parts, one below the other, to four bits.

    Half the memory of eight is read and displaced, and drafts keep nearly as much.
    """
    return quantize_to_nibbles(packed_floats(torch.cat(parts)))


def packed_floats(tensor: Tensor) -> NDArray[np.float32]:
    """Return a tensor as the kernels read it."""
    return np.ascontiguousarray(tensor.float().numpy())
