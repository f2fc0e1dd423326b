"""Greedy identity: does the server say, at temperature 0, what its target would say at every place?

Two ways, whichever the baseline allows. Forced: each token of an answer is compared with the baseline's choice after
what came before it, so one early difference does not hide the rest. Free: the baseline answers by itself, twice, and
only the first difference of each prompt can be judged.

A difference is a near-tie if the baseline puts the token that was said less than a stated bound below its own choice:
rows of a wide verify pass round differently than a single row. What is beyond is read again; a baseline that changes
its mind there makes the check inconclusive, any other one makes it fail.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field

from blockdraft.bench.endpoint.answers import Answer, Ask, Context, Seen, extended
from blockdraft.bench.endpoint.reference import Reference, SelfCheck, is_tie
from blockdraft.bench.endpoint.served_model import NextToken, ServedModel, proper
from blockdraft.bench.endpoint.statistics import rate_above
from blockdraft.bench.endpoint.verdict import Check
from blockdraft.bench.sequences import num_common

NEAR_TIE = 0.25
"""In nat, by default. Quantised engines move log-probabilities by up to a tenth between widths of a pass."""
FORKS_PER_TOKEN = 0.03
"""Differences of unknown gap that come more often than this are not explained by rounding."""
_CHANCE = 0.001
_NUM_SELF_CHECKS = 96
_NUM_READINGS = 3


@dataclass(frozen=True, kw_only=True)
class Deviation:
    """A place where an answer is not what the baseline would say."""

    prompt: str
    position: int
    """Tokens before it; characters, where a server shows no tokens."""
    said: str
    baseline: str
    gap: float | None
    """How far below its own choice the baseline puts what was said, in nat; None if it does not tell."""
    kind: str
    """`near-tie`, `fault`, `unstable` (the baseline changes its mind there) or `unknown` (no gap is told)."""


@dataclass(frozen=True, kw_only=True)
class GreedyReport:
    """What greedy answers were, against the baseline."""

    method: str
    near_tie: float
    num_prompts: int
    num_places: int
    deviations: tuple[Deviation, ...]
    num_left_out: int = 0
    """Places after texts that the server cuts into other tokens than were generated."""
    is_by_pieces: bool = False
    """True if the baseline's answers were put together from texts of one token, which may be cut otherwise."""
    self_check: SelfCheck
    answers: Mapping[str, Answer] = field(repr=False)

    def count(self, kind: str) -> int:
        return sum(deviation.kind == kind for deviation in self.deviations)

    def check(self) -> Check:
        """Return the verdict and its reason."""
        places = f"{self.num_places} places of {self.num_prompts} prompts"
        faults, ties, unknown = (self.count(kind) for kind in ("fault", "near-tie", "unknown"))
        unstable = self.count("unstable") + self.self_check.num_unstable
        if not self.num_places:
            return Check("greedy", "inconclusive", self._why_nothing())
        if unstable:
            return Check(
                "greedy",
                "inconclusive",
                f"the baseline disagrees with itself at {unstable} places that are no near-ties; whatever the endpoint "
                "says cannot be held against it (concurrent batches, or a sampler that ignores temperature 0?)",
            )
        if faults:
            worst = max((d for d in self.deviations if d.kind == "fault"), key=lambda d: d.gap or 0.0)
            return Check(
                "greedy",
                "fail",
                f"{faults} of {places} are not what the baseline says, and no near-tie: the worst is {worst.gap:.2f} "
                f"nat below its choice (bound {self.near_tie:g})",
            )
        if unknown:
            is_explained = rate_above(unknown, self.num_places, FORKS_PER_TOKEN) >= _CHANCE
            if not (is_explained or self.is_by_pieces):
                return Check(
                    "greedy",
                    "fail",
                    f"{unknown} differences in {places}: more than one in {1 / FORKS_PER_TOKEN:.0f}, which no rounding "
                    "explains (their gaps are not told)",
                )
            return Check(
                "greedy",
                "inconclusive",
                f"{unknown} differences in {places} cannot be judged, as the baseline tells no log-probabilities",
            )
        reason = f"{places} are what the baseline says" + (f", {ties} near-ties aside" if ties else "")
        left_out = f"; {self.num_left_out} more could not be compared" if self.num_left_out else ""
        return Check("greedy", "pass", reason + left_out)

    def _why_nothing(self) -> str:
        if self.num_left_out:
            return (
                "the server continues texts only, and does not count their tokens or cuts them otherwise than it "
                "generated them; name a server that takes token ids, as vLLM, SGLang and llama.cpp do"
            )
        return "the server shows neither tokens nor text to compare"

    def to_dict(self) -> dict[str, object]:
        """Return the report as plain data, without the answers."""
        return {
            "method": self.method,
            "near_tie": self.near_tie,
            "num_prompts": self.num_prompts,
            "num_places": self.num_places,
            "num_left_out": self.num_left_out,
            "num_near_ties": self.count("near-tie"),
            "num_faults": self.count("fault"),
            "num_unstable": self.count("unstable"),
            "num_unknown": self.count("unknown"),
            "deviations": [asdict(deviation) for deviation in self.deviations],
            "baseline_against_itself": self.self_check.to_dict(),
        }


@dataclass(frozen=True, kw_only=True)
class _Place:
    """One token of an answer, or its end, and what it follows."""

    prompt: str
    index: int
    context: Context
    said: Seen | None
    """None for the end."""


async def check_forced(
    model: ServedModel, reference: Reference, contexts: Mapping[str, Context], *, max_tokens: int, near_tie: float
) -> GreedyReport:
    """Compare every token of greedy answers with the baseline's choice at its place."""
    answers = await _answers(model.answer, model, contexts, max_tokens)
    places = {name: _places(name, contexts[name], answer) for name, answer in answers.items()}
    await reference.read(place.context for listed in places.values() for place in listed)
    self_check = await reference.check_itself(_NUM_SELF_CHECKS, near_tie)
    differing = [place for listed in places.values() for place in _differing(reference, listed)]
    left_out = {
        (name, place.index)
        for name, listed in places.items()
        for place in listed
        if not reference.is_as_generated(place.context, contexts[name], place.index)
    }
    return GreedyReport(
        method="every token against the baseline's choice after what came before it",
        near_tie=near_tie,
        num_prompts=len(answers),
        num_places=sum(map(len, places.values())) - len(left_out),
        num_left_out=len(left_out),
        deviations=tuple(
            [
                await _judge(reference, place, near_tie)
                for place in differing
                if (place.prompt, place.index) not in left_out
            ]
        ),
        self_check=self_check,
        answers=answers,
    )


async def check_free(
    model: ServedModel,
    baseline: ServedModel,
    prompts: Mapping[str, Context],
    *,
    max_tokens: int,
    near_tie: float,
) -> GreedyReport:
    """Compare greedy answers with those that the baseline gives by itself, which gives them twice.

    A baseline that is the server itself is asked for one token at a time, which no engine drafts.
    """
    plain = baseline.stepwise if baseline is model else baseline.answer
    first, again = [await _answers(plain, baseline, prompts, max_tokens) for _ in range(2)]
    said = await _answers(model.answer, model, prompts, max_tokens)
    unstable = [found for name in prompts if (found := _first_deviation(name, first[name], again[name], near_tie))]
    differing = [found for name in prompts if (found := _first_deviation(name, first[name], said[name], near_tie))]
    positions = {deviation.prompt: deviation.position for deviation in differing}
    return GreedyReport(
        method="the first difference to the baseline's own answers",
        near_tie=near_tie,
        num_prompts=len(prompts),
        num_places=sum(positions.get(name, len(said[name].keys) - 1) + 1 for name in prompts),
        deviations=tuple(differing),
        is_by_pieces=baseline is model and any(isinstance(prompt, str) for prompt in prompts.values()),
        self_check=SelfCheck(
            num_places=sum(len(answer.keys) for answer in first.values()),
            num_changed_choices=len(unstable),
            num_unstable=sum(deviation.kind != "near-tie" for deviation in unstable),
            logprob_noise=0.0,
            prob_noise=0.0,
        ),
        answers=said,
    )


async def _answers(
    give: Callable[[Ask], Awaitable[Answer]], model: ServedModel, prompts: Mapping[str, Context], max_tokens: int
) -> dict[str, Answer]:
    asked = (give(model.ask(prompt, max_tokens=max_tokens)) for prompt in prompts.values())
    return dict(zip(prompts, await asyncio.gather(*asked), strict=True))


def _places(name: str, context: Context, answer: Answer) -> list[_Place]:
    said: list[Seen | None] = list(answer.tokens)
    if said and answer.finish == "stop":
        said.append(None)
    return [
        _Place(prompt=name, index=index, context=extended(context, answer.tokens[:index]), said=token)
        for index, token in enumerate(said)
    ]


def _differing(reference: Reference, places: Sequence[_Place]) -> list[_Place]:
    """Return the places of one answer where the baseline would say something else."""
    differing = []
    for place in places:
        expected = reference[place.context]
        said = place.said and place.said.key
        may_be_the_end = places[-1].said is None and place.index == len(places) - 2
        if expected.key is None and may_be_the_end and (not expected.top or expected.top[0].key == said):
            break  # Both end here: this server shows the token that ends an answer.
        if expected.key != said:
            differing.append(place)
    return differing


async def _judge(reference: Reference, place: _Place, near_tie: float) -> Deviation:
    expected = reference[place.context]
    if place.said is not None:
        gap = expected.gap_to(place.said)
    else:  # Which token ends an answer is not known: it is at best the second one.
        gap = expected.gap_to(expected.top[1]) if len(expected.top) > 1 else None
    kind = "near-tie"
    if gap is None or gap >= near_tie:
        readings = await reference.read_again(place.context, _NUM_READINGS)
        changed = [one for one in readings if one.key != expected.key]
        is_unstable = any(not is_tie(expected, one, near_tie) for one in changed)
        kind = "unstable" if is_unstable else "unknown" if gap is None else "fault"
    return Deviation(
        prompt=place.prompt,
        position=place.index,
        said=_shown(place.said),
        baseline=_shown(expected.choice),
        gap=gap,
        kind=kind,
    )


def _first_deviation(name: str, baseline: Answer, other: Answer, near_tie: float) -> Deviation | None:
    shown = [answer.positions[:1] for answer in (baseline, other)]
    is_by_token = all(shown) and type(baseline.tokens[0].key) is type(other.tokens[0].key)
    left, right = (baseline.keys, other.keys) if is_by_token else (tuple(baseline.text), tuple(other.text))
    position = num_common(left, right)
    if position == len(left) == len(right):
        return None
    gap: float | None = None
    if is_by_token and position < min(len(left), len(right)):
        place = baseline.positions[position]
        gap = NextToken(choice=place.token, top=proper(place.top)).gap_to(other.tokens[position])
    return Deviation(
        prompt=name,
        position=position,
        said=_piece(other, position, is_by_token),
        baseline=_piece(baseline, position, is_by_token),
        gap=gap,
        kind="unknown" if gap is None else "near-tie" if gap < near_tie else "fault",
    )


def _piece(answer: Answer, position: int, is_by_token: bool) -> str:
    if is_by_token:
        return _shown(answer.tokens[position] if position < len(answer.tokens) else None)
    return answer.text[position : position + 12] or "(end)"


def _shown(token: Seen | None) -> str:
    return "(end)" if token is None else token.text or f"token {token.token_id}"
