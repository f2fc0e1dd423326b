"""From a model's place to a target that runs: GGUF files, Hugging Face folders, and the tokenizer beside them.

Own families are loaded straight into their fused layout, for torch or for the native kernels. A folder of any
other architecture goes to the slower generic path through transformers, and that is said.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

import torch

from blockdraft.errors import ConfigError, NotFoundError, UnsupportedModelError, nearest_name
from blockdraft.models.base import Target
from blockdraft.models.config import DecoderConfig, read_hf_config
from blockdraft.models.decoder import Decoder
from blockdraft.models.families import FAMILIES, find_gguf_family, find_hf_family
from blockdraft.models.packed_decoder import PackedDecoder
from blockdraft.models.placement import choose_device, choose_dtype
from blockdraft.models.references import resolve
from blockdraft.models.tokenizer import Tokenizer, load_tokenizer
from blockdraft.models.weights.fill import StoredTensor, fill
from blockdraft.models.weights.gguf_file import dominant_type, read_rope_divisors, stored_gguf_tensors
from blockdraft.models.weights.gguf_header import read_gguf_header
from blockdraft.models.weights.hf_folder import (
    dominant_float,
    refuse_other_types,
    refuse_quantized,
    stored_hf_tensors,
    weight_files,
)
from blockdraft.models.weights.kept import KeptMatrices
from blockdraft.models.weights.layout import allocate, destinations, undo_interleaved_rope
from blockdraft.models.weights.packing import pack_decoder, why_not_packed
from blockdraft.runtime.native_core import shared_core, why_unavailable

Runtime = Literal["auto", "native", "torch"]
"""What computes a model: native kernels on the CPU, torch, or the first where it can and the second where not."""

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
    runtime: Runtime = "torch",
    offline: bool | None = None,
    notify: Notify | None = None,
) -> LoadedModel:
    """Resolve a model reference, then load target and tokenizer.

    On the native runtime torch is set to one thread, for the whole process: the kernels have threads of their own, as
    many as torch had before.

    Raises:
        ModelReferenceError: the reference names nothing usable.
        ModelError: what it names cannot be run.
        ConfigError: there is no such device or dtype.
    """
    resolved = resolve(reference, offline=offline, notify=notify)
    tokenizer = load_tokenizer(resolved.path)
    target = load_target(resolved.path, device=device, dtype=dtype, runtime=runtime, notify=notify)
    if isinstance(target, PackedDecoder):
        # What is left to torch are small operations, whose threads would go on spinning on the cores of the kernels.
        torch.set_num_threads(1)
    return LoadedModel(target=target, tokenizer=tokenizer, reference=reference, path=resolved.path)


def load_target(
    path: Path,
    *,
    device: str = "auto",
    dtype: str = "auto",
    runtime: Runtime = "torch",
    notify: Notify | None = None,
) -> Target:
    """Load a GGUF file or a Hugging Face folder.

    Raises:
        NotFoundError: nothing is there.
        CheckpointError: files are missing, damaged, or do not fit their configuration.
        UnsupportedModelError: the architecture, quantisation or a feature is not supported, or not by the runtime.
        ConfigError: there is no such device, dtype or runtime, or they do not go together.
    """
    place = _Place.choose(device, dtype, runtime, notify or logger.warning)
    if path.is_dir():
        return _load_folder(path, place)
    if path.is_file():
        return _load_gguf(path, place)
    raise NotFoundError(f"there is no model at {path}")


@dataclass(frozen=True, kw_only=True)
class _Place:
    """Where and how a model is computed."""

    device: torch.device
    dtype: torch.dtype
    runtime: Runtime
    notify: Notify

    @classmethod
    def choose(cls, device: str, dtype: str, runtime: Runtime, notify: Notify) -> _Place:
        if runtime not in get_args(Runtime):
            known = get_args(Runtime)
            raise ConfigError(
                f"unknown runtime {runtime!r}{nearest_name(runtime, known)}; known are {', '.join(known)}"
            )
        if runtime == "native":
            if device not in ("auto", "cpu") or dtype != "auto":
                raise ConfigError(
                    "the native runtime computes on the CPU, with weights as they are stored: "
                    "leave --device and --dtype out, or take --runtime torch"
                )
            if reason := why_unavailable():
                raise ConfigError(f"there is no native runtime: {reason}; take --runtime torch")
            device = "cpu"
        chosen = choose_device(device)
        if runtime == "auto" and (chosen.type != "cpu" or dtype != "auto"):
            runtime = "torch"
        if runtime == "auto" and (reason := why_unavailable()):
            notify(f"computing in torch, which is slower on a CPU: {reason}")
            runtime = "torch"
        return cls(device=chosen, dtype=choose_dtype(dtype, chosen), runtime=runtime, notify=notify)

    def packs(self, config: DecoderConfig) -> bool:
        """Return whether a model runs on the native kernels.

        Raises:
            UnsupportedModelError: it was asked for and cannot.
        """
        if self.runtime == "torch":
            return False
        reason = why_not_packed(config)
        if reason and self.runtime == "native":
            raise UnsupportedModelError(f"the native kernels cannot run this model: {reason}; take --runtime torch")
        if reason:
            self.notify(f"computing in torch, as the native kernels cannot run this model: {reason}")
        return reason is None


def _load_gguf(path: Path, place: _Place) -> Target:
    header = read_gguf_header(path)
    family = find_gguf_family(header.architecture)
    config = family.config_from_gguf(header.metadata, header.shapes)
    config = replace(config, rope=replace(config.rope, freq_divisors=read_rope_divisors(header)))
    stored = stored_gguf_tensors(header, family.gguf_names)
    if place.packs(config):
        kept = KeptMatrices((path,), path.name, place.notify)
        return _packed(config, stored, kept, path, dominant_type(header), interleaved=family.gguf_interleaves_rope)
    weights = allocate(config, place.dtype, place.device)
    fill(destinations(weights, config, {tensor.name for tensor in stored}), stored, source=str(path))
    if family.gguf_interleaves_rope:
        undo_interleaved_rope(weights, config)
    return Decoder(config, weights, quantization=dominant_type(header))


def _packed(
    config: DecoderConfig,
    stored: list[StoredTensor],
    kept: KeptMatrices,
    path: Path,
    quantization: str,
    *,
    interleaved: bool,
) -> PackedDecoder:
    return PackedDecoder(
        config,
        pack_decoder(config, stored, kept, interleaved_rope=interleaved, source=str(path)),
        shared_core(),
        files=kept.files,
        quantization=quantization,
        num_parameters=sum(math.prod(tensor.shape) for tensor in stored),
    )


def _load_folder(folder: Path, place: _Place) -> Target:
    hf_config = read_hf_config(folder)
    refuse_quantized(hf_config, folder)
    config = _own_config(hf_config, place.notify)
    if config is None:
        # Seconds of import that the own families do without.
        from blockdraft.models.transformers_adapter import load_with_transformers  # noqa: PLC0415

        if place.runtime == "native":
            raise UnsupportedModelError(
                "the native kernels run only models with an own implementation; take --runtime torch"
            )
        return load_with_transformers(folder, device=place.device, dtype=place.dtype, notify=place.notify)
    stored = stored_hf_tensors(folder)
    refuse_other_types(stored, folder)
    if config.tie_embeddings:
        stored = [tensor for tensor in stored if tensor.name != "lm_head.weight"]
    if place.packs(config):
        kept = KeptMatrices(weight_files(folder), folder.name, place.notify)
        return _packed(config, stored, kept, folder, dominant_float(stored), interleaved=False)
    weights = allocate(config, place.dtype, place.device)
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
