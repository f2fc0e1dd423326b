"""Drafters that come with the package: found by name, checked, and missed with a sentence."""

import hashlib
from pathlib import Path

import pytest

from blockdraft.errors import DownloadError, NotFoundError, ReferenceSyntaxError
from blockdraft.models.references import ModelReference, builtin, resolve

CONTENT = b"GGUF and the rest"


@pytest.fixture
def shipped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Pretend that one of the two is installed."""
    monkeypatch.setattr(builtin, "folder", lambda: tmp_path)
    (tmp_path / "smollm2-dspark.gguf").write_bytes(CONTENT)
    digest = hashlib.sha256(CONTENT).hexdigest()
    (tmp_path / "SHA256SUMS").write_text(f"{digest}  smollm2-dspark.gguf\n")
    return tmp_path


def test_a_builtin_name_is_a_file_of_the_package(shipped: Path) -> None:
    found = resolve("builtin:smollm2-dspark")
    assert (found.path, found.kind) == (shipped / "smollm2-dspark.gguf", "gguf")
    assert str(ModelReference.parse("builtin:smollm2-dspark")) == "builtin:smollm2-dspark"


def test_a_file_that_is_not_installed_is_missed_with_a_remedy(shipped: Path) -> None:
    with pytest.raises(NotFoundError, match=r"came without builtin:smollm2-dflash; install the whole package"):
        resolve("builtin:smollm2-dflash")


def test_a_damaged_or_unlisted_file_is_not_used(shipped: Path) -> None:
    (shipped / "smollm2-dspark.gguf").write_bytes(CONTENT + b"!")
    with pytest.raises(DownloadError, match="differs from what SHA256SUMS announces"):
        resolve("builtin:smollm2-dspark")
    (shipped / "smollm2-dflash.gguf").write_bytes(CONTENT)
    with pytest.raises(DownloadError, match="SHA256SUMS"):
        resolve("builtin:smollm2-dflash")


def test_other_names_are_corrected(shipped: Path) -> None:
    with pytest.raises(NotFoundError, match="did you mean 'smollm2-dspark'"):
        resolve("builtin:smollm-dspark")
    with pytest.raises(ReferenceSyntaxError, match="builtin:NAME"):
        resolve("builtin:a b")
    with pytest.raises(ReferenceSyntaxError, match="did you mean 'builtin'"):
        resolve("buildin:smollm2-dspark")


@pytest.mark.parametrize("name", [name for name in builtin.NAMES if builtin.is_installed(name)])
def test_what_is_installed_equals_its_checksum(name: str) -> None:
    assert resolve(f"builtin:{name}").path.suffix == ".gguf"
