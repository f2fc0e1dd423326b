"""How far native kernels, and llama.cpp beside them, are from the same file computed in float32.

    python benchmarks/native_quality.py --prompts FILE.jsonl --llama-perplexity PATH

Kullback-Leibler divergence of the next token over windows of text, and how often the most likely token agrees. Weights
are those of the file on both sides, so what is measured is the rounding of activations. As in llama.cpp's tool, the
first half of each window is context and does not count. Its own reference is the file converted to float32.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import tempfile
from pathlib import Path

import gguf
import numpy as np
import torch

from blockdraft.models.base import Segment, Target
from blockdraft.models.load import load_target
from blockdraft.models.references import resolve
from blockdraft.models.tokenizer import load_tokenizer
from common import emit, idle_check, make_parser, print_table, say, workloads
from requantised import convert

WINDOW = 512
"""Tokens of a window, as llama.cpp's tool takes them by default."""

_FIGURES = {
    "mean": re.compile(r"Mean\s+KLD:\s+([\d.eE+-]+)"),
    "max": re.compile(r"Maximum KLD:\s+([\d.eE+-]+)"),
    "median": re.compile(r"Median\s+KLD:\s+([\d.eE+-]+)"),
    "same_top": re.compile(r"Same top p:\s+([\d.]+)"),
}


def window_logits(target: Target, window: list[int]) -> torch.Tensor:
    """Return the logits of the second half. Shapes: returns [WINDOW / 2 - 1, V]."""
    count = WINDOW // 2
    output = target.forward([Segment(token_ids=window, cache=target.new_cache(WINDOW), num_logits=count)])
    return output.logits[:-1].double()  # what follows the last token is not known


def divergences(reference: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Return the divergence of each row. Shapes: two [R, V]; returns [R]."""
    expected = reference.log_softmax(-1)
    return (expected.exp() * (expected - other.log_softmax(-1))).sum(-1)


def own_figures(path: Path, windows: list[list[int]]) -> dict[str, float]:
    """Compare the native kernels with torch in float32."""
    reference = load_target(path, device="cpu", dtype="float32", runtime="torch", notify=say)
    native = load_target(path, runtime="native", notify=say)
    found, agree = [], []
    for number, window in enumerate(windows, 1):
        expected, logits = window_logits(reference, window), window_logits(native, window)
        found.append(divergences(expected, logits).numpy())
        agree.append((expected.argmax(-1) == logits.argmax(-1)).numpy())
        say(f"window {number} of {len(windows)}: mean {found[-1].mean():.5f}")
    values, same = np.concatenate(found), np.concatenate(agree)
    return {
        "mean": float(values.mean()),
        "median": float(np.median(values)),
        "max": float(values.max()),
        "same_top": float(same.mean()),
        "num_tokens": len(values),
    }


def llama_figures(tool: Path, path: Path, text: str, num_windows: int, threads: int) -> dict[str, float]:
    """Compare llama.cpp on the file with llama.cpp on the file converted to float32."""
    with tempfile.TemporaryDirectory() as folder:
        exact = convert(path, Path(folder) / "f32.gguf", gguf.GGMLQuantizationType.F32)
        words, base = Path(folder) / "text", Path(folder) / "logits"
        words.write_text(text, encoding="utf-8")
        common = ["-f", str(words), "-c", str(WINDOW), "--chunks", str(num_windows), "-t", str(threads)]
        common += ["--kl-divergence-base", str(base)]
        run([str(tool), "-m", str(exact), *common])
        printed = run([str(tool), "-m", str(path), *common, "--kl-divergence"])
    figures = {name: float(pattern.search(printed)[1]) for name, pattern in _FIGURES.items()}  # type: ignore[index]
    return figures | {"same_top": figures["same_top"] / 100, "num_tokens": num_windows * (WINDOW // 2 - 1)}


def run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{command[0]} ended with {done.returncode}: {done.stderr[-500:]}")
    return done.stdout + done.stderr


def main() -> None:
    parser = make_parser(__doc__, num_prompts=200, max_tokens=0)
    parser.add_argument("--tokens", type=int, default=5000, help="how many are counted (default: %(default)s)")
    parser.add_argument("--llama-perplexity", type=Path, metavar="PATH", help="llama.cpp's tool, to be compared with")
    args: argparse.Namespace = parser.parse_args()
    idle = idle_check()
    path = resolve(args.model).path
    tokenizer = load_tokenizer(path)
    text = "\n\n".join(turn for workload in workloads(args) for turn in workload.turns)
    ids = tokenizer.encode(text, add_special_tokens=False)
    num_windows = min(len(ids) // WINDOW, -(-args.tokens // (WINDOW // 2 - 1)))
    if not num_windows:
        raise SystemExit(f"the prompts have {len(ids)} tokens; {WINDOW} are needed at least")
    windows = [ids[start : start + WINDOW] for start in range(0, num_windows * WINDOW, WINDOW)]
    figures = {"blockdraft, native": own_figures(path, windows)}
    if args.llama_perplexity:
        threads = args.threads or torch.get_num_threads()
        figures["llama.cpp"] = llama_figures(args.llama_perplexity, path, text, num_windows, threads)
    print_table(
        "Divergence from the same file in float32",
        ["", "tokens", "mean", "median", "largest", "same best token"],
        [
            [name, int(own["num_tokens"]), *(f"{own[key]:.5f}" for key in ("mean", "median", "max")), own["same_top"]]
            for name, own in figures.items()
        ],
    )
    emit("native_quality", args, idle, {"window": WINDOW, "figures": figures})


if __name__ == "__main__":
    main()
