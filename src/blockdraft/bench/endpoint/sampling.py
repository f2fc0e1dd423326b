"""Do samples follow the target's distribution? A test whose power is computed and whose false alarms are bounded.

Many short answers at temperature 1. Each token after the first is an observation: the baseline says how likely every
token was after what came before it, so its probability is known and not estimated. Under the hypothesis that the server
is lossless each of these sums has mean zero and a known variance, whatever the contexts were:

- `top`: how often the most likely token was drawn, against its probabilities;
- `likelihood`: the log-probabilities of what was drawn, against their means, which sharpening and flattening move;
- `tail`: how often none of the likely tokens was drawn, against the mass they leave;
- `counts`: chi-square over all tokens of contexts that were visited often enough.

The first tokens are drawn from the prompt's own pass, which no engine drafts for. They are the control: if already they
do not follow the baseline, the log-probabilities do not describe how this server samples, and drafts are not to blame.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field

from blockdraft.bench.endpoint.answers import Context, Seen, extended
from blockdraft.bench.endpoint.counters import DraftCounters, counted_between
from blockdraft.bench.endpoint.reference import Reference, SelfCheck
from blockdraft.bench.endpoint.samples import BATCH, MIN_EXPECTED, SamplingPlan, draw, judge
from blockdraft.bench.endpoint.served_model import NextToken, ServedModel
from blockdraft.bench.endpoint.statistics import chi_square_tail, holm, needed_z, power_at, rate_above, two_sided
from blockdraft.bench.endpoint.verdict import Check

TESTS = ("top", "likelihood", "tail", "counts")
_FEW = 60.0
_NUM_SELF_CHECKS = 64
_CONTROL = 1e-4
"""How unlikely the control must be to say that log-probabilities do not describe the sampler."""
_LEAST = 0.01
"""Rarer tokens add to the likelihood as if they had this probability."""
Key = int | str


@dataclass(kw_only=True)
class Observed:
    """What was drawn after each context."""

    drawn: dict[Context, Counter[Key]] = field(default_factory=dict)

    def add(self, context: Context, token: Seen) -> None:
        self.drawn.setdefault(context, Counter())[token.key] += 1

    @property
    def num_tokens(self) -> int:
        return sum(counts.total() for counts in self.drawn.values())


@dataclass(frozen=True, kw_only=True)
class Tested:
    """Four tests on one set of observations."""

    num_tokens: int
    num_contexts: int
    excess: float
    """Of the most likely token, where it is not almost certain: drawn minus expected, by the number of draws."""
    standard_error: float
    """Of `excess`, if nothing is wrong."""
    p_values: Mapping[str, float]
    corrected: Mapping[str, float]
    """By Holm's procedure: smallest rate of false alarms at which each test would speak."""

    def to_dict(self) -> dict[str, object]:
        """Return the tests as plain data."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class SamplingReport:
    """What samples are like, against the baseline's probabilities."""

    plan: SamplingPlan
    num_samples: int
    result: Tested
    control: Tested
    self_check: SelfCheck
    power: float
    """Reached, for the bias that was to be found."""
    num_drafted: int | None
    """In these samples, if the server tells."""
    num_left_out: int
    """Tokens after texts that the server cuts into other tokens than were generated."""
    num_hidden_ends: int
    """Samples that ended before their time without showing the token that ended them."""

    def check(self) -> Check:
        """Return the verdict and its reason."""
        result = self.result
        seen = f"{result.num_tokens} tokens of {self.num_samples} samples"
        if not result.num_tokens:
            return Check("sampling", "inconclusive", f"no token of {self.num_samples} samples could be compared")
        check = judge(
            self.plan,
            result.corrected,
            power=self.power,
            seen=seen,
            outcome="the most likely token",
            excess=result.excess,
            standard_error=result.standard_error,
        )
        first = min(self.control.p_values.values())
        if self.num_hidden_ends and (check.verdict == "fail" or first < _CONTROL):
            reason = (
                f"{self.num_hidden_ends} samples ended early by a token that the server does not show, so it cannot be "
                "counted; give prompts with longer answers"
            )
            return Check("sampling", "inconclusive", reason)
        if first < _CONTROL:
            reason = (
                "already first tokens, which nothing drafts, do not follow the baseline's log-probabilities "
                f"(p {first:.1g}): these do not describe how the server samples, or it is not the same target"
            )
            return Check("sampling", "inconclusive", reason)
        if check.verdict != "fail" and self.num_drafted == 0:
            return Check("sampling", "inconclusive", f"nothing was drafted in {seen}, so nothing was tested")
        return check

    def to_dict(self) -> dict[str, object]:
        """Return the report as plain data."""
        return {
            "method": "tokens after the first against the baseline's own probabilities",
            "plan": asdict(self.plan),
            "num_samples": self.num_samples,
            "num_drafted": self.num_drafted,
            "num_left_out": self.num_left_out,
            "num_hidden_ends": self.num_hidden_ends,
            "power": self.power,
            "result": self.result.to_dict(),
            "control": self.control.to_dict(),
            "baseline_against_itself": self.self_check.to_dict(),
        }


async def check_sampling(
    model: ServedModel,
    reference: Reference,
    contexts: Mapping[str, Context],
    plan: SamplingPlan,
    *,
    near_tie: float,
    notify: Callable[[str], None],
) -> SamplingReport:
    """Draw until the stated power is reached, or as many samples as allowed, and test.

    When to stop depends on the baseline's probabilities of what was visited, never on how the tests stand.
    """
    drawn, before = _Drawn(plan=plan), await model.read_counters()
    needed = needed_z(plan.false_alarm, plan.power, len(TESTS))
    noise = SelfCheck(num_places=0, num_changed_choices=0, num_unstable=0, logprob_noise=0.0, prob_noise=0.0)
    reached = 0.0
    while drawn.num_samples < plan.max_samples and reached < needed:
        await drawn.draw(model, reference, contexts)
        if not noise.num_places:
            noise = await reference.check_itself(_NUM_SELF_CHECKS, near_tie)
        reached = _standing_out(drawn.observed, reference, plan, noise)
        notify(f"{drawn.num_samples} samples, power {power_at(reached, plan.false_alarm, len(TESTS)):.2f}")
    counted = counted_between(before, await model.read_counters(), drawn.counters)
    return SamplingReport(
        plan=plan,
        num_samples=drawn.num_samples,
        result=run_tests(drawn.observed, reference, plan, noise),
        control=run_tests(drawn.control, reference, plan, noise),
        self_check=noise,
        power=power_at(reached, plan.false_alarm, len(TESTS)),
        num_drafted=counted.num_drafted if counted else None,
        num_left_out=drawn.num_left_out,
        num_hidden_ends=drawn.num_hidden_ends,
    )


@dataclass(kw_only=True)
class _Drawn:
    """All samples so far, their tokens sorted by what they follow."""

    plan: SamplingPlan
    observed: Observed = field(default_factory=Observed)
    control: Observed = field(default_factory=Observed)
    counters: list[DraftCounters | None] = field(default_factory=list)
    num_samples: int = 0
    num_left_out: int = 0
    num_hidden_ends: int = 0

    async def draw(self, model: ServedModel, reference: Reference, contexts: Mapping[str, Context]) -> None:
        """Draw a batch of samples, and read what the baseline says where they went."""
        count = min(BATCH, self.plan.max_samples - self.num_samples)
        seeds = [self.plan.seed_of(self.num_samples + index) for index in range(count)]
        samples = await draw(model, model.answer, contexts, seeds=seeds, num_tokens=self.plan.num_tokens)
        self.num_samples += count
        places = [
            (contexts[name], index, extended(contexts[name], answer.tokens[:index]), token)
            for name, answer in samples
            for index, token in enumerate(answer.tokens[: self.plan.num_tokens])
        ]
        await reference.read(context for _, _, context, _ in places)
        for start, index, context, token in places:
            if reference.is_as_generated(context, start, index):
                (self.observed if index else self.control).add(context, token)
            else:
                self.num_left_out += 1
        for _, answer in samples:
            self.counters.append(answer.counters)
            # Servers that show token ids show the one that ends an answer as well.
            self.num_hidden_ends += answer.finish != "length" and not model.dialect.takes_ids


def run_tests(observed: Observed, reference: Reference, plan: SamplingPlan, noise: SelfCheck) -> Tested:
    """Test what was drawn against what the baseline says of the same contexts."""
    sums = {name: _Sum() for name in ("top", "likelihood", "tail")}
    statistic, num_degrees = 0.0, 0
    num_undecided = 0
    for context, counts in observed.drawn.items():
        place = _Place.of(reference[context])
        if place is None:
            continue
        total = counts.total()
        if _is_undecided(place.probs[0], plan.bias):
            num_undecided += total
            sums["top"].add(counts[place.keys[0]], total, place.probs[0], noise.prob_noise)
        drawn = [(place.logprob(key), count) for key, count in counts.items()]
        sums["likelihood"].add_values(drawn, total, place.mean, place.variance, noise.logprob_noise)
        shown = sum(counts[key] for key in place.keys)
        sums["tail"].add(total - shown, total, place.rest, noise.logprob_noise * place.rest)
        cells, degrees = _chi_square(place, counts, total, noise.logprob_noise)
        statistic, num_degrees = statistic + cells, num_degrees + degrees
    p_values = {name: one.p_value for name, one in sums.items()} | {"counts": chi_square_tail(statistic, num_degrees)}
    return Tested(
        num_tokens=observed.num_tokens,
        num_contexts=len(observed.drawn),
        excess=sums["top"].excess / num_undecided if num_undecided else 0.0,
        standard_error=math.sqrt(sums["top"].variance) / num_undecided if num_undecided else 0.0,
        p_values=p_values,
        corrected=holm(p_values),
    )


@dataclass(kw_only=True)
class _Sum:
    """A sum whose mean is zero and whose variance is known if nothing is wrong."""

    excess: float = 0.0
    variance: float = 0.0
    num_seen: int | None = None
    """Of counted events; None for a sum of values."""

    def add(self, count: int, total: int, prob: float, noise: float) -> None:
        """Add how often something happened that has a known probability."""
        self.num_seen = (self.num_seen or 0) + count
        self.excess += count - total * prob
        # What the baseline says of one context is off by the same amount for all draws there.
        self.variance += total * prob * (1 - prob) + (total * noise) ** 2

    def add_values(
        self, drawn: list[tuple[float, int]], total: int, mean: float, variance: float, noise: float
    ) -> None:
        """Add values that have a known mean and variance."""
        self.excess += sum(value * count for value, count in drawn) - total * mean
        self.variance += total * variance + (total * noise) ** 2

    @property
    def p_value(self) -> float:
        """A normal tail; of Poisson where so little is expected that a few draws would look like many."""
        mean = (self.num_seen or 0) - self.excess
        if self.num_seen is not None and 0 < self.num_seen + mean < _FEW:
            more = rate_above(self.num_seen, mean, 1.0)
            return min(1.0, 2 * min(more, 1 - rate_above(self.num_seen + 1, mean, 1.0)))
        return two_sided(self.excess / math.sqrt(self.variance)) if self.variance > 0 else 1.0


@dataclass(frozen=True, kw_only=True)
class _Place:
    """The baseline's distribution at one context: some likely tokens, and what they leave."""

    keys: tuple[Key, ...]
    probs: tuple[float, ...]
    rest: float

    @classmethod
    def of(cls, next_token: NextToken) -> _Place | None:
        if not next_token.top:
            return None
        probs = tuple(math.exp(token.logprob) for token in next_token.top if token.logprob is not None)
        return cls(keys=tuple(token.key for token in next_token.top), probs=probs, rest=max(0.0, 1 - math.fsum(probs)))

    def logprob(self, key: Key) -> float:
        """Return a token's value for the likelihood: all tokens that are not shown have one together."""
        return _value(self.probs[self.keys.index(key)] if key in self.keys else self.rest)

    @property
    def mean(self) -> float:
        return math.fsum(prob * value for prob, value in self._values)

    @property
    def variance(self) -> float:
        return math.fsum(prob * value * value for prob, value in self._values) - self.mean**2

    @property
    def _values(self) -> list[tuple[float, float]]:
        return [(prob, _value(prob)) for prob in (*self.probs, self.rest) if prob > 0]


def _value(prob: float) -> float:
    """Return what a draw adds to the likelihood: bounded, so that few draws of rare tokens do not decide."""
    return math.log(max(prob, _LEAST))


def _chi_square(place: _Place, counts: Counter[Key], total: int, noise: float) -> tuple[float, int]:
    """Return the statistic of one context, with rare tokens put together, and its degrees of freedom."""
    cells: list[tuple[float, float]] = []
    others = [0.0, float(total)]
    for key, prob in zip(place.keys, place.probs, strict=True):
        if total * prob >= MIN_EXPECTED:
            cells.append((counts[key], total * prob))
            others[1] -= counts[key]
        else:
            others[0] += total * prob
    others[0] += total * place.rest
    if others[0] >= MIN_EXPECTED:
        cells.append((others[1], others[0]))
    if len(cells) < 2:
        return 0.0, 0
    return sum((seen - mean) ** 2 / (mean + (mean * noise) ** 2) for seen, mean in cells), len(cells) - 1


def _is_undecided(prob: float, bias: float) -> bool:
    """True if a probability can move by the bias either way."""
    return 2 * bias <= prob <= 1 - 2 * bias


def _standing_out(observed: Observed, reference: Reference, plan: SamplingPlan, noise: SelfCheck) -> float:
    """Return by how many standard errors the bias to be found would stand out in `top`."""
    num, variance = 0, 0.0
    for context, counts in observed.drawn.items():
        place = _Place.of(reference[context])
        if place is not None and _is_undecided(place.probs[0], plan.bias):
            total, prob = counts.total(), place.probs[0]
            num += total
            variance += total * prob * (1 - prob) + (total * noise.prob_noise) ** 2
    return num * plan.bias / math.sqrt(variance) if variance > 0 else 0.0
