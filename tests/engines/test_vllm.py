"""An exported DFlash drafter in vLLM on the CPU keeps as much as in our engine, at the same draft length.

It runs only if BLOCKDRAFT_RUN_VLLM is set to 1, as vLLM gets an environment of its own first.
"""

import json
import os
import subprocess
from pathlib import Path

import pytest
from measure import MAX_TOKENS, Acceptance, check_equal, measure_own, prompts_of
from target_files import write_llama_folder

from blockdraft.drafters.draft_checkpoint import open_draft_checkpoint
from blockdraft.train.export import export_drafter

pytestmark = [pytest.mark.engines, pytest.mark.slow, pytest.mark.network]

NUM_DRAFTS = 7
PROGRAM = Path(__file__).with_name("vllm_program.py")


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
