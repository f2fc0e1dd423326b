"""Links lead somewhere, the folder map is the tree, the changelog knows the version."""

import re
import tomllib
from pathlib import Path

import pytest
from markdown_pages import PAGES, ROOT, anchors_of, blocks_of, links_of, name_of

import blockdraft


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_link_inside_the_repository_resolves(page: Path) -> None:
    for link in links_of(page):
        if link.startswith(("https://", "http://", "mailto:")):
            continue
        path, _, anchor = link.partition("#")
        destination = (page.parent / path).resolve() if path else page
        assert destination.exists(), f"{link} leads nowhere"
        assert not anchor or anchor in anchors_of(destination), f"{link}: there is no such heading"


def test_every_page_can_be_reached_from_the_index() -> None:
    index = ROOT / "docs" / "index.md"
    linked = {(index.parent / link).resolve() for link in links_of(index)}
    assert {page for page in PAGES if page.is_relative_to(index.parent)} - linked == {index}


def test_the_folder_map_of_the_readme_is_the_tree() -> None:
    [block] = [block for block in blocks_of(ROOT / "README.md", "") if "src/blockdraft/" in block.text]
    package = {line.split()[0].rstrip("/") for line in block.text.splitlines() if line.startswith("  ")}
    own = ROOT / "src" / "blockdraft"
    folders = {path.parent.name for path in own.glob("*/__init__.py")}
    assert package == folders | {path.name for path in own.glob("*.py") if path.name != "__init__.py"}
    others = [line.split()[0] for line in block.text.splitlines() if line and not line.startswith(" ")]
    assert all((ROOT / name).is_dir() for name in others), others


def test_the_changelog_begins_with_the_current_version() -> None:
    versions = re.findall(r"^## \[([^\]]+)\]", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert versions[0] == blockdraft.__version__


def test_the_version_and_the_licence_are_stated_once_and_alike() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert (project["version"], project["license"]) == (blockdraft.__version__, "Apache-2.0")
    assert "Apache License" in (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert "Apache-2.0" in (ROOT / "README.md").read_text(encoding="utf-8")
