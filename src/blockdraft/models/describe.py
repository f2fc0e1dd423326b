"""What `blockdraft inspect` shows of a model: read from headers and configuration, never from weights."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from blockdraft.errors import NotFoundError, UnsupportedModelError
from blockdraft.models.config import DecoderConfig, read_hf_config
from blockdraft.models.families import find_gguf_family, find_hf_family
from blockdraft.models.weights.gguf_file import type_name
from blockdraft.models.weights.gguf_header import read_gguf_header
from blockdraft.models.weights.hf_folder import stored_hf_tensors, weight_files


def describe(path: Path) -> dict[str, Any]:
    """Return family, sizes, context, rope, and the types of the stored tensors, as plain data.

    Raises:
        NotFoundError: nothing is there.
        CheckpointError: the files are damaged or incomplete.
        UnsupportedModelError: it is a GGUF file of an architecture without an own implementation.
    """
    if path.is_dir():
        return _describe_folder(path)
    if not path.is_file():
        raise NotFoundError(f"there is no model at {path}")
    header = read_gguf_header(path)
    family = find_gguf_family(header.architecture)
    tensors = header.tensors.values()
    return {
        "format": "gguf",
        "name": header.metadata.get("general.name"),
        **_sizes(family.config_from_gguf(header.metadata, header.shapes)),
        **_histogram((type_name(tensor), tensor.shape) for tensor in tensors),
        "file_bytes": path.stat().st_size,
    }


def _describe_folder(folder: Path) -> dict[str, Any]:
    config = read_hf_config(folder)
    stored = stored_hf_tensors(folder)
    return {
        "format": "safetensors",
        "name": config.get("_name_or_path") or folder.name,
        **_folder_sizes(config),
        **_histogram((tensor.type_name, tensor.shape) for tensor in stored),
        "quantization_config": config.get("quantization_config"),
        "file_bytes": sum(file.stat().st_size for file in weight_files(folder)),
    }


def _folder_sizes(config: dict[str, Any]) -> dict[str, Any]:
    generic = {
        "family": f"transformers:{config.get('model_type', 'unknown')}",
        "num_layers": config.get("num_hidden_layers"),
        "hidden_size": config.get("hidden_size"),
        "vocab_size": config.get("vocab_size"),
        "context_length": config.get("max_position_embeddings"),
    }
    family = find_hf_family(config)
    if family is None:
        return generic
    try:
        return _sizes(family.config_from_hf(config))
    except UnsupportedModelError as error:
        return generic | {"why_generic": str(error)}


def _sizes(config: DecoderConfig) -> dict[str, Any]:
    moe = config.moe
    return {
        "family": config.family,
        "num_layers": config.num_layers,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_heads": config.num_heads,
        "num_kv_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "vocab_size": config.vocab_size,
        "context_length": config.context_length,
        "tie_embeddings": config.tie_embeddings,
        "rope": {"theta": config.rope.theta, "type": config.rope.rope_type, "factor": config.rope.factor},
        "sliding_window": next((window for window in config.windows if window is not None), None),
        "experts": None
        if moe is None
        else {
            "num_experts": moe.num_experts,
            "num_active": moe.num_active,
            "intermediate_size": moe.intermediate_size,
            "num_layers": len(moe.layers),
        },
    }


def _histogram(tensors: Iterable[tuple[str, tuple[int, ...]]]) -> dict[str, Any]:
    counts: Counter[str] = Counter()
    elements: Counter[str] = Counter()
    for kind, shape in tensors:
        counts[kind] += 1
        elements[kind] += math.prod(shape)
    return {
        "num_parameters": sum(elements.values()),
        "stored_as": {kind: {"num_tensors": counts[kind], "num_elements": n} for kind, n in elements.most_common()},
    }
