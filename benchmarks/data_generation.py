"""How fast the answers of a data folder are made: own batched runtime and llama.cpp's server, the same prompts.

    python benchmarks/data_generation.py --num-prompts 128 --max-tokens 64 --types bf16 q8_0 q4_1

The server runs in a process of its own (package `xllamacpp`) and is asked through the runtime that
`blockdraft data --endpoint` uses. `--types` converts the GGUF file of the model first; without it, the file is
served as it is. Tokens are answer tokens; the time includes the prompts. CPU seconds are those of whoever
answers (of the server from its start to its end), so that a busy machine can be seen through.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter, process_time

import gguf

from blockdraft.models.references import resolve
from blockdraft.train.generate.dialogue import Dialogue, GenerationSettings, Runtime
from blockdraft.train.generate.endpoint import EndpointRuntime
from blockdraft.train.generate.own import OwnRuntime
from blockdraft.train.generate.prompts import Prompt, read_prompts
from common import console, emit, idle_check, load, make_parser, say
from requantised import convert

LONGEST_PROMPT = 1500
"""Characters of a prompt that surely fit a server's slot."""


def main() -> None:
    parser = make_parser(__doc__, num_prompts=128, max_tokens=64)
    parser.add_argument("--batch-sizes", type=int, nargs="*", default=[128], help="of the own runtime")
    parser.add_argument("--slots", type=int, nargs="*", default=[64], help="of the server")
    parser.add_argument("--types", nargs="*", default=[], help="convert the GGUF file to these, like bf16 q8_0 q4_1")
    parser.add_argument("--serve", nargs=3, metavar=("FILE", "SLOTS", "CONTEXT"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        serve(Path(args.serve[0]), int(args.serve[1]), int(args.serve[2]), args.threads or 1)
        return
    idle = idle_check()
    loaded = load(args)
    prompts = some_prompts(args.prompts, args.num_prompts)
    settings = GenerationSettings(max_tokens=args.max_tokens, temperatures=((0.0, 1.0),))
    results = []
    for batch_size in args.batch_sizes:
        own = OwnRuntime(loaded.target, loaded.tokenizer, batch_size=batch_size, notify=say)
        before = process_time()
        speed = measure(own, prompts, settings)
        used = process_time() - before
        results.append({"runtime": "blockdraft", "at_once": batch_size} | speed | per_cpu(speed, used))
        say(str(results[-1]))
    with tempfile.TemporaryDirectory() as folder:
        for name, path in model_files(args, Path(folder)):
            for slots in args.slots:
                before = children_seconds()
                with server(path, slots, args) as url:
                    remote = EndpointRuntime(url, loaded.tokenizer, model="any", num_in_flight=slots, notify=say)
                    speed = measure(remote, prompts, settings)
                used = children_seconds() - before
                results.append({"runtime": f"llama.cpp {name}", "at_once": slots} | speed | per_cpu(speed, used))
                say(str(results[-1]))
    emit("data_generation", args, idle, {"runs": results})


def some_prompts(files: list[Path | None], count: int) -> list[Prompt]:
    """Return the first prompts of the files, or questions that are made up."""
    named = [path for path in files if path is not None]
    if not named:
        return [
            Prompt(id=str(n), turns=(f"Explain in a few sentences what {n} and {n + 7} have in common.",))
            for n in range(count)
        ]
    prompts = (prompt for path in named for prompt in read_prompts(path) if len(prompt.turns[0]) <= LONGEST_PROMPT)
    return [prompt for _, prompt in zip(range(count), prompts, strict=False)]


def measure(runtime: Runtime, prompts: list[Prompt], settings: GenerationSettings) -> dict[str, float]:
    started = perf_counter()
    num_tokens = sum(dialogue.num_tokens for dialogue in runtime.run(Dialogue(prompt, settings) for prompt in prompts))
    seconds = perf_counter() - started
    return {"tokens": num_tokens, "seconds": round(seconds, 2), "tokens_per_second": round(num_tokens / seconds, 1)}


def per_cpu(speed: dict[str, float], cpu_seconds: float) -> dict[str, float]:
    return {
        "cpu_seconds": round(cpu_seconds, 2),
        "tokens_per_cpu_second": round(speed["tokens"] / cpu_seconds, 1) if cpu_seconds else 0.0,
    }


def children_seconds() -> float:
    """Return the CPU seconds of child processes that have ended."""
    times = os.times()
    return times.children_user + times.children_system


def model_files(args: argparse.Namespace, folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield the model's file, or it converted to each type."""
    path = resolve(args.model).path
    if path.is_dir():
        console.print("the model is no GGUF file: llama.cpp is left out")
        return
    if not args.types:
        yield path.stem, path
    for kind in args.types:
        yield kind, convert(path, folder / f"{kind}.gguf", gguf.GGMLQuantizationType[kind.upper()])


@contextmanager
def server(path: Path, slots: int, args: argparse.Namespace) -> Iterator[str]:
    """Run llama.cpp's server in another process; yield where it listens."""
    command = [sys.executable, __file__, "--serve", str(path), str(slots), str(slots * (args.max_tokens + 512))]
    command += ["--threads", str(args.threads)] if args.threads else []
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            while not (line := process.stdout.readline()).startswith("http"):
                if not line:
                    raise SystemExit("the server did not start")
            yield f"{line.strip()}/v1"
        finally:
            process.stdin.close()


def serve(path: Path, slots: int, context_length: int, num_threads: int) -> None:
    """Serve a file until standard input ends."""
    import xllamacpp  # noqa: PLC0415 - only this process needs it

    params = xllamacpp.CommonParams()
    params.model.path = str(path)
    params.n_parallel, params.n_ctx, params.port, params.verbosity = slots, context_length, 0, 0
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = num_threads
    running = xllamacpp.Server(params)
    print(running.listening_address, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
