"""Who may import whom, and what must stay cheap to import."""

import subprocess
import sys

import pytest
from source_files import MODULES, PACKAGE, ROOT, imported_modules, name_of


def test_the_layers_hold() -> None:
    # Not in this process: import-linter would switch off the loggers that other tests listen to.
    linter = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports(no_cache=True))"
    done = subprocess.run([sys.executable, "-c", linter], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_helpers_for_tests_are_not_used_by_the_product() -> None:
    users = [
        name_of(module)
        for module in MODULES
        if not module.is_relative_to(PACKAGE / "testing")
        and any(name.startswith("blockdraft.testing") for name in imported_modules(module))
    ]
    assert users == []


@pytest.mark.parametrize(
    "module",
    [
        "blockdraft",
        "blockdraft.errors",
        "blockdraft.cli.main",
        "blockdraft.core.acceptance",
        "blockdraft.core.random",
        "blockdraft.bench.speed.advise",
        "blockdraft.bench.speed.endpoint_side",
        "blockdraft.bench.speed.report",
        "blockdraft.deploy.deployment",
        "blockdraft.engine.workloads",
        "blockdraft.models.config",
        "blockdraft.models.references",
        "blockdraft.models.weights.gguf_header",
    ],
)
def test_an_import_that_must_be_cheap_brings_no_torch(module: str) -> None:
    _run(f"import {module}")


def test_help_brings_no_torch() -> None:
    _run("import blockdraft.cli.main as cli; cli.main(['generate', '--help'], standalone_mode=False)")


def _run(statement: str) -> None:
    """Run a statement in a new interpreter, which then holds neither torch nor transformers."""
    check = "import sys; heavy = {'torch', 'transformers'} & set(sys.modules); sys.exit(f'{heavy}' if heavy else 0)"
    done = subprocess.run([sys.executable, "-c", f"{statement}\n{check}"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
