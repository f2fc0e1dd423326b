"""Drafters that come with the package: files beside the code, each checked against the list beside it."""

from __future__ import annotations

import hashlib
from importlib.resources import files
from pathlib import Path

from blockdraft.errors import DownloadError, NotFoundError, nearest_name
from blockdraft.models.references.grammar import ModelReference, ResolvedModel
from blockdraft.models.references.local import check_gguf

NAMES = ("smollm2-dspark", "smollm2-dflash")
"""DSpark and DFlash for the default model."""

CHECKSUMS = "SHA256SUMS"


def folder() -> Path:
    """Return where the files are, if they are."""
    return Path(str(files("blockdraft"))) / "drafters" / "shipped"


def is_installed(name: str) -> bool:
    """Return whether this installation has the file."""
    return _path(name).is_file()


def resolve(reference: ModelReference) -> ResolvedModel:
    """Return the file that a name stands for.

    Raises:
        NotFoundError: there is no such name, or this installation came without the file.
        DownloadError: the file is damaged.
    """
    name = reference.name
    if name not in NAMES:
        raise NotFoundError(
            f"there is no builtin drafter {name!r}{nearest_name(name, NAMES)}; {', '.join(NAMES)} exist"
        )
    if not is_installed(name):
        raise NotFoundError(
            f"this installation of blockdraft came without {reference}; install the whole package, "
            "name another drafter, or use --drafter ngram-mod, which needs no file"
        )
    path = check_gguf(_path(name))
    if _listed(path.name) != hashlib.sha256(path.read_bytes()).hexdigest():
        raise DownloadError(f"{path} differs from what {CHECKSUMS} announces; install blockdraft again")
    return ResolvedModel(reference, path, "gguf")


def _path(name: str) -> Path:
    return folder() / f"{name}.gguf"


def _listed(file_name: str) -> str | None:
    """Return the checksum of a file, in the format of `sha256sum`."""
    checksums = folder() / CHECKSUMS
    if not checksums.is_file():
        return None
    lines = (line.split() for line in checksums.read_text(encoding="utf-8").splitlines() if line.strip())
    return {name.removeprefix("*"): digest for digest, name in lines}.get(file_name)
