"""Loading holds no tensor twice: the peak of anonymous memory stays near the size of the loaded weights."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from blockdraft.models.references import DEFAULT_MODEL, resolve
from blockdraft.testing.tiny_gguf import write_tiny_gguf
from blockdraft.testing.tiny_models import write_tiny_model

PROBE = """
import json, sys, threading, time
from pathlib import Path
import torch
from blockdraft.models.load import load_target

def anonymous_bytes():
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return 1024 * int(line.split()[1])

path, dtype, tiny = sys.argv[1:]
load_target(Path(tiny), device="cpu", dtype=dtype)  # imports and caches of the libraries
before, peak, done = anonymous_bytes(), 0, threading.Event()

def watch():
    global peak
    while not done.is_set():
        peak = max(peak, anonymous_bytes())
        time.sleep(0.001)

watcher = threading.Thread(target=watch)
watcher.start()
target = load_target(Path(path), device="cpu", dtype=dtype)
done.set()
watcher.join()
print(json.dumps({"weight_bytes": target.info.weight_bytes, "peak_bytes": max(peak, anonymous_bytes()) - before}))
"""

BIG: dict[str, Any] = {
    "vocab_size": 32768,
    "hidden_size": 768,
    "intermediate_size": 2048,
    "num_hidden_layers": 4,
    "num_attention_heads": 12,
    "head_dim": 64,
}
"""About 150 MB in bfloat16, a third of it in the embedding and a third in the head."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads RssAnon from /proc"),
]


def measure(path: Path, dtype: str, tiny: Path) -> tuple[int, int]:
    """Return bytes of the loaded weights and the peak of anonymous memory that loading added, in a fresh process."""
    result = subprocess.run(
        [sys.executable, "-c", PROBE, str(path), dtype, str(tiny)], capture_output=True, text=True, check=True
    )
    report = json.loads(result.stdout)
    return report["weight_bytes"], report["peak_bytes"]


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_safetensors_peak_stays_near_the_weights(dtype: str, tmp_path: Path) -> None:
    big = write_tiny_model(tmp_path / "big", "llama", dtype=torch.bfloat16, **BIG)
    weight_bytes, peak_bytes = measure(big, dtype, write_tiny_model(tmp_path / "tiny"))
    assert weight_bytes > 120e6
    assert 0.9 * weight_bytes < peak_bytes < 1.3 * weight_bytes


@pytest.mark.parametrize("family", ["llama", "qwen3_moe"])
def test_gguf_peak_stays_near_the_weights(family: str, tmp_path: Path) -> None:
    experts = {"num_experts": 16, "moe_intermediate_size": 512, "mlp_only_layers": [], "vocab_size": 16384}
    options = BIG | (experts if family == "qwen3_moe" else {})
    big = write_tiny_gguf(tmp_path / "big.gguf", family, "Q8_0", **options)
    weight_bytes, peak_bytes = measure(big, "bfloat16", write_tiny_gguf(tmp_path / "tiny.gguf", family))
    assert weight_bytes > 100e6
    assert 0.9 * weight_bytes < peak_bytes < 1.3 * weight_bytes


@pytest.mark.network
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_the_default_models_peak_stays_near_the_weights(dtype: str, tmp_path: Path) -> None:
    weight_bytes, peak_bytes = measure(resolve(DEFAULT_MODEL).path, dtype, write_tiny_gguf(tmp_path / "tiny.gguf"))
    assert 0.9 * weight_bytes < peak_bytes < 1.3 * weight_bytes
