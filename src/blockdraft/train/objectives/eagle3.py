"""EAGLE-3's objective: the walk of serving, unrolled from every anchor with the text's own tokens.

An anchor's walk starts from the row before it (the features of the token before the anchor, beside the anchor),
so slot k is drafted after k steps on the network's own outputs; that is the training-time test of the paper,
with the labels, weights and sums that block drafters have. Weights that fall by 0.8 per step are
`slot_weights = "decay"` with `gamma = STEP_DECAY_GAMMA`. The head is the target's and is not trained, as in
DeepSpec; the official trainer trains one.

Shape legend: X texts, S tokens of a text, n anchors of a text, K slots, D width, U draft vocabulary.
Ref: arXiv:2503.01840.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from blockdraft.drafters.eagle3_checkpoint import Eagle3Checkpoint
from blockdraft.drafters.eagle3_config import Eagle3Config, default_taps
from blockdraft.models.base import TargetInfo
from blockdraft.models.layers.rope import RopeConfig
from blockdraft.train.batches import BlockBatch
from blockdraft.train.eagle3_network import Eagle3Model
from blockdraft.train.network import checkpoint_name
from blockdraft.train.objectives.base import LossConfig
from blockdraft.train.objectives.slots import BACKWARD_FACTOR, SlotObjective, TargetTables

STEP_DECAY_GAMMA = -1 / math.log(0.8)
"""`LossConfig.gamma` for the published decay: slot k weighs 0.8 ** k."""


def new_eagle3_config(
    info: TargetInfo,
    *,
    num_steps: int = 7,
    target_layer_ids: tuple[int, ...] | None = None,
    draft_vocab_size: int | None = None,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    intermediate_size: int,
    rope_theta: float = 10000.0,
    rms_norm_eps: float = 1e-6,
    has_qk_norm: bool = False,
) -> Eagle3Config:
    """Return the settings of a head to be trained for a target; `num_steps` is the length of the walk."""
    return Eagle3Config(
        layout="speculators",
        hidden_size=info.hidden_size,
        intermediate_size=intermediate_size,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        rms_norm_eps=rms_norm_eps,
        activation="silu",
        rope=RopeConfig(theta=rope_theta, rotary_dim=head_dim),
        windows=(None,),
        has_qk_norm=has_qk_norm,
        vocab_size=info.vocab_size,
        draft_vocab_size=draft_vocab_size,
        target_layer_ids=default_taps(info.num_layers) if target_layer_ids is None else target_layer_ids,
        num_trained_tokens=num_steps,
    )


class Eagle3Objective(SlotObjective):
    """The trained network and what it is trained for; batches are those of a block drafter with as many slots."""

    def __init__(
        self,
        config: Eagle3Config,
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
        self.network = Eagle3Model(config, compute_dtype=compute_dtype, use_checkpointing=use_checkpointing)

    def _slot_hidden(self, batch: BlockBatch) -> Tensor:
        next_ids = F.pad(batch.token_ids[:, 1:], (0, 1))  # nothing stands after the last row, and nobody reads it
        hidden: Tensor = self.network(
            batch.features,
            F.embedding(next_ids, self._embedding),
            F.embedding(batch.previous_ids, self._embedding),
            (batch.anchors - 1).clamp_min(0),  # only a block that is not there stands at 0
        )
        return hidden

    def flops(self, batch: BlockBatch) -> float:
        """Return the arithmetic of the matrix products of one step, forward and backward."""
        config = self.config
        X, S, width = batch.features.shape
        D, H = config.hidden_size, config.head_dim
        layer = sum(parameter.numel() for name, parameter in self.network.named_parameters() if name.endswith("_proj"))
        context = X * S * (width * D + 2 * D * 2 * config.num_kv_heads * H)
        rows = batch.anchors.numel() * self.num_slots
        scores = 2 * rows * (S + self.num_slots / 2) * config.num_heads * H
        taught = int(batch.is_supervised.sum())
        return 2.0 * (BACKWARD_FACTOR * (context + rows * layer + scores) + taught * self._head_products())

    def draft_tensors(self) -> dict[str, Tensor]:
        """Return the trained tensors by the names of checkpoints, in float32."""
        tensors = {checkpoint_name(name): value.detach() for name, value in self.network.named_parameters()}
        return tensors | self._vocabulary_tensors()

    def checkpoint(self, info: TargetInfo, tensors: Mapping[str, Tensor]) -> Eagle3Checkpoint:
        """Return copies of `tensors` (those of `draft_tensors`, or an average of them) ready for `Eagle3Drafter`.

        They have the dtype and the device of the target.
        """
        moved = {
            name: tensor.detach().to(info.device, info.dtype if tensor.is_floating_point() else tensor.dtype, copy=True)
            for name, tensor in tensors.items()
        }
        return Eagle3Checkpoint(
            config=self.config, tensors=moved, num_bytes=sum(tensor.nbytes for tensor in moved.values())
        )


def eagle3_config_json(config: Eagle3Config, target_reference: str, architectures: tuple[str, ...]) -> dict[str, Any]:
    """Return config.json of a trained head in the layout of speculators, which vLLM reads.

    `target_reference` and `architectures` name the target there.
    """
    assert config.target_layer_ids is not None, "a trained head names its taps"
    backbone = {
        "model_type": "qwen3" if config.has_qk_norm else "llama",
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": 1,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "hidden_act": config.activation,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": config.rope.theta,
        "attention_bias": False,
        "vocab_size": config.vocab_size,
    }
    return {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": config.max_draft_tokens}],
            "verifier": {"name_or_path": target_reference, "architectures": list(architectures)},
        },
        "transformer_layer_config": backbone,
        "draft_vocab_size": config.draft_vocab_size or config.vocab_size,
        "norm_before_residual": config.norm_before_residual,
        "norm_output": config.feeds_back_normed,
        # speculators counts inputs of layers: one more than the layer whose output it is.
        "eagle_aux_hidden_state_layer_ids": [layer + 1 for layer in config.target_layer_ids],
    }
