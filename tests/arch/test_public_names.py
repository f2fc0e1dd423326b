"""What the package exports exists and is explained."""

import ast
import inspect
import re
from collections.abc import Iterator

import pytest
from source_files import MODULES, name_of, parse

import blockdraft
from blockdraft import errors
from blockdraft.errors import BlockdraftError


@pytest.mark.parametrize("name", [name for name in blockdraft.__all__ if name != "__version__"])
def test_every_exported_name_resolves_and_has_a_docstring(name: str) -> None:
    exported = getattr(blockdraft, name)
    assert exported.__module__.startswith("blockdraft.")
    assert inspect.getdoc(exported)
    if inspect.isclass(exported):
        # A dataclass without one gets its signature as docstring, which explains nothing.
        assert not exported.__doc__.startswith(f"{name}(")


def test_a_name_that_is_not_exported_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        blockdraft.nothing  # noqa: B018


@pytest.mark.parametrize("module", MODULES, ids=name_of)
def test_every_module_says_what_it_does(module: object) -> None:
    assert ast.get_docstring(parse(module))


def test_the_tree_of_errors_is_drawn_as_it_is() -> None:
    names = re.compile(r"^((?:[│ ] {3}|[├└]── )*)(\w+)", re.MULTILINE)
    drawing = inspect.cleandoc(errors.__doc__).split("\n\n")[1]
    drawn = [(len(match[1]) // 4, match[2]) for match in names.finditer(inspect.cleandoc(drawing))]
    assert sorted(drawn) == sorted(_tree(BlockdraftError))
    for index, (depth, name) in enumerate(drawn[1:], start=1):
        parent = next(above for level, above in reversed(drawn[:index]) if level == depth - 1)
        assert getattr(errors, name).__bases__ == (getattr(errors, parent),)


def _tree(kind: type[BlockdraftError], depth: int = 0) -> Iterator[tuple[int, str]]:
    yield depth, kind.__name__
    for child in kind.__subclasses__():
        if child.__module__ == errors.__name__:
            yield from _tree(child, depth + 1)
