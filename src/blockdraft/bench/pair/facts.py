"""What is known about both sides of a pair, without loading weights.

Drafters are read more leniently than by whoever runs them: a checkpoint that our engine refuses may run elsewhere, and
a broken one is what a doctor is for. What a file does not say stays None.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from blockdraft.drafters.block_config import block_kind, read_block_config
from blockdraft.drafters.draft_checkpoint import list_tensors, read_config_json
from blockdraft.drafters.draft_gguf import MASK_TOKEN_KEY, open_draft_gguf
from blockdraft.errors import BlockdraftError, ModelError
from blockdraft.models.describe import describe
from blockdraft.models.tokenizer import Tokenizer, load_tokenizer
from blockdraft.models.weights.gguf_file import type_name
from blockdraft.models.weights.gguf_header import read_gguf_header
from blockdraft.models.weights.hf_folder import stored_hf_tensors

Shape = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class TargetFacts:
    """What a target's files say."""

    name: str
    num_layers: int | None
    hidden_size: int | None
    vocab_size: int | None
    context_length: int | None
    rope_theta: float | None
    tokenizer: Tokenizer | None
    """None if none can be read."""

    @property
    def can_think(self) -> bool:
        """True if its chat template knows a thinking mode."""
        return self.tokenizer is not None and self.tokenizer.knows_thinking


@dataclass(frozen=True, kw_only=True)
class DrafterFacts:
    """What a block drafter's files say."""

    name: str
    kind: str
    source: str
    """The file that the keys come from."""
    num_layers: int | None = None
    hidden_size: int | None = None
    vocab_size: int | None = None
    draft_vocab_size: int | None = None
    num_target_layers: int | None = None
    target_layer_ids: tuple[int, ...] = ()
    """0-based decoder layers whose outputs are read, whatever the file counts from."""
    counts_from_embedding: bool = False
    """True if the file counts from the embedding's output: ids plus one."""
    block_size: int | None = None
    max_draft_tokens: int | None = None
    mask_token_id: int | None = None
    rope_theta: float | None = None
    is_interleaved: bool = False
    layer_types: tuple[str, ...] = ()
    sliding_window: int | None = None
    says_sliding: bool | None = None
    """`use_sliding_window`."""
    context_length: int | None = None
    shapes: Mapping[str, Shape] = field(default_factory=dict)
    stored_as: Mapping[str, str] = field(default_factory=dict)
    """Type of each tensor."""
    borrows_head: bool = False
    card: str = ""
    """Text of its README."""
    problem: str | None = None
    """Why our own engine cannot run it."""
    anchor: str | None = None
    """How the row of the anchor is used, and how that is known."""
    has_mask_embedding: bool = False
    tokenizer: Tokenizer | None = None


def target_facts(name: str, path: Path) -> TargetFacts:
    """Read a target's headers and tokenizer.

    Raises:
        ModelError: its files are damaged.
    """
    facts = describe(path)
    rope = facts.get("rope") or {}
    return TargetFacts(
        name=name,
        num_layers=facts.get("num_layers"),
        hidden_size=facts.get("hidden_size"),
        vocab_size=facts.get("vocab_size"),
        context_length=facts.get("context_length"),
        rope_theta=rope.get("theta"),
        tokenizer=_tokenizer(path),
    )


def drafter_facts(name: str, path: Path) -> DrafterFacts:
    """Read a block drafter's configuration and the headers of its tensors.

    Raises:
        ModelError: its files are damaged beyond reading.
    """
    return _from_folder(name, path) if path.is_dir() else _from_gguf(name, path)


def _from_folder(name: str, path: Path) -> DrafterFacts:
    config = read_config_json(path)
    nested = config.get("dflash_config") or {}
    own: dict[str, Any] = {**config, **nested}
    backbone: dict[str, Any] = config.get("transformer_layer_config") or config
    rope = backbone.get("rope_parameters") or {}
    counts_from_embedding = "aux_hidden_state_layer_ids" in own
    ids = own.get("aux_hidden_state_layer_ids") or own.get("target_layer_ids") or ()
    problem: str | None = None
    block = None
    try:
        block = read_block_config(config)
    except ModelError as error:
        problem = str(error)
    readme = path / "README.md"
    return DrafterFacts(
        name=name,
        kind=block_kind(config),
        source="config.json",
        num_layers=backbone.get("num_hidden_layers"),
        hidden_size=backbone.get("hidden_size"),
        vocab_size=backbone.get("vocab_size"),
        draft_vocab_size=own.get("draft_vocab_size"),
        num_target_layers=own.get("num_target_layers"),
        target_layer_ids=tuple(int(one) - counts_from_embedding for one in ids),
        counts_from_embedding=counts_from_embedding,
        block_size=own.get("block_size"),
        max_draft_tokens=block.max_draft_tokens if block else None,
        mask_token_id=own.get("mask_token_id"),
        rope_theta=rope.get("rope_theta") or backbone.get("rope_theta"),
        is_interleaved=False in (backbone.get("is_neox_style"), backbone.get("rope_is_neox_style")),
        layer_types=tuple(backbone.get("layer_types") or ()),
        sliding_window=backbone.get("sliding_window"),
        says_sliding=backbone.get("use_sliding_window"),
        context_length=backbone.get("max_position_embeddings"),
        shapes={key: tensor.shape for key, tensor in list_tensors(path).items()},
        stored_as=_folder_types(path),
        card=readme.read_text(encoding="utf-8", errors="replace") if readme.is_file() else "",
        problem=problem,
        anchor=_anchor(block),
        has_mask_embedding=(path / "mask_embedding.pt").is_file(),
        tokenizer=_tokenizer(path) if (path / "tokenizer.json").is_file() else None,
    )


def _from_gguf(name: str, path: Path) -> DrafterFacts:
    header = read_gguf_header(path)
    problem: str | None = None
    block = None
    try:
        block = open_draft_gguf(path).config
    except ModelError as error:
        problem = str(error)
    keys = {key.partition(".")[2]: value for key, value in header.metadata.items()}
    window = keys.get("attention.sliding_window")
    readme = path.parent / "README.md"
    return DrafterFacts(
        name=name,
        kind=block.kind if block else "draft-dflash",
        source="the GGUF header",
        num_layers=keys.get("block_count"),
        hidden_size=keys.get("embedding_length"),
        vocab_size=block.vocab_size if block else None,
        draft_vocab_size=block.draft_vocab_size if block else None,
        # The file counts the layer whose input is read.
        target_layer_ids=tuple(int(one) - 1 for one in keys.get("target_layers") or ()),
        counts_from_embedding=True,
        block_size=keys.get("block_size", 16),
        max_draft_tokens=block.max_draft_tokens if block else None,
        mask_token_id=header.metadata.get(MASK_TOKEN_KEY),
        rope_theta=keys.get("rope.freq_base"),
        layer_types=tuple("sliding_attention" if layer.window else "full_attention" for layer in block.layers)
        if block
        else (),
        sliding_window=window,
        says_sliding=bool(window) if window is not None else None,
        context_length=keys.get("context_length"),
        shapes=open_draft_gguf(path).shapes if block else header.shapes,
        stored_as={key: type_name(tensor) for key, tensor in header.tensors.items()},
        borrows_head=block.borrows_head if block else False,
        card=readme.read_text(encoding="utf-8", errors="replace") if readme.is_file() else "",
        problem=problem,
        anchor=_anchor(block),
    )


def _anchor(block: Any) -> str | None:
    if block is None:
        return None
    use = "predicts the first draft token" if block.anchor.anchor_predicts else "is reserved"
    return f"the anchor's row {use} ({block.anchor.source})"


def _folder_types(path: Path) -> dict[str, str]:
    try:
        return {str(index): tensor.type_name for index, tensor in enumerate(stored_hf_tensors(path))}
    except BlockdraftError:
        return {}


def _tokenizer(path: Path) -> Tokenizer | None:
    try:
        return load_tokenizer(path)
    except Exception:
        return None
