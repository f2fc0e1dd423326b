"""DFlash's objective: every slot of a block predicts its token from the context and the anchor alone.

Shape legend: X texts, n blocks of a text, B rows and K slots of a block, D width, U draft vocabulary.
Ref: arXiv:2602.06036; the total-variation term is DSpark's, arXiv:2607.05147.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from blockdraft.drafters.block_config import BlockDraftConfig
from blockdraft.train.batches import BlockBatch
from blockdraft.train.network import BlockModel, checkpoint_name
from blockdraft.train.objectives.base import LossConfig
from blockdraft.train.objectives.slots import BACKWARD_FACTOR, SlotObjective, TargetTables


class DFlashObjective(SlotObjective):
    """The trained network and what it is trained for."""

    def __init__(
        self,
        config: BlockDraftConfig,
        tables: TargetTables,
        loss: LossConfig,
        *,
        draft_ids: Tensor | None = None,
        compute_dtype: torch.dtype = torch.bfloat16,
        use_checkpointing: bool = False,
        recompute_head: bool = False,
    ) -> None:
        """`draft_ids` [U] are the target ids of a reduced vocabulary; None for the whole."""
        super().__init__(
            config.max_draft_tokens,
            config.vocab_size,
            tables,
            loss,
            draft_ids=draft_ids,
            compute_dtype=compute_dtype,
            recompute_head=recompute_head,
        )
        self.config = config
        self.network = BlockModel(config, compute_dtype=compute_dtype, use_checkpointing=use_checkpointing)

    @property
    def sharded_layers(self) -> list[nn.Module]:
        return list(self.network.layers)

    def _slot_hidden(self, batch: BlockBatch) -> Tensor:
        """Return the rows that predict, [X, n, K, D]."""
        B = self.config.block_size
        ids = torch.full((*batch.anchors.shape, B), self.config.mask_token_id, device=batch.anchors.device)
        ids[..., 0] = batch.previous_ids[..., 0]
        embeddings = F.embedding(ids, self._embedding) * self.config.input_embedding_scale
        hidden: Tensor = self.network(batch.features, embeddings, batch.anchors)
        return hidden[:, :, B - self.num_slots :]

    def flops(self, batch: BlockBatch) -> float:
        """Return the arithmetic of the matrix products of one step, forward and backward."""
        config = self.config
        layer = sum(parameter.numel() for parameter in self.network.layers[0].parameters() if parameter.dim() == 2)
        X, S, _ = batch.features.shape
        rows = batch.anchors.numel() * config.block_size
        context = X * S * (self.network.fc.numel() + 2 * len(config.layers) * config.num_kv_heads * config.head_dim
                           * config.hidden_size)  # fmt: skip
        scores = 2 * rows * (S + config.block_size) * config.num_heads * config.head_dim
        backbone = BACKWARD_FACTOR * (context + len(config.layers) * (rows * layer + scores))
        taught = int(batch.is_supervised.sum())
        return 2.0 * (backbone + taught * self._head_products())

    def draft_tensors(self) -> dict[str, Tensor]:
        """Return the trained tensors by the names of checkpoints, in float32."""
        tensors = {checkpoint_name(name): value.detach() for name, value in self.network.named_parameters()}
        return tensors | self._vocabulary_tensors()
