"""Nothing in the repository depends on, or speaks of, the machine it was written on."""

import re
import subprocess
from pathlib import Path

from source_files import ROOT

# Spelt so that this file does not match itself.
MACHINE_PATHS = re.compile("|".join(rf"(?<![\w./~-])/{name}/" for name in ("work", "home", "root", "Users", "mnt")))
INDEX_OPTIONS = re.compile(r"--(?:extra-)?index-url|--trusted-host|--find-links")


def tracked_files() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [path for name in listed.split("\0") if name and (path := ROOT / name).is_file()]


def lines_that_match(pattern: re.Pattern[str], paths: list[Path]) -> list[str]:
    return [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in paths
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), start=1)
        if pattern.search(line)
    ]


def test_no_file_names_a_path_of_a_machine() -> None:
    assert lines_that_match(MACHINE_PATHS, tracked_files()) == []


def test_nothing_tells_pip_where_the_index_is() -> None:
    product = [path for path in tracked_files() if not path.is_relative_to(ROOT / "tests")]
    assert lines_that_match(INDEX_OPTIONS, product) == []


def test_sources_ship_their_types() -> None:
    assert (ROOT / "src" / "blockdraft" / "py.typed").is_file()
