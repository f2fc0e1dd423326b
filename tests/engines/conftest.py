"""The drafters that peers are given, and the default model in the files that peers read.

BLOCKDRAFT_ENGINES_DFLASH and BLOCKDRAFT_ENGINES_DSPARK name other drafters of the default model than the shipped ones.
"""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from target_files import write_bf16_gguf

import blockdraft
from blockdraft.drafters.config import SpecConfig
from blockdraft.engine import Engine
from blockdraft.errors import NotFoundError
from blockdraft.models.load import LoadedModel, load_model
from blockdraft.models.references import DEFAULT_MODEL, resolve


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
