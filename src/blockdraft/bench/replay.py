"""What rounds would a drafter have made of an answer that is known already?

Greedy answers do not depend on the drafter, so a drafter that reads tokens only can be tried on a recorded
answer without running the target: a sweep over settings costs seconds. What it saves in time follows from the
rounds and from what a pass over so many rows costs.
"""

from __future__ import annotations

from collections.abc import Sequence

from blockdraft.core.random import PositionalRandom
from blockdraft.core.sampling import SamplingParams
from blockdraft.core.verify import verify_choices
from blockdraft.drafters.base import Ask, Drafter, Observation
from blockdraft.engine import Round
from blockdraft.errors import ConfigError


def replay(drafter: Drafter, prompt_ids: Sequence[int], answer_ids: Sequence[int]) -> list[Round]:
    """Return the rounds of a greedy answer; the first token comes from the prefill and belongs to none.

    The length of the answer is taken as its limit, so nothing is drafted past its end.

    Raises:
        ConfigError: the drafter reads the target's hidden states, which a recorded answer does not have.
    """
    if drafter.traits.needs_target_hidden:
        raise ConfigError(f"{drafter.traits.name} reads the target's hidden states; run it, it cannot be replayed")
    state = drafter.begin(prompt_ids)
    token_ids = [*prompt_ids, answer_ids[0]]
    drafter.observe(state, Observation(committed_ids=token_ids[-1:]))
    rounds: list[Round] = []
    num_emitted = 1
    while num_emitted < len(answer_ids):
        left_ids = answer_ids[num_emitted:]
        draft_ids, name = _draft(drafter, state, token_ids, room=len(left_ids) - 1)
        verdict = verify_choices(left_ids, draft_ids)
        committed_ids = list(left_ids[: verdict.num_accepted + 1])
        token_ids += committed_ids
        num_emitted += len(committed_ids)
        rounds.append(
            Round(
                drafter=name,
                num_drafted=len(draft_ids),
                num_accepted=verdict.num_accepted,
                num_emitted=len(committed_ids),
                next_kind=verdict.next_kind,
            )
        )
        drafter.observe(
            state,
            Observation(
                committed_ids=committed_ids,
                drafter=name,
                num_drafted=len(draft_ids),
                num_accepted=verdict.num_accepted,
            ),
        )
    return rounds


def _draft(drafter: Drafter, state: object, token_ids: list[int], room: int) -> tuple[tuple[int, ...], str]:
    num_wanted = min(drafter.traits.max_draft_tokens, room)
    if num_wanted < 1:
        return (), ""
    ask = Ask(
        state=state,
        token_ids=token_ids,
        num_draft_tokens=num_wanted,
        sampling=SamplingParams(),
        random=PositionalRandom(0),
    )
    [proposal] = drafter.propose([ask])
    return proposal.draft_ids, proposal.drafter
