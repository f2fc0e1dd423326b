"""The source files that the tests of this folder look at. Run as a script, it reports the longest."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "blockdraft"
MODULES = sorted(PACKAGE.rglob("*.py"))
PYTHON_FILES = [*MODULES, *sorted((ROOT / "tests").rglob("*.py")), *sorted((ROOT / "benchmarks").rglob("*.py"))]

MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 60


def name_of(path: Path) -> str:
    """Return a file's path inside the repository."""
    return path.relative_to(ROOT).as_posix()


def parse(path: Path) -> ast.Module:
    """Return the syntax tree of a file."""
    return ast.parse(path.read_text(encoding="utf-8"))


def file_sizes() -> dict[str, int]:
    """Return the lines of every file."""
    return {name_of(path): len(path.read_text(encoding="utf-8").splitlines()) for path in PYTHON_FILES}


def function_sizes() -> dict[str, int]:
    """Return the lines of every function and method."""
    return {
        f"{name_of(path)}:{node.lineno} {node.name}": (node.end_lineno or node.lineno) - node.lineno + 1
        for path in PYTHON_FILES
        for node in ast.walk(parse(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def imported_modules(path: Path) -> set[str]:
    """Return the absolute names of all modules that a file imports, inside functions too."""
    names: set[str] = set()
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
    return names


if __name__ == "__main__":
    for sizes, budget in ((file_sizes(), MAX_FILE_LINES), (function_sizes(), MAX_FUNCTION_LINES)):
        print(f"longest, of at most {budget} lines:")
        for name in sorted(sizes, key=sizes.__getitem__, reverse=True)[:3]:
            print(f"  {sizes[name]:4} {name}")
