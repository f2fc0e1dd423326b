"""Models on the Hugging Face hub, through huggingface_hub: its cache, its token, its resumed transfers."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

from huggingface_hub import HfApi, errors, hf_hub_download, snapshot_download

from blockdraft.errors import DownloadError, NotFoundError, nearest_name
from blockdraft.models.references.grammar import ModelReference, ResolvedModel
from blockdraft.models.references.local import check_folder, check_gguf

_WANTED = ["*.json", "*.safetensors", "*.jinja", "*.txt", "*.model"]
_UNWANTED = ["original/*", "consolidated*", "onnx/*"]
"""Second copies of the weights in other layouts."""


def resolve(reference: ModelReference, *, offline: bool, notify: Callable[[str], None]) -> ResolvedModel:
    """Return the cached snapshot (or file) of a repository, fetching what is missing.

    Raises:
        NotFoundError: no such repository, revision or file, no access to it, or not cached and no network.
        DownloadError: the hub answered with an error.
    """
    if not offline:
        notify(f"looking up {reference} on the Hugging Face hub")
    with _explained(reference, offline=offline):
        if reference.file is not None:
            path = hf_hub_download(
                reference.name, reference.file, revision=reference.revision, local_files_only=offline
            )
            return ResolvedModel(reference, check_gguf(Path(path)), "gguf")
        folder = Path(
            snapshot_download(
                reference.name,
                revision=reference.revision,
                allow_patterns=_WANTED,
                ignore_patterns=_UNWANTED,
                local_files_only=offline,
            )
        )
        if not (folder / "config.json").is_file() and (files := _gguf_files(reference, folder, offline=offline)):
            raise NotFoundError(
                f"{reference} has no config.json but GGUF files; name one of them, like {reference}:{files[0]} "
                f"(there are: {', '.join(files)})"
            )
        return ResolvedModel(reference, check_folder(folder), "folder")


def _gguf_files(reference: ModelReference, folder: Path, *, offline: bool) -> list[str]:
    if offline:
        return sorted(file.relative_to(folder).as_posix() for file in folder.rglob("*.gguf"))
    files = HfApi().list_repo_files(reference.name, revision=reference.revision)
    return sorted(file for file in files if file.endswith(".gguf"))


@contextlib.contextmanager
def _explained(reference: ModelReference, *, offline: bool) -> Iterator[None]:
    """Turn the hub client's errors into ours; the order matters, they inherit from each other."""
    try:
        yield
    except errors.GatedRepoError as error:
        raise NotFoundError(
            f"{reference.name} is gated: accept its terms on https://huggingface.co/{reference.name}, "
            f"then set HF_TOKEN to a token that may read it"
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise NotFoundError(
            f"the Hugging Face hub has no repository {reference.name!r}, or it is private; "
            f"check the name, or set HF_TOKEN to a token that may read it"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise NotFoundError(
            f"{reference.name} has no revision {reference.revision!r}; leave it out for main"
        ) from error
    except errors.LocalEntryNotFoundError as error:
        why = (
            "and offline mode is on (--offline, BLOCKDRAFT_OFFLINE, HF_HUB_OFFLINE)"
            if offline
            else "and the hub does not answer"
        )
        raise NotFoundError(f"{reference} is not cached {why}; run once with a network") from error
    except errors.EntryNotFoundError as error:
        raise NotFoundError(f"{reference.name} has no file {reference.file!r}{_other_files(reference)}") from error
    except (errors.HfHubHTTPError, errors.OfflineModeIsEnabled, errors.HFValidationError) as error:
        raise DownloadError(f"fetching {reference} failed: {_first_line(error)}") from error


def _other_files(reference: ModelReference) -> str:
    """Return what to name instead of a file that is not there."""
    try:
        names = HfApi().list_repo_files(reference.name, revision=reference.revision)
    except OSError:  # the hub client's errors are OSErrors; the message is true without the list
        return "; look at the repository's page for its files"
    files = sorted(name for name in names if name.endswith(".gguf"))
    return nearest_name(reference.file or "", files) + (
        f"; it has {', '.join(files)}" if files else "; it has no .gguf"
    )


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
