"""What is known of the models of a plan: from files on this machine, else from the registry. Imports no torch."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from blockdraft.deploy.bits import quantization_in_name
from blockdraft.deploy.gguf_facts import draft_from_gguf, target_from_gguf
from blockdraft.deploy.model_facts import DraftFacts, TargetFacts, draft_from_hf, target_from_hf, with_registry
from blockdraft.deploy.pairs import Base, find_base, find_drafter, registered_target
from blockdraft.errors import CheckpointError
from blockdraft.models.config import read_hf_config

_INDEX = "model.safetensors.index.json"
_HEADER_LIMIT = 64 << 20


@dataclass(frozen=True, kw_only=True)
class KnownTarget:
    """A target, as far as it is known."""

    reference: str
    """What an engine is to load: the path of a file that came in a package, else what was named."""
    facts: TargetFacts | None
    base: Base | None


def known_target(reference: str) -> KnownTarget:
    """Return what is known of a target.

    Raises:
        ConfigError: its files are those of another model than its name says.
        CheckpointError: its files are damaged.
    """
    reference = unpacked(reference)
    path = local_path(reference)
    if path is None:
        base = find_base(reference)
        if base is None:
            return KnownTarget(reference=reference, facts=None, base=None)
        facts = registered_target(base.name)
        scheme = quantization_in_name(reference)
        known = replace(facts, name=reference, quantization=scheme, origin=f"the registry's {base.name}")
        return KnownTarget(reference=reference, facts=known, base=base)
    if path.suffix == ".gguf":
        header = _gguf(path)
        facts = target_from_gguf(header.metadata, header.shapes, reference, file_bytes=path.stat().st_size)
        named = [str(value) for key, value in header.metadata.items() if key.startswith("general.base_model.")]
        return KnownTarget(reference=reference, facts=facts, base=find_base(reference, facts, named))
    config = read_hf_config(path)
    shapes = _shapes(path)
    facts = replace(
        target_from_hf(config, reference),
        file_bytes=_bytes_of(path) if shapes else None,
        tensor_names=frozenset(shapes) or None,
    )
    named = [str(config[key]) for key in ("_name_or_path", "base_model") if config.get(key)]
    return KnownTarget(reference=reference, facts=facts, base=find_base(reference, facts, named))


def unpacked(reference: str) -> str:
    """Return the path of a file that came in a package; other references as they are.

    Raises:
        ModelReferenceError: the package is not here.
    """
    if not reference.startswith(("pypi:", "builtin:")):
        return reference
    from blockdraft.models.references import resolve  # noqa: PLC0415 - few references are of this kind

    return str(resolve(reference, offline=True).path)


def known_draft(reference: str) -> DraftFacts | None:
    """Return what is known of a drafter.

    Raises:
        CheckpointError: its files are damaged.
    """
    found = find_drafter(reference)
    registered = found.facts if found else None
    path = local_path(unpacked(reference))
    if path is None:
        scheme = quantization_in_name(reference)
        return replace(registered, quantization=scheme) if registered and scheme else registered
    if path.suffix == ".gguf":
        header = _gguf(path)
        size = path.stat().st_size
        return with_registry(draft_from_gguf(header.metadata, header.shapes, reference, file_bytes=size), registered)
    shapes = _shapes(path)
    names = [entry.name for entry in path.iterdir()]
    read = draft_from_hf(read_hf_config(path), reference, shapes=shapes or None, file_names=names)
    return with_registry(replace(read, file_bytes=_bytes_of(path) if shapes else None), registered)


def local_path(reference: str) -> Path | None:
    """Return where a model lies on this machine: a path that exists, or its folder in the hub's cache; else None."""
    path = Path(reference).expanduser()
    if path.is_dir() and (path / "config.json").is_file():
        return path
    if path.suffix == ".gguf" and path.is_file():
        return path
    name = reference.removeprefix("hf:").split("@")[0].split(":")[0]
    if name.count("/") != 1:
        return None
    home = os.environ.get("HF_HUB_CACHE") or Path(os.environ.get("HF_HOME") or "~/.cache/huggingface") / "hub"
    snapshots = Path(home).expanduser() / f"models--{name.replace('/', '--')}" / "snapshots"
    cached = [folder for folder in sorted(snapshots.glob("*")) if (folder / "config.json").is_file()]
    return cached[-1] if cached else None


def _gguf(path: Path) -> Any:
    from blockdraft.models.weights.gguf_header import read_gguf_header  # noqa: PLC0415 - it imports numpy

    return read_gguf_header(path)


def _weight_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.safetensors"))


def _bytes_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in _weight_files(folder))


def _shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """Return the tensors of a folder with their shapes; empty shapes where only an index is there."""
    index = folder / _INDEX
    names: dict[str, tuple[int, ...]] = {}
    if index.is_file():
        names = dict.fromkeys(json.loads(index.read_text(encoding="utf-8")).get("weight_map", {}), ())
    for path in _weight_files(folder):
        names |= dict(_tensors(path))
    return names


def _tensors(path: Path) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Read the header of a safetensors file: its length in 8 bytes, then JSON.

    Ref: https://huggingface.co/docs/safetensors/index#format
    """
    with path.open("rb") as file:
        start = file.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else _HEADER_LIMIT
        try:
            header: Mapping[str, Any] = json.loads(file.read(length)) if length < _HEADER_LIMIT else {}
        except ValueError as error:
            raise CheckpointError(f"the header of {path} is damaged ({error}); download the file again") from error
    for name, entry in header.items():
        if name != "__metadata__":
            yield name, tuple(entry.get("shape", ()))
