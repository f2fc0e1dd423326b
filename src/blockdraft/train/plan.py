"""From a recipe and a target to what is trained: the drafter's configuration, and its first weights.

Sizes that a recipe leaves out are the target's. The first weights are the target's last layers, random ones, or
those of another drafter, to which layers may be added.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import torch
from torch import Tensor, nn

from blockdraft.drafters.block_config import AnchorLayout, BlockDraftConfig, Kind, LayerAttention
from blockdraft.drafters.draft_checkpoint import DraftCheckpoint, load_draft_checkpoint
from blockdraft.errors import ConfigError, PairError
from blockdraft.models.base import Target
from blockdraft.models.decoder import Decoder
from blockdraft.models.layers.mlp import DenseMlp
from blockdraft.models.references import resolve
from blockdraft.models.tokenizer import Tokenizer
from blockdraft.train.network import BlockModel
from blockdraft.train.recipe import DrafterSection

_KINDS: dict[str, Kind] = {"dflash": "draft-dflash", "dspark": "draft-dspark"}


def target_layers(section: DrafterSection, num_target_layers: int) -> tuple[int, ...]:
    """Return the tapped layers: those named, or evenly spread from layer 1 to the third-last.

    Raises:
        ConfigError: a layer does not exist.
    """
    ids = section.target_layer_ids
    if not ids:
        count = min(section.num_target_features, num_target_layers)
        last = max(num_target_layers - 4, 0)
        ids = (
            (num_target_layers // 2,)
            if count == 1
            else tuple(sorted({round(min(1, num_target_layers - 1) + i * last / (count - 1)) for i in range(count)}))
        )
    if outside := [layer for layer in ids if not 0 <= layer < num_target_layers]:
        raise ConfigError(f"`drafter.target_layer_ids` {outside}: the target has layers 0 to {num_target_layers - 1}")
    return ids


def draft_config(section: DrafterSection, target: Target, tokenizer: Tokenizer) -> BlockDraftConfig:
    """Return the configuration of a DFlash or DSpark drafter for a target.

    Raises:
        ConfigError: the recipe does not fit the target, or a size must be given because the target does not say.
    """
    if not isinstance(target, Decoder):
        raise ConfigError(
            f"drafters can be trained for targets that blockdraft runs itself, not through transformers "
            f"({target.info.family}): the drafter's sizes and rotary settings come from it"
        )
    own, info = target.config, target.info
    is_dspark = section.method == "dspark"
    anchor_predicts = is_dspark if section.anchor_predicts is None else section.anchor_predicts
    attention = LayerAttention(
        causal=section.is_causal or bool(section.sliding_window), window=section.sliding_window or None
    )
    if section.draft_vocab_size > info.vocab_size:
        raise ConfigError(f"`drafter.draft_vocab_size` is larger than the target's vocabulary of {info.vocab_size}")
    return BlockDraftConfig(
        kind=_KINDS[section.method],
        layout="deepspec" if anchor_predicts else "z-lab",
        hidden_size=info.hidden_size,
        intermediate_size=section.intermediate_size or own.intermediate_size,
        num_heads=section.num_heads or own.num_heads,
        num_kv_heads=section.num_kv_heads or own.num_kv_heads,
        head_dim=section.head_dim or own.head_dim,
        rms_norm_eps=own.rms_norm_eps,
        activation="silu",
        rope=own.rope,
        layers=(attention,) * section.num_layers,
        vocab_size=info.vocab_size,
        draft_vocab_size=section.draft_vocab_size or None,
        block_size=section.block_size,
        anchor=AnchorLayout(anchor_predicts=anchor_predicts, source="the recipe"),
        mask_token_id=section.mask_token_id if section.mask_token_id >= 0 else _mask_token(tokenizer, info.vocab_size),
        target_layer_ids=target_layers(section, info.num_layers),
        num_target_layers=info.num_layers,
        logit_softcap=None,
        output_multiplier=1.0,
        input_embedding_scale=1.0,
        markov_rank=section.markov_rank if is_dspark else 0,
        markov_head_type="vanilla" if is_dspark and section.markov_rank else "none",
        confidence_head=section.confidence_head if is_dspark else "none",
    )


def _mask_token(tokenizer: Tokenizer, vocab_size: int) -> int:
    """Return a token that texts do not hold: one beyond the tokenizer's own, or its highest special one."""
    if vocab_size > tokenizer.vocab_size:
        return tokenizer.vocab_size
    # An end token will do where there is no other: no block goes on behind one.
    unused = tokenizer.special_ids - tokenizer.eos_ids - {tokenizer.bos_id} or tokenizer.special_ids
    if not unused:
        raise ConfigError("the tokenizer has no special token to stand for a masked place; set drafter.mask_token_id")
    highest: int = max(unused)
    return highest


def draft_vocabulary(token_counts: np.ndarray, size: int | None) -> Tensor | None:
    """Return the ids of the most frequent tokens, in rising order; None for the whole vocabulary."""
    if size is None:
        return None
    frequent = np.argsort(-token_counts, kind="stable")[:size]
    return torch.from_numpy(np.sort(frequent).copy())


def init_from_target(network: BlockModel, target: Target) -> None:
    """Copy the target's last layers and final norm.

    Raises:
        ConfigError: the draft layers have other shapes than the target's.
    """
    assert isinstance(target, Decoder)
    sources = target.weights.layers[-len(network.layers) :]
    if len(sources) < len(network.layers):
        raise ConfigError(
            f"the target has {len(sources)} layers, fewer than the drafter's {len(network.layers)}; "
            'set drafter.init = "random"'
        )
    config = target.config
    widths = [heads * config.head_dim for heads in (config.num_heads, config.num_kv_heads, config.num_kv_heads)]
    for layer, source in zip(network.layers, sources, strict=True):
        if not isinstance(source.mlp, DenseMlp):
            raise ConfigError('the target\'s layers have experts and cannot be copied; set drafter.init = "random"')
        q, k, v = torch.split(source.qkv, widths)
        gate, up = source.mlp.gate_up.chunk(2)
        _copy(
            layer,
            {
                "self_attn.q_proj": q,
                "self_attn.k_proj": k,
                "self_attn.v_proj": v,
                "self_attn.o_proj": source.output,
                "mlp.gate_proj": gate,
                "mlp.up_proj": up,
                "mlp.down_proj": source.mlp.down,
                "input_layernorm": source.attention_norm,
                "post_attention_layernorm": source.mlp_norm,
            },
        )
    _copy(network, {"norm": target.weights.final_norm})


def _copy(module: nn.Module, tensors: dict[str, Tensor]) -> None:
    parameters = dict(module.named_parameters())
    with torch.no_grad():
        for name, tensor in tensors.items():
            if parameters[name].shape != tensor.shape:
                raise ConfigError(
                    f"the target's {name} is {list(tensor.shape)}, the drafter's {list(parameters[name].shape)}; "
                    'leave the sizes of the drafter to the target, or set drafter.init = "random"'
                )
            parameters[name].copy_(tensor)


def load_start(start: str, target: Target, config: BlockDraftConfig, notify: Callable[[str], None]) -> DraftCheckpoint:
    """Load the drafter that a run goes on from; heads may differ and layers be added, the rest may not.

    `start` is a model reference; `notify` is told what takes time.

    Raises:
        ModelError, PairError: it cannot be found or loaded, or does not fit the recipe.
    """
    checkpoint = load_draft_checkpoint(resolve(start, notify=notify).path, target.info)
    for name in ("hidden_size", "intermediate_size", "num_heads", "num_kv_heads", "head_dim", "target_layer_ids"):
        theirs, ours = getattr(checkpoint.config, name), getattr(config, name)
        if theirs != ours:
            raise PairError(f"drafter.init {start} has {name} {theirs}, the recipe {ours}; make them equal")
    if len(checkpoint.config.layers) > len(config.layers):
        raise PairError(
            f"drafter.init {start} has {len(checkpoint.config.layers)} layers, the recipe {len(config.layers)}; "
            "layers can be added to a trained drafter, not taken away"
        )
    return checkpoint


def start_from(parameters: dict[str, Tensor], checkpoint: DraftCheckpoint) -> list[str]:
    """Copy what is trained and has the same name and shape; return the names that start anew."""
    fresh = []
    with torch.no_grad():
        for name, parameter in parameters.items():
            if name in ("lm_head.weight", "d2t"):
                continue  # the rows of this target's head, which may be another than before
            stored = checkpoint.tensors.get(name)
            if stored is None or stored.shape != parameter.shape:
                fresh.append(name)
            else:
                parameter.copy_(stored)
    return fresh


def pass_through(layers: Iterable[nn.Module]) -> None:
    """Let added layers begin as the identity: what they add to the residual stream is zero until they have learnt."""
    with torch.no_grad():
        for layer in layers:
            parameters = dict(layer.named_parameters())
            for name in ("self_attn.o_proj", "mlp.down_proj"):
                parameters[name].zero_()
