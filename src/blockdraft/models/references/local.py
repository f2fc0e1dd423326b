"""Model references that are paths, and the checks that every resolved model passes."""

from __future__ import annotations

import difflib
from pathlib import Path

from blockdraft.errors import NotFoundError
from blockdraft.models.references.grammar import ModelReference, ResolvedModel


def resolve(reference: ModelReference) -> ResolvedModel:
    """Check that a path holds a model.

    Raises:
        NotFoundError: nothing is there, or not what a model consists of.
    """
    path = Path(reference.name).expanduser()
    if not path.exists():
        siblings = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
        near = difflib.get_close_matches(path.name, siblings, n=1)
        hint = f" (did you mean {str(path.parent / near[0])!r}?)" if near else ""
        raise NotFoundError(f"there is no file or folder {reference.name!r}{hint}")
    if path.is_dir():
        return ResolvedModel(reference, check_folder(path), "folder")
    return ResolvedModel(reference, check_gguf(path), "gguf")


def check_folder(path: Path) -> Path:
    """Return the folder if it has config.json and safetensors.

    Raises:
        NotFoundError: one of them is missing; the message says what is there instead.
    """
    if not (path / "config.json").is_file():
        found = sorted(entry.name for entry in path.glob("*.gguf"))
        instead = f"it has {', '.join(found)}: name one of these" if found else "name the folder that holds one"
        raise NotFoundError(f"{path} has no config.json; {instead}")
    if not any(path.glob("*.safetensors")):
        others = sorted(entry.name for pattern in ("*.bin", "*.pt", "*.pth") for entry in path.glob(pattern))
        instead = f"; {others[0]} is of another format, save the model as safetensors" if others else ""
        raise NotFoundError(f"{path} has no weights (*.safetensors){instead or '; complete the download'}")
    return path


def check_gguf(path: Path) -> Path:
    """Return the file if it is GGUF.

    Raises:
        NotFoundError: it is something else.
    """
    with path.open("rb") as file:
        magic = file.read(4)
    if magic != b"GGUF":
        raise NotFoundError(
            f"{path} is not a GGUF file; a model is a .gguf file or a folder with config.json and *.safetensors"
        )
    return path
