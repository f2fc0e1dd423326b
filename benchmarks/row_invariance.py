"""Are the logits of a row bit-identical whether it is computed alone or in a block?

Each row of a block of 2 to 32 tokens is compared with the same token run alone on the same cache. Where no row
differs, greedy speculative decoding repeats plain decoding bit by bit; where some do, near-ties can tip. What is
measured here holds for this machine, this torch and these shapes, and is promised for none.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

import torch

from blockdraft.engine import Engine
from blockdraft.models.base import Segment, Target
from common import emit, first_turn, idle_check, load, make_parser, print_table, workloads


@dataclass
class Rows:
    """Rows of blocks of one size."""

    num_rows: int = 0
    num_different: int = 0
    num_other_argmax: int = 0
    max_difference: float = 0.0


def compare_block(target: Target, token_ids: list[int], alone: torch.Tensor, num_prompt: int, size: int) -> Rows:
    """Run a block of `size` tokens after the prompt; compare with the rows that were run alone.

    Shapes: alone [at least size, V].
    """
    cache = target.new_cache(len(token_ids))
    target.forward([Segment(token_ids=token_ids[:num_prompt], cache=cache, num_logits=1)])
    block = token_ids[num_prompt : num_prompt + size]
    logits = target.forward([Segment(token_ids=block, cache=cache, num_logits=size)]).logits
    reference = alone[:size]
    return Rows(
        num_rows=size,
        num_different=int((logits != reference).any(-1).sum()),
        num_other_argmax=int((logits.argmax(-1) != reference.argmax(-1)).sum()),
        max_difference=float((logits.float() - reference.float()).abs().max()),
    )


def rows_alone(target: Target, token_ids: list[int], num_prompt: int) -> torch.Tensor:
    """Run the tokens after the prompt one at a time. Shapes: returns [T, V]."""
    cache = target.new_cache(len(token_ids))
    target.forward([Segment(token_ids=token_ids[:num_prompt], cache=cache, num_logits=1)])
    passes = [
        target.forward([Segment(token_ids=[token_id], cache=cache, num_logits=1)]).logits
        for token_id in token_ids[num_prompt:]
    ]
    return torch.cat(passes)


def main() -> int:
    parser = make_parser(__doc__, num_prompts=4, max_tokens=32)
    parser.add_argument("--dtypes", nargs="+", default=["bfloat16", "float32"])
    parser.add_argument("--sizes", type=int, nargs="+", default=list(range(2, 33)))
    args = parser.parse_args()
    num_rows = max(args.sizes)
    idle = idle_check()
    results: dict[str, dict[int, Rows]] = {}
    for dtype in args.dtypes:
        loaded = load(args, dtype)
        engine = Engine(loaded.target, loaded.tokenizer)
        by_size = results[dtype] = {size: Rows() for size in args.sizes}
        for workload in workloads(args):
            request = first_turn(engine, workload, max_tokens=num_rows, ignore_eos=True)
            token_ids = [*request.prompt_ids, *engine.run([request])[0].token_ids]
            alone = rows_alone(loaded.target, token_ids, len(request.prompt_ids))
            for size, total in by_size.items():
                found = compare_block(loaded.target, token_ids, alone, len(request.prompt_ids), size)
                total.num_rows += found.num_rows
                total.num_different += found.num_different
                total.num_other_argmax += found.num_other_argmax
                total.max_difference = max(total.max_difference, found.max_difference)
    print_table(
        "Rows of a block against the same rows alone",
        ("dtype, block size", "rows", "not bit-identical", "other argmax", "largest logit difference"),
        [
            (f"{dtype}, {size}", rows.num_rows, rows.num_different, rows.num_other_argmax, rows.max_difference)
            for dtype, by_size in results.items()
            for size, rows in by_size.items()
        ],
    )
    plain = {dtype: {str(size): vars(rows) for size, rows in by_size.items()} for dtype, by_size in results.items()}
    totals = {dtype: sum(rows.num_different for rows in by_size.values()) for dtype, by_size in results.items()}
    emit("row_invariance", args, idle, {"by_dtype": plain, "num_different": totals})
    return 0


if __name__ == "__main__":
    sys.exit(main())
