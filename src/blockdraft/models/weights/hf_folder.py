"""The tensors of a Hugging Face folder: one safetensors file or several with an index.

Only headers are read here; rows come from the mapped files when they are copied.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from blockdraft.errors import CheckpointError, UnsupportedModelError
from blockdraft.models.weights.fill import StoredTensor

_FLOATS = {"F64": "f64", "F32": "f32", "F16": "f16", "BF16": "bf16"}
_INDEX = "model.safetensors.index.json"


def weight_files(folder: Path) -> list[Path]:
    """Return the safetensors files of a model folder.

    Raises:
        CheckpointError: there are none, or some that the index lists are missing.
    """
    index = folder / _INDEX
    if index.exists():
        try:
            names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        except (ValueError, KeyError, AttributeError) as error:
            raise CheckpointError(f"{index} is damaged ({error!r}); download the model again") from error
        files = [folder / name for name in names]
    else:
        files = [folder / "model.safetensors"]
    missing = [file.name for file in files if not file.exists()]
    if missing:
        raise CheckpointError(
            f"{folder} lacks {', '.join(missing)}; download the model again, or convert other formats to safetensors"
        )
    return files


def stored_hf_tensors(folder: Path) -> list[StoredTensor]:
    """Return the tensors of all files, but for buffers that can be recomputed.

    Raises:
        CheckpointError: a file is missing or damaged.
    """
    stored = []
    for path in weight_files(folder):
        try:
            file: Any = safe_open(path, framework="pt")
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{path} cannot be read ({error}); download the model again") from error
        for name, part in slices.items():
            # Old checkpoints carry the rope frequencies as a buffer of every layer.
            if name.endswith("rotary_emb.inv_freq"):
                continue
            kind = part.get_dtype()
            stored.append(
                StoredTensor(
                    name=name,
                    shape=tuple(part.get_shape()),
                    type_name=_FLOATS.get(kind, kind),
                    read_rows=_row_reader(part),
                )
            )
    return stored


def refuse_quantized(config: Mapping[str, Any], folder: Path) -> None:
    """Refuse folders that declare a quantisation (AWQ, GPTQ, FP8, ...).

    Raises:
        UnsupportedModelError: config.json has a quantisation, which is named.
    """
    quantization = config.get("quantization_config") or config.get("compression_config")
    if quantization:
        method = str(quantization.get("quant_method", "an unnamed method"))
        raise UnsupportedModelError(
            f"{folder} is quantised with {method!r}, which blockdraft does not compute; use the unquantised folder "
            "or a GGUF file of the same model"
        )


def refuse_other_types(stored: list[StoredTensor], folder: Path) -> None:
    """Refuse tensors that are not plain floating point.

    Raises:
        UnsupportedModelError: there is one; it is named.
    """
    other = next((tensor for tensor in stored if tensor.type_name not in _FLOATS.values()), None)
    if other is not None:
        raise UnsupportedModelError(
            f"{folder} stores {other.name} as {other.type_name}; only {', '.join(_FLOATS)} can be read. "
            "Use the unquantised folder or a GGUF file of the same model."
        )


def dominant_float(stored: list[StoredTensor]) -> str:
    """Return the type that most elements of the matrices are stored in."""
    elements: Counter[str] = Counter()
    for tensor in stored:
        if len(tensor.shape) > 1:
            elements[tensor.type_name] += math.prod(tensor.shape)
    return elements.most_common(1)[0][0] if elements else "f32"


def _row_reader(part: Any) -> Callable[[int, int], Tensor]:
    return lambda start, end: part[start:end]
