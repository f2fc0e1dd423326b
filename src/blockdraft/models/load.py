"""From a model's place to a target that runs: GGUF files, Hugging Face folders, and the tokenizer beside them.

Own families are loaded straight into their fused layout. A folder of any other architecture goes to the
slower generic path through transformers, and that is said.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from blockdraft.errors import NotFoundError, UnsupportedModelError
from blockdraft.models.base import Target
from blockdraft.models.config import DecoderConfig, read_hf_config
from blockdraft.models.decoder import Decoder
from blockdraft.models.families import FAMILIES, find_gguf_family, find_hf_family
from blockdraft.models.placement import choose_device, choose_dtype
from blockdraft.models.references import resolve
from blockdraft.models.tokenizer import Tokenizer, load_tokenizer
from blockdraft.models.weights.fill import fill
from blockdraft.models.weights.gguf_file import dominant_type, read_rope_divisors, stored_gguf_tensors
from blockdraft.models.weights.gguf_header import read_gguf_header
from blockdraft.models.weights.hf_folder import dominant_float, refuse_other_types, refuse_quantized, stored_hf_tensors
from blockdraft.models.weights.layout import allocate, destinations, undo_interleaved_rope

Notify = Callable[[str], None]
"""Is told, in one line, what a user should know about a load."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class LoadedModel:
    """A target, its tokenizer, and where both came from."""

    target: Target
    tokenizer: Tokenizer
    reference: str
    path: Path


def load_model(
    reference: str,
    *,
    device: str = "auto",
    dtype: str = "auto",
    offline: bool | None = None,
    notify: Notify | None = None,
) -> LoadedModel:
    """Resolve a model reference, then load target and tokenizer.

    Raises:
        ModelReferenceError: the reference names nothing usable.
        ModelError: what it names cannot be run.
        ConfigError: there is no such device or dtype.
    """
    resolved = resolve(reference, offline=offline, notify=notify)
    tokenizer = load_tokenizer(resolved.path)
    target = load_target(resolved.path, device=device, dtype=dtype, notify=notify)
    return LoadedModel(target=target, tokenizer=tokenizer, reference=reference, path=resolved.path)


def load_target(path: Path, *, device: str = "auto", dtype: str = "auto", notify: Notify | None = None) -> Target:
    """Load a GGUF file or a Hugging Face folder.

    Raises:
        NotFoundError: nothing is there.
        CheckpointError: files are missing, damaged, or do not fit their configuration.
        UnsupportedModelError: the architecture, quantisation or a feature is not supported.
        ConfigError: there is no such device or dtype.
    """
    place = choose_device(device)
    kind = choose_dtype(dtype, place)
    if path.is_dir():
        return _load_folder(path, place, kind, notify or logger.warning)
    if path.is_file():
        return _load_gguf(path, place, kind)
    raise NotFoundError(f"there is no model at {path}")


def _load_gguf(path: Path, device: torch.device, dtype: torch.dtype) -> Decoder:
    header = read_gguf_header(path)
    family = find_gguf_family(header.architecture)
    config = family.config_from_gguf(header.metadata, header.shapes)
    config = replace(config, rope=replace(config.rope, freq_divisors=read_rope_divisors(header)))
    stored = stored_gguf_tensors(header, family.gguf_names)
    weights = allocate(config, dtype, device)
    fill(destinations(weights, config, {tensor.name for tensor in stored}), stored, source=str(path))
    if family.gguf_interleaves_rope:
        undo_interleaved_rope(weights, config)
    return Decoder(config, weights, quantization=dominant_type(header))


def _load_folder(folder: Path, device: torch.device, dtype: torch.dtype, notify: Notify) -> Target:
    hf_config = read_hf_config(folder)
    refuse_quantized(hf_config, folder)
    config = _own_config(hf_config, notify)
    if config is None:
        # Seconds of import that the own families do without.
        from blockdraft.models.transformers_adapter import load_with_transformers  # noqa: PLC0415

        return load_with_transformers(folder, device=device, dtype=dtype, notify=notify)
    stored = stored_hf_tensors(folder)
    refuse_other_types(stored, folder)
    if config.tie_embeddings:
        stored = [tensor for tensor in stored if tensor.name != "lm_head.weight"]
    weights = allocate(config, dtype, device)
    fill(destinations(weights, config, {tensor.name for tensor in stored}), stored, source=str(folder))
    return Decoder(config, weights, quantization=dominant_float(stored))


def _own_config(hf_config: Mapping[str, Any], notify: Notify) -> DecoderConfig | None:
    """Return the configuration for an own implementation, or None if transformers has to run the model."""
    family = find_hf_family(hf_config)
    names = ", ".join(hf_config.get("architectures") or ["an unnamed architecture"])
    if family is None:
        notify(f"{names} has no own implementation (those are for {', '.join(FAMILIES)})")
        return None
    try:
        return family.config_from_hf(hf_config)
    except UnsupportedModelError as error:
        notify(f"the own implementation of {names} cannot run this model: {error}")
        return None
