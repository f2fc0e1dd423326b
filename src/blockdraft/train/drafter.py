"""The drafter that a run makes: its objective, how it is served while it trains, how it is written.

The written folder is in the layout of the speculators project, which can say all that is trained here (a reduced
vocabulary, either anchor layout, EAGLE-3); `blockdraft export` makes the others of it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from blockdraft.drafters.base import Drafter
from blockdraft.drafters.dflash import DFlashDrafter
from blockdraft.drafters.draft_checkpoint import DraftCheckpoint, reduced_ids, reduced_mask
from blockdraft.drafters.dspark import DSparkDrafter
from blockdraft.drafters.eagle3 import Eagle3Drafter
from blockdraft.errors import ConfigError
from blockdraft.models.base import Target
from blockdraft.models.decoder import Decoder
from blockdraft.models.families import FAMILIES
from blockdraft.models.load import LoadedModel
from blockdraft.models.placement import choose_dtype
from blockdraft.train.eagle3_network import init_from_last_layer
from blockdraft.train.export.folders import SpeculatorsWriter
from blockdraft.train.export.layout import Draft
from blockdraft.train.features import Features
from blockdraft.train.objectives.dflash import DFlashObjective
from blockdraft.train.objectives.dspark import DSparkObjective
from blockdraft.train.objectives.eagle3 import Eagle3Objective, eagle3_config_json, new_eagle3_config
from blockdraft.train.objectives.slots import TargetTables
from blockdraft.train.plan import draft_config, draft_vocabulary, init_from_target, load_start, pass_through, start_from
from blockdraft.train.recipe import Recipe

DraftObjective = DFlashObjective | DSparkObjective | Eagle3Objective


def build_objective(
    recipe: Recipe, loaded: LoadedModel, features: Features, notify: Callable[[str], None] = lambda line: None
) -> DraftObjective:
    """Return what is trained, with its first weights, which depend on the seed alone.

    `notify` is told what a drafter that the run goes on from has no weights for, and of a slower type of numbers.

    Raises:
        ConfigError, ModelError, PairError: the recipe does not fit the target, or the drafter it goes on from.
    """
    section, target = recipe.drafter, loaded.target
    torch.manual_seed(recipe.run.seed)
    device = target.info.device
    tables = TargetTables(embedding=target.embedding_weight, head=target.head_weight)
    compute_dtype = _compute_dtype(recipe.run.compute_dtype, device, notify)
    checkpointing, recompute = recipe.run.gradient_checkpointing, recipe.run.recompute_head
    size = section.draft_vocab_size or None
    if section.method == "eagle3":
        draft_ids = _on(device, draft_vocabulary(features.token_counts(), size))
        return _eagle3(recipe, target, tables, draft_ids, compute_dtype)
    config = draft_config(section, target, loaded.tokenizer)
    start = None if section.init in ("target", "random") else load_start(section.init, target, config, notify)
    if start is not None and size is not None and start.config.draft_vocab_size == size:
        # What it has learnt is about these tokens; those that are frequent in the new data may be others.
        draft_ids = reduced_ids(start.tensors["d2t"])
    else:
        draft_ids = _on(device, draft_vocabulary(features.token_counts(), size))
    kind = DSparkObjective if section.method == "dspark" else DFlashObjective
    objective = kind(
        config,
        tables,
        recipe.loss,
        draft_ids=draft_ids,
        compute_dtype=compute_dtype,
        use_checkpointing=checkpointing,
        recompute_head=recompute,
    ).to(device)
    if start is not None:
        if fresh := start_from(objective.draft_tensors(), start):
            notify(f"{section.init} has no weights of this shape for {', '.join(fresh)}: these start anew")
        pass_through(objective.network.layers[len(start.config.layers) :])
    elif section.init == "target":
        init_from_target(objective.network, target)
    return objective


def _compute_dtype(name: str, device: torch.device, notify: Callable[[str], None]) -> torch.dtype:
    if name != "auto":
        return choose_dtype(name, device)
    if choose_dtype("auto", device) is torch.bfloat16:
        return torch.bfloat16
    # Small gradients vanish in float16, for which nothing is scaled here.
    notify("this device does not compute in bfloat16: training in float32")
    return torch.float32


def _on(device: torch.device, ids: Tensor | None) -> Tensor | None:
    return None if ids is None else ids.to(device)


def _eagle3(
    recipe: Recipe, target: Target, tables: TargetTables, draft_ids: Tensor | None, compute_dtype: torch.dtype
) -> Eagle3Objective:
    section = recipe.drafter
    if section.init not in ("target", "random"):
        raise ConfigError(
            'an EAGLE-3 head starts from the target or at random; set drafter.init to "target" or "random"'
        )
    if not isinstance(target, Decoder):
        raise ConfigError(f"EAGLE-3 heads can be trained for targets of blockdraft's own, not {target.info.family}")
    own = target.config
    config = new_eagle3_config(
        target.info,
        num_steps=section.block_size,
        target_layer_ids=section.target_layer_ids or None,
        draft_vocab_size=section.draft_vocab_size or None,
        num_heads=section.num_heads or own.num_heads,
        num_kv_heads=section.num_kv_heads or own.num_kv_heads,
        head_dim=section.head_dim or own.head_dim,
        intermediate_size=section.intermediate_size or own.intermediate_size,
        rope_theta=own.rope.theta,
        rms_norm_eps=own.rms_norm_eps,
    )
    objective = Eagle3Objective(
        config,
        tables,
        recipe.loss,
        draft_ids=draft_ids,
        compute_dtype=compute_dtype,
        use_checkpointing=recipe.run.gradient_checkpointing,
        recompute_head=recipe.run.recompute_head,
    )
    if section.init == "target":
        init_from_last_layer(objective.network, target)
    return objective.to(target.info.device)


def serve(objective: DraftObjective, tensors: dict[str, Tensor], target: Target) -> Drafter:
    """Return a drafter for the engine with these weights, in the target's dtype."""
    if isinstance(objective, Eagle3Objective):
        return Eagle3Drafter(objective.checkpoint(target.info, tensors), target)
    info = target.info
    moved = {
        name: tensor.detach().to(info.device, info.dtype if tensor.is_floating_point() else tensor.dtype, copy=True)
        for name, tensor in tensors.items()
    }
    num_bytes = sum(tensor.nbytes for tensor in moved.values())
    checkpoint = DraftCheckpoint(config=objective.config, tensors=moved, num_bytes=num_bytes)
    kind = DSparkDrafter if objective.config.kind == "draft-dspark" else DFlashDrafter
    return kind(checkpoint, target)


def write_drafter(objective: DraftObjective, tensors: dict[str, Tensor], loaded: LoadedModel, folder: Path) -> None:
    """Write config.json and model.safetensors, in bfloat16; a folder of the same name is replaced file by file."""
    folder.mkdir(parents=True, exist_ok=True)
    whole = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    if not isinstance(objective, Eagle3Objective):
        SpeculatorsWriter().write(folder, Draft(config=objective.config, tensors=whole, target=loaded), "bf16")
        return
    info = loaded.target.info
    architectures = FAMILIES[info.family].hf_architectures if info.family in FAMILIES else ()
    config = eagle3_config_json(objective.config, loaded.reference, architectures)
    stored = {
        name: tensor.to(torch.bfloat16) if tensor.is_floating_point() else tensor for name, tensor in whole.items()
    }
    if "d2t" in whole:
        stored["t2d"] = reduced_mask(whole["d2t"], info.vocab_size)
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
