"""What `inspect` finds out about a target, a drafter or a pair: from headers, without loading weights."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from blockdraft.drafters.block_config import BlockDraftConfig, check_pair
from blockdraft.drafters.config import NOT_SUPPORTED_YET
from blockdraft.drafters.detect import detect_kind
from blockdraft.drafters.draft_checkpoint import check_tensors, open_draft_checkpoint
from blockdraft.drafters.eagle3_checkpoint import check_eagle3_tensors, open_eagle3_checkpoint
from blockdraft.drafters.eagle3_config import Eagle3Config, check_eagle3_pair
from blockdraft.errors import ModelError
from blockdraft.models.base import TargetInfo
from blockdraft.models.config import read_hf_config
from blockdraft.models.describe import describe
from blockdraft.models.families import find_gguf_family
from blockdraft.models.tokenizer import load_tokenizer
from blockdraft.models.weights.gguf_file import stored_gguf_tensors
from blockdraft.models.weights.gguf_header import read_gguf_header
from blockdraft.models.weights.hf_folder import refuse_other_types, refuse_quantized, stored_hf_tensors

LANGUAGE_MODEL = "draft-simple"
"""What `detect_kind` calls a model that can be a target as well as a small draft model."""

_SIZES = ("num_layers", "hidden_size", "vocab_size", "context_length")


@dataclass(frozen=True, kw_only=True)
class Inspected:
    """One checkpoint."""

    reference: str
    path: Path
    kind: str
    """As in --spec-type; `LANGUAGE_MODEL` for targets."""
    facts: dict[str, Any] = field(default_factory=dict)
    block: BlockDraftConfig | None = None
    """What a block drafter says about itself, if it can be read."""
    eagle3: Eagle3Config | None = None
    """What an EAGLE-3 head says about itself, if it can be read."""
    problems: tuple[str, ...] = ()
    """Why it cannot be run, whatever it is paired with."""

    @property
    def is_language_model(self) -> bool:
        return self.kind == LANGUAGE_MODEL

    def to_dict(self) -> dict[str, Any]:
        """Return what was found as plain data."""
        return {
            "reference": self.reference,
            "path": str(self.path),
            "kind": "target" if self.is_language_model else self.kind,
            **self.facts,
            "problems": list(self.problems),
        }


def inspect_checkpoint(reference: str, path: Path) -> Inspected:
    """Describe a checkpoint that may be a target or a drafter.

    Raises:
        ModelError: it is neither, or its files are damaged.
    """
    kind = detect_kind(path)
    if kind == LANGUAGE_MODEL:
        return _inspect_language_model(reference, path)
    if kind in NOT_SUPPORTED_YET:
        problem = f"{kind} drafters are recognised and not supported yet"
        return Inspected(reference=reference, path=path, kind=kind, problems=(problem,))
    if kind == "draft-eagle3":
        return _inspect_eagle3(reference, path)
    return _inspect_block_drafter(reference, path, kind)


def why_not(target: Inspected, drafter: Inspected) -> list[str]:
    """Return why two checkpoints cannot work together; empty if they can."""
    reasons = [f"the target: {problem}" for problem in target.problems]
    reasons += [f"the drafter: {problem}" for problem in drafter.problems]
    if drafter.block is not None or drafter.eagle3 is not None:
        missing = [name for name in _SIZES if not target.facts.get(name)]
        if missing:
            return [*reasons, f"config.json of the target does not state {', '.join(missing)}"]
        info = _target_info(target)
        reasons += check_pair(drafter.block, info) if drafter.block else []
        reasons += check_eagle3_pair(drafter.eagle3, info) if drafter.eagle3 else []
    elif drafter.is_language_model and not drafter.problems:
        difference = load_tokenizer(target.path).same_vocabulary(load_tokenizer(drafter.path))
        reasons += [f"the vocabularies differ: {difference}"] if difference else []
    return reasons


def _inspect_language_model(reference: str, path: Path) -> Inspected:
    facts = describe(path)
    problems: list[str] = []
    try:
        if path.is_dir():
            refuse_quantized(read_hf_config(path), path)
            refuse_other_types(stored_hf_tensors(path), path)
        else:
            header = read_gguf_header(path)
            stored_gguf_tensors(header, find_gguf_family(header.architecture).gguf_names)
    except ModelError as error:
        problems.append(str(error))
    return Inspected(reference=reference, path=path, kind=LANGUAGE_MODEL, facts=facts, problems=tuple(problems))


def _inspect_block_drafter(reference: str, path: Path, kind: str) -> Inspected:
    facts: dict[str, Any] = {}
    block: BlockDraftConfig | None = None
    problems: list[str] = []
    try:
        draft = open_draft_checkpoint(path)
        block = draft.config
        facts = {
            **block.to_dict(),
            "max_draft_tokens": block.max_draft_tokens,
            "num_parameters": sum(math.prod(shape) for shape in draft.shapes.values()),
        }
        check_tensors(block, draft.shapes)
    except ModelError as error:
        problems.append(str(error))
    return Inspected(reference=reference, path=path, kind=kind, facts=facts, block=block, problems=tuple(problems))


def _inspect_eagle3(reference: str, path: Path) -> Inspected:
    facts: dict[str, Any] = {}
    eagle3: Eagle3Config | None = None
    problems: list[str] = []
    try:
        folder = open_eagle3_checkpoint(path)
        eagle3 = folder.config
        facts = {
            **eagle3.to_dict(),
            "num_layers": len(eagle3.windows),
            "num_parameters": sum(math.prod(shape) for shape in folder.shapes.values()),
        }
        check_eagle3_tensors(eagle3, folder.shapes)
    except ModelError as error:
        problems.append(str(error))
    return Inspected(
        reference=reference, path=path, kind="draft-eagle3", facts=facts, eagle3=eagle3, problems=tuple(problems)
    )


def _target_info(target: Inspected) -> TargetInfo:
    """Return what pairs are checked by; where the target would run is not known and does not matter here."""
    facts = target.facts
    return TargetInfo(
        family=facts["family"],
        **{name: facts[name] for name in _SIZES},
        num_parameters=facts["num_parameters"],
        weight_bytes=facts["file_bytes"],
        dtype=torch.get_default_dtype(),
        device=torch.device("meta"),
        quantization=next(iter(facts["stored_as"]), ""),
    )
