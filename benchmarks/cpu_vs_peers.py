"""How fast are blockdraft and its peers on this CPU, same file, same prompts, one request at a time, in one run?

All settings take turns on every prompt, and who goes first changes from turn to turn. Answers are greedy. A speed is
tokens behind the first one by the seconds from the first to the last, as each engine reports it; a ratio is that of two
answers of the same turn. Tables have medians; "of all time" is by the seconds of all answers of a kind together. Each
setting's texts are compared with its own engine's plain ones.

Peers are given on the command line and run in processes of their own, which wait while others work:

    --llama-server PATH           llama.cpp's server, built for this machine
    --llama-model NAME=FILE.gguf  a quantisation of the default model to be served by it; repeatable
    --llama-spec NAME=FLAGS       a way to draft, like 'dspark=--spec-type draft-dspark -md d.gguf'; repeatable
    --server NAME=COMMAND         a server of OpenAI's protocol, like 'vLLM DFlash=vllm serve FOLDER --port {port} ...',
                                  beside 'vLLM plain=...'; repeatable
    --transformers [DTYPE]        transformers on torch, in bfloat16 or DTYPE: plain, and with prompt look-up
    --dflash FOLDER               Z Lab's package `dflash` on transformers, with a drafter in its layout
"""

from __future__ import annotations

import argparse
import re
import shlex
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, median, quantiles

from blockdraft.engine import Engine
from blockdraft.errors import ConfigError
from blockdraft.models.references import resolve
from common import emit, idle_check, load, print_table, say
from named_drafters import grouped_workloads, make_drafter_parser, named_engines
from peers import Answer, LlamaServer, OpenAIServer, Own, Setting, Transformers, ZLabDFlash

ALL = "all"


@dataclass
class Seen:
    """What was seen of one setting on one kind of prompt."""

    speeds: list[float] = field(default_factory=list)
    prompt_speeds: list[float] = field(default_factory=list)
    to_own_plain: list[float] = field(default_factory=list)
    to_first: list[float] = field(default_factory=list)
    num_same_text: int = 0
    own: list[Answer] = field(default_factory=list)
    plain: list[Answer] = field(default_factory=list)
    """Of the same engine, in the same turns."""

    @property
    def ratio_of_all(self) -> float:
        """How much sooner all answers are there than plain ones, a token of each taken as equal."""
        return _speed_of_all(self.own) / _speed_of_all(self.plain)

    def to_dict(self) -> dict[str, object]:
        return {
            "tokens_per_second": median(self.speeds),
            "tokens_per_second_quartiles": _middle_half(self.speeds),
            "ratio_to_own_plain": median(self.to_own_plain),
            "ratio_to_own_plain_quartiles": _middle_half(self.to_own_plain),
            "ratio_to_own_plain_of_all": self.ratio_of_all,
            "ratio_to_blockdraft_plain": median(self.to_first),
            "prompt_tokens_per_second": median(self.prompt_speeds),
            "num_same_text": self.num_same_text,
            "num_answers": len(self.speeds),
        }


def _speed_of_all(answers: Sequence[Answer]) -> float:
    return sum(answer.num_tokens - 1 for answer in answers) / sum(answer.decode_s for answer in answers)


def _middle_half(values: Sequence[float]) -> list[float]:
    if len(values) < 2:
        return [values[0], values[0]]
    low, _, high = quantiles(values, n=4, method="inclusive")
    return [low, high]


Table = dict[tuple[str, str], Seen]


def take_turns(
    settings: Sequence[Setting], prompts: Sequence[tuple[str, Sequence[int]]], max_tokens: int, repeats: int
) -> Table:
    """Run every setting on every prompt; each turn begins with another one."""
    table: Table = defaultdict(Seen)
    turn = 0
    for _ in range(repeats):
        for kind, prompt_ids in prompts:
            start = turn % len(settings)
            turn += 1
            answers = {
                setting.name: setting.answer(prompt_ids, max_tokens)
                for setting in (*settings[start:], *settings[:start])
            }
            say(f"{turn} of {repeats * len(prompts)}: {kind}, a prompt of {len(prompt_ids)} tokens")
            if min(answer.tokens_per_second for answer in answers.values()) <= 0:
                continue  # an answer of one token has no speed
            for setting in settings:
                answer, plain = answers[setting.name], answers[setting.plain]
                for place in (kind, ALL):
                    seen = table[setting.name, place]
                    seen.speeds.append(answer.tokens_per_second)
                    seen.prompt_speeds.append(answer.prompt_tokens_per_second)
                    seen.to_own_plain.append(answer.tokens_per_second / plain.tokens_per_second)
                    seen.to_first.append(answer.tokens_per_second / answers[settings[0].name].tokens_per_second)
                    seen.num_same_text += answer.text == plain.text
                    seen.own.append(answer)
                    seen.plain.append(plain)
    return table


def show(settings: Sequence[Setting], table: Table, kinds: Sequence[str]) -> None:
    rows = []
    for setting in settings:
        by_kind = [table[setting.name, kind] for kind in kinds]
        total = table[setting.name, ALL]
        rows.append(
            (
                setting.name,
                *(f"{median(seen.speeds):.0f} ({median(seen.to_own_plain):.2f}x)" for seen in by_kind),
                f"{mean(median(seen.speeds) for seen in by_kind):.0f}",
                f"{mean(median(seen.to_own_plain) for seen in by_kind):.2f}x",
                f"{mean(seen.ratio_of_all for seen in by_kind):.2f}x",
                f"{median(total.prompt_speeds):.0f}",
                f"{total.num_same_text} of {len(total.speeds)}",
                "-" if (peak := setting.peak_bytes()) is None else f"{peak / 1e6:.0f}",
            )
        )
    columns = (
        *("setting", *kinds, "mean tok/s", "mean ratio", "of all time"),
        *("prompt tok/s", "same text as plain", "peak MB"),
    )
    print_table("tokens per second (and ratio to the same engine's plain decoding)", columns, rows)


def start(args: argparse.Namespace, settings: list[Setting]) -> Engine:
    """Start everything that takes part, blockdraft's plain decoding first, which is returned; `settings` get all."""
    loaded = load(args)
    plain = Engine(loaded.target, loaded.tokenizer)
    settings.append(Own("blockdraft plain", plain))
    settings += [Own(f"blockdraft {name}", engine) for name, engine in named_engines(args, loaded).items()]
    logs = Path(args.logs)
    logs.mkdir(parents=True, exist_ok=True)
    for model_name, model in map(_pair, args.llama_model):
        plain_name = f"llama.cpp {model_name} plain"
        common = [args.llama_server, "-m", model, "-t", "2", "-np", "1", "-c", "8192", "--no-webui", "-lv", "0"]
        settings.append(LlamaServer(plain_name, plain_name, common, _log(logs, plain_name)))
        for spec_name, flags in map(_pair, args.llama_spec):
            name = f"llama.cpp {model_name} {spec_name}"
            settings.append(LlamaServer(name, plain_name, [*common, *shlex.split(flags)], _log(logs, name)))
    for name, command in map(_pair, args.server):
        settings.append(OpenAIServer(name, _plain_of(name), shlex.split(command), _log(logs, name)))
    if args.transformers:
        from transformers import AutoModelForCausalLM  # noqa: PLC0415 - seconds that only this peer needs

        path = resolve(args.model, offline=False, notify=say).path
        model = AutoModelForCausalLM.from_pretrained(str(path.parent), gguf_file=path.name, dtype=args.transformers)
        for name, options in (("plain", {}), ("prompt look-up", {"prompt_lookup_num_tokens": 10})):
            settings.append(Transformers(f"transformers {name}", "transformers plain", model, options))
        if args.dflash:
            settings.append(ZLabDFlash(model, args.dflash, sorted(loaded.tokenizer.eos_ids)))
    return plain


def _pair(item: str) -> tuple[str, str]:
    name, _, value = item.partition("=")
    if not name or not value:
        raise ConfigError(f"an option takes NAME=VALUE, not {item!r}")
    return name, value


def _log(folder: Path, name: str) -> Path:
    """Return a file for what a setting of any name writes."""
    return folder / (re.sub(r"[^\w.-]+", "-", name) + ".log")


def _plain_of(name: str) -> str:
    return f"{name.split(maxsplit=1)[0]} plain"


def main() -> int:
    parser = make_drafter_parser(__doc__, num_prompts=40, max_tokens=200)
    parser.add_argument("--repeats", type=int, default=5, help="turns of each prompt (default: %(default)s)")
    parser.add_argument("--llama-server", metavar="PATH")
    parser.add_argument("--llama-model", action="append", default=[], metavar="NAME=FILE")
    parser.add_argument("--llama-spec", action="append", default=[], metavar="NAME=FLAGS")
    parser.add_argument("--server", action="append", default=[], metavar="NAME=COMMAND")
    parser.add_argument(
        "--transformers", nargs="?", const="bfloat16", choices=("bfloat16", "float16", "float32"), metavar="DTYPE"
    )
    parser.add_argument("--dflash", type=Path, metavar="FOLDER")
    parser.add_argument("--longest-prompt", type=int, default=3000, help="skip longer ones (default: %(default)s)")
    parser.add_argument("--logs", default="peer_logs", help="folder of the servers' logs (default: %(default)s)")
    args = parser.parse_args()
    if args.llama_model and not args.llama_server:
        parser.error("--llama-model needs --llama-server")
    if args.dflash and not args.transformers:
        parser.error("--dflash needs --transformers, whose model it drafts for")
    names = [name for name, _ in map(_pair, args.server)]
    if missing := set(map(_plain_of, names)) - set(names):
        parser.error(f"--server lacks what others are compared with: {', '.join(sorted(missing))}")
    idle = idle_check()
    settings: list[Setting] = []
    try:
        plain = start(args, settings)
        prompts = [
            (workload.category, prompt_ids)
            for workload in grouped_workloads(args)
            if len(prompt_ids := plain.encode(workload.turns[0])) <= args.longest_prompt
        ]
        kinds = list(dict.fromkeys(kind for kind, _ in prompts))
        say(f"{len(prompts)} prompts, {args.repeats} turns of {len(settings)} settings")
        take_turns(settings, prompts[:1], args.max_tokens, 1)  # a warm-up that nobody counts
        table = take_turns(settings, prompts, args.max_tokens, args.repeats)
        show(settings, table, kinds)
        results = [{"setting": name, "prompts": kind, **seen.to_dict()} for (name, kind), seen in table.items()]
        memory = {setting.name: setting.peak_bytes() for setting in settings}
    finally:
        for setting in settings:
            setting.close()
    emit("cpu_vs_peers", args, idle, {"settings": results, "peak_bytes": memory})
    return 0


if __name__ == "__main__":
    sys.exit(main())
