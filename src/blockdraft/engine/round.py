"""One round: draft -> verify -> commit, for all running sequences at once; and the prefill before the first.

A round asks the drafter for proposals, runs the target once over [anchor, drafts] of every sequence, keeps what
each sequence's rule allows, and returns every cache to the committed length. Sequences may have drafts of
different lengths, none included.

Shape legend: K draft tokens of a sequence, R rows with logits, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import islice
from time import perf_counter

import torch
from torch import Tensor

from blockdraft.core.random import Draw
from blockdraft.core.sampling import greedy_ids, sample_rows, shape_logits, shape_probs
from blockdraft.core.verify import Verdict, verify_choices, verify_rejection
from blockdraft.drafters.base import Ask, Drafter, Observation, Proposal
from blockdraft.drafters.config import Rule
from blockdraft.engine.policy import Policy, Situation
from blockdraft.engine.request import SequenceState
from blockdraft.engine.results import Round
from blockdraft.models.base import Segment, Target

NO_PROPOSAL = Proposal()


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """What rounds are made with; fixed for the life of an engine."""

    target: Target
    drafter: Drafter | None
    policy: Policy
    rule: Rule
    prefill_chunk: int
    """Most prompt tokens in one pass."""

    @property
    def tapped_layers(self) -> tuple[int, ...]:
        """The target's layers whose outputs the drafter reads."""
        return self.drafter.traits.target_layer_ids if self.drafter else ()

    @cached_property
    def slow_parts(self) -> tuple[str, ...]:
        """Names of the drafters whose drafts take time."""
        parts = self.drafter.parts if self.drafter else ()
        return tuple(part.traits.name for part in parts if not part.traits.is_instant)


@torch.inference_mode()
def run_round(pipeline: Pipeline, running: Sequence[SequenceState]) -> None:
    """Advance every running sequence by at least one token."""
    started = perf_counter()
    plans = _propose(pipeline, running)
    drafted = perf_counter()
    segments = [
        Segment(
            token_ids=(sequence.token_ids[-1], *plan.draft_ids),
            cache=sequence.cache,
            num_logits=1 + len(plan),
            only_greedy=sequence.request.only_greedy,
        )
        for sequence, plan in zip(running, plans, strict=True)
    ]
    try:
        output = pipeline.target.forward(segments, pipeline.tapped_layers)
        verified = perf_counter()
        counts = [segment.num_logits for segment in segments]
        rows = _split(output.logits, counts)
        verdicts = _judge(pipeline.rule, running, plans, rows, _split_greedy(output.greedy_ids, counts))
        for sequence, plan, logits, verdict in zip(running, plans, rows, verdicts, strict=True):
            sequence.draft_s += drafted - started
            sequence.target_s += verified - drafted
            _commit(sequence, plan, verdict, logits)
    finally:
        # Also if a round fails half-way: a cache never keeps what was not committed.
        for sequence in running:
            sequence.cache.rollback(len(sequence.token_ids) - 1)
    if pipeline.drafter:
        for sequence in running:
            pipeline.policy.observe(sequence.policy_state, sequence.rounds[-1])
        for sequence, plan, features in zip(running, plans, _split_hidden(output.target_hidden, segments), strict=True):
            _observe(pipeline.drafter, sequence, plan, features)


@torch.inference_mode()
def prefill(pipeline: Pipeline, sequence: SequenceState) -> None:
    """Run the prompt through the target and emit the first token."""
    started = perf_counter()
    prompt_ids = sequence.request.prompt_ids
    for start in range(0, len(prompt_ids), pipeline.prefill_chunk):
        chunk = prompt_ids[start : start + pipeline.prefill_chunk]
        is_last = start + len(chunk) == len(prompt_ids)
        segment = Segment(
            token_ids=chunk,
            cache=sequence.cache,
            num_logits=int(is_last),
            only_greedy=sequence.request.only_greedy,
        )
        output = pipeline.target.forward([segment], pipeline.tapped_layers)
        if is_last:
            [verdict] = _judge(pipeline.rule, [sequence], [NO_PROPOSAL], [output.logits], [output.greedy_ids])
            [logprob] = _logprobs(sequence, output.logits, [verdict.next_id])
            sequence.emit(verdict.next_id, "first", "", logprob)
            if sequence.counts:
                sequence.counts.add([verdict.next_id])
        if pipeline.drafter:
            pipeline.drafter.observe(
                sequence.draft_state,
                Observation(committed_ids=sequence.token_ids[len(prompt_ids) :], target_hidden=output.target_hidden),
            )
    sequence.first_token_at = sequence.last_token_at
    sequence.prefill_s = perf_counter() - started


def _propose(pipeline: Pipeline, running: Sequence[SequenceState]) -> list[Proposal]:
    """Return the drafts to verify, one proposal (perhaps empty) for each sequence."""
    plans = [NO_PROPOSAL] * len(running)
    drafter = pipeline.drafter
    if drafter is None:
        return plans
    context_length = pipeline.target.info.context_length
    asks: dict[int, Ask] = {}
    situations: dict[int, Situation] = {}
    for index, sequence in enumerate(running):
        # The target adds a token of its own to every draft, so the last one is never drafted for.
        room = min(sequence.num_left - 1, context_length - len(sequence.token_ids))
        if room <= 0:
            continue
        situation = Situation(
            state=sequence.policy_state,
            room=room,
            depth=len(sequence.token_ids) - 1,
            num_running=len(running),
        )
        limits = pipeline.policy.limits(situation)
        num_wanted = max(limits.values(), default=0)
        if num_wanted == 0:
            sequence.num_parked += 1
            continue
        sequence.was_asked = True
        situations[index] = situation
        asks[index] = Ask(
            state=sequence.draft_state,
            token_ids=sequence.token_ids,
            num_draft_tokens=num_wanted,
            sampling=sequence.request.sampling,
            random=sequence.random,
            limits=limits,
            accepts=partial(pipeline.policy.accepts, situation=situation),
        )
    if asks:
        proposals = drafter.propose(list(asks.values()))
        admitted = pipeline.policy.admit(proposals, list(situations.values()))
        for index, offer, plan in zip(asks, proposals, admitted, strict=True):
            plans[index] = plan
            running[index].num_parked += not plan and _is_turned_down(pipeline, asks[index], offer)
    return plans


def _is_turned_down(pipeline: Pipeline, ask: Ask, offer: Proposal) -> bool:
    """Return whether a round has no draft as it would not pay: what takes time was not asked, or an offer not taken."""
    if pipeline.slow_parts:
        return not any(ask.limits[name] for name in pipeline.slow_parts)
    return bool(offer)


def _judge(
    rule: Rule,
    running: Sequence[SequenceState],
    plans: Sequence[Proposal],
    rows: Sequence[Tensor],
    greedy: Sequence[Sequence[int] | None],
) -> list[Verdict]:
    """Return the verdict of each sequence, with one transfer from the device for all of them.

    Shapes: for each sequence, rows [K+1, V], and greedy K+1 numbers, where each row is largest, if that is known;
    the rows may then be missing where nothing else is looked at.
    """
    decisions: list[Tensor | Sequence[int]] = []
    by_rejection: list[bool] = []
    for sequence, plan, logits, known in zip(running, plans, rows, greedy, strict=True):
        sampling = sequence.request.sampling
        by_rejection.append(uses_rejection(rule, sequence, plan))
        if sequence.request.only_greedy and known is not None:
            decisions.append(known)
            continue
        shaped = shape_logits(logits, sampling, sequence.counts, plan.draft_ids)
        if sampling.is_greedy:
            decisions.append(greedy_ids(shaped))
            continue
        probs = shape_probs(shaped, sampling)
        uniforms = torch.from_numpy(sequence.random.uniforms(len(sequence.token_ids), len(probs))).to(probs.device)
        if by_rejection[-1]:
            draft_ids = torch.tensor(plan.draft_ids, device=probs.device)
            decisions.append(torch.stack(verify_rejection(probs, plan.draft_probs, draft_ids, uniforms)))
        else:
            decisions.append(sample_rows(probs, uniforms[:, Draw.TARGET]))
    verdicts: list[Verdict] = []
    for plan, numbers, rejects in zip(plans, _transfer(decisions), by_rejection, strict=True):
        if rejects:
            verdicts.append(Verdict.of(len(plan), num_accepted=numbers[0], next_id=numbers[1]))
        else:
            verdicts.append(verify_choices(numbers, plan.draft_ids))
    return verdicts


def _transfer(decisions: Sequence[Tensor | Sequence[int]]) -> list[Sequence[int]]:
    """Return the numbers of every decision, with one transfer for those that are on the device."""
    on_device = [decision for decision in decisions if isinstance(decision, Tensor)]
    values = iter(torch.cat(on_device).tolist() if on_device else ())
    return [list(islice(values, len(decision))) if isinstance(decision, Tensor) else decision for decision in decisions]


def uses_rejection(rule: Rule, sequence: SequenceState, plan: Proposal) -> bool:
    """Return whether this draft is verified by rejection sampling; the other exact rules compare token ids."""
    if sequence.request.sampling.is_greedy or not plan or rule == "match":
        return False
    return rule == "rejection" or plan.draft_probs is not None


def _commit(sequence: SequenceState, plan: Proposal, verdict: Verdict, logits: Tensor) -> None:
    """Emit the accepted drafts and the target's token up to a stop."""
    emitted = (*plan.draft_ids[: verdict.num_accepted], verdict.next_id)
    start = len(sequence.token_ids)
    logprobs = _logprobs(sequence, logits, emitted)
    for row, token_id in enumerate(emitted):
        is_draft = row < verdict.num_accepted
        sequence.emit(
            token_id,
            "drafted" if is_draft else verdict.next_kind,
            plan.drafter if is_draft else "",
            logprobs[row],
        )
        if sequence.is_finished:
            break
    num_emitted = len(sequence.token_ids) - start
    sequence.rounds.append(
        Round(
            drafter=plan.drafter if plan else "",
            num_drafted=len(plan),
            num_accepted=min(verdict.num_accepted, num_emitted),
            num_emitted=num_emitted,
            next_kind=verdict.next_kind if num_emitted == len(emitted) else None,
        )
    )
    if sequence.counts:
        sequence.counts.add(sequence.token_ids[start:])


def _observe(drafter: Drafter, sequence: SequenceState, plan: Proposal, features: Tensor | None) -> None:
    """Tell the drafter what was committed; the last emitted token is the anchor and has no features yet."""
    num_emitted = sequence.rounds[-1].num_emitted
    drafter.observe(
        sequence.draft_state,
        Observation(
            committed_ids=sequence.token_ids[-num_emitted:],
            target_hidden=None if features is None else _first(features, num_emitted),
            drafter=plan.drafter if plan else "",
            num_drafted=len(plan),
            num_accepted=sequence.rounds[-1].num_accepted,
        ),
    )


def _first(rows: Tensor, count: int) -> Tensor:
    return rows if rows.shape[0] == count else rows[:count]


def _split(rows: Tensor, counts: Sequence[int]) -> Sequence[Tensor]:
    """Like `torch.split`, which takes its time even for one sequence; all there is for each if that is nothing."""
    if len(counts) == 1 or not rows.shape[0]:
        return [rows] * len(counts)
    return torch.split(rows, list(counts))


def _split_greedy(greedy: Sequence[int] | None, counts: Sequence[int]) -> list[Sequence[int] | None]:
    values = None if greedy is None else iter(greedy)
    return [None if values is None else list(islice(values, count)) for count in counts]


def _split_hidden(target_hidden: Tensor | None, segments: Sequence[Segment]) -> Sequence[Tensor | None]:
    if target_hidden is None:
        return [None] * len(segments)
    return _split(target_hidden, [len(segment.token_ids) for segment in segments])


def _logprobs(sequence: SequenceState, logits: Tensor, token_ids: Sequence[int]) -> list[float] | list[None]:
    """Return the log-probability of each token in its row, in one transfer; Nones if nobody asked."""
    if not sequence.request.logprobs:
        return [None] * len(token_ids)
    scores = logits[: len(token_ids)]
    scores = scores if scores.dtype == torch.float64 else scores.float()
    picked = scores.gather(1, torch.tensor(token_ids, device=scores.device)[:, None])[:, 0]
    values: list[float] = (picked - scores.logsumexp(-1)).tolist()
    return values
