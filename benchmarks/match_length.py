"""How likely is the next token of a copy, by how many tokens before it agree with the end of the text?

The target answers, and at each of its tokens the default n-gram drafter says what it would copy. The shares of copied
tokens that were right are what the confidences of `blockdraft.drafters.ngram.base` are made after.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise

from blockdraft.core.sampling import SamplingParams
from blockdraft.drafters.ngram import NgramSimpleDrafter
from blockdraft.drafters.ngram.base import DOUBT, DOUBT_OFFSET, LONGEST_MATCH, match_length, sureness
from blockdraft.engine import Engine
from blockdraft.engine.load import DEFAULT_SPEC
from common import emit, first_turn, idle_check, load, make_parser, print_table, say, workloads

BANDS = (2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 20, 24, 32, 48, LONGEST_MATCH)
"""Matches are counted together from one of these lengths to the next."""


@dataclass
class Seen:
    """What became of the slots behind matches of some length."""

    tried: int = 0
    kept: int = 0


def count_copies(
    drafter: NgramSimpleDrafter, prompt_ids: Sequence[int], answer_ids: Sequence[int], seen: list[Seen]
) -> None:
    """Copy at each token of an answer, and count the slots up to the first that is wrong."""
    state, text = drafter.begin(prompt_ids), [*prompt_ids, *answer_ids[:1]]
    for place in range(1, len(answer_ids)):
        draft = drafter.look_up(state, text)
        if draft.start is not None:
            matched = match_length(text, draft.start)
            for slot, (drafted, right) in enumerate(zip(draft.token_ids, answer_ids[place:], strict=False)):
                own = seen[min(matched + slot, LONGEST_MATCH)]
                own.tried += 1
                own.kept += drafted == right
                if drafted != right:
                    break
        text.append(answer_ids[place])


def main() -> int:
    parser = make_parser(__doc__, num_prompts=96, max_tokens=160)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.set_defaults(runtime="native")
    args = parser.parse_args()
    idle = idle_check()
    loaded = load(args)
    engine = Engine(loaded.target, loaded.tokenizer)
    drafter = NgramSimpleDrafter(DEFAULT_SPEC.ngram_simple)
    seen = [Seen() for _ in range(LONGEST_MATCH + 1)]
    prompts = workloads(args)
    say(f"{len(prompts)} answers of {args.max_tokens} tokens at most")
    sampling = SamplingParams(temperature=args.temperature, seed=1)
    for prompt in prompts:
        [answer] = engine.run([first_turn(engine, prompt, max_tokens=args.max_tokens, sampling=sampling)])
        count_copies(drafter, answer.prompt_ids, answer.token_ids, seen)
    rows = []
    for first, end in pairwise((*BANDS, LONGEST_MATCH + 1)):
        band = range(first, end)
        tried, kept = sum(seen[length].tried for length in band), sum(seen[length].kept for length in band)
        expected = sum(seen[length].tried * sureness(length) for length in band)
        name = str(first) if end == first + 1 else f"{first} to {end - 1}"
        rows.append((name, tried, kept / tried if tried else 0.0, expected / tried if tried else 0.0))
    print_table(
        f"shares of copied tokens that were right (taken: 1 - {DOUBT:g} / (tokens + {DOUBT_OFFSET:g}))",
        ("tokens that agree", "tried", "right", "taken"),
        rows,
    )
    emit("match_length", args, idle, {"by_length": [asdict(own) for own in seen], "bands": rows})
    return 0


if __name__ == "__main__":
    sys.exit(main())
