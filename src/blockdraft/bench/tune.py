"""What to draft with on this machine, and how much: predicted from costs and acceptance, then checked for real.

Every part of a drafter is run once over the prompts with its longest drafts. From what each round kept, and from what
passes cost, the speed of every shorter length follows without running it. The best few, the adaptive policy and plain
decoding then take turns on the same prompts; what wins there is the recommendation, "do not speculate" included.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import geometric_mean, median, quantiles

from blockdraft.drafters.base import Drafter
from blockdraft.drafters.config import SpecConfig
from blockdraft.drafters.limit import LimitedDrafter
from blockdraft.engine import Engine, Generation, Request
from blockdraft.engine.pass_costs import PassCosts
from blockdraft.errors import ConfigError

PLAIN = "plain"
ADAPTIVE = "adaptive"
LENGTHS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 24, 32, 48)
"""Draft lengths that are predicted, up to what a drafter can."""

LEAST_GAIN = 1.02
"""A setting has to be this much faster than plain decoding to be recommended."""

WARM_UP_TOKENS = 16


@dataclass(frozen=True)
class Candidate:
    """A way to draft: one part of the drafter with a fixed length, the adaptive policy over all parts, or none."""

    method: str
    num_tokens: int = 0
    """Draft tokens in a round; 0 where that is not fixed."""

    def __str__(self) -> str:
        return f"{self.method}, {self.num_tokens} tokens" if self.num_tokens else self.method


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """A request, and what kind of prompt it is."""

    category: str
    request: Request


@dataclass(frozen=True, kw_only=True)
class Predicted:
    """What a candidate is expected to do."""

    candidate: Candidate
    tokens_per_second: Mapping[str, float]
    """By category."""
    ratio: float
    """To plain decoding, the geometric mean of the categories."""


@dataclass(frozen=True, kw_only=True)
class Checked:
    """What a candidate did. A ratio is that of two answers of one turn."""

    candidate: Candidate
    tokens_per_second: Mapping[str, float]
    """Medians, by category."""
    ratios: Mapping[str, float]
    """Medians, by category."""
    ratio: float
    """The geometric mean of the categories."""
    quartiles: tuple[float, float]
    """Of all turns."""
    predicted_ratio: float | None
    """None for the adaptive policy, which is not predicted."""


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """All that was found."""

    costs: PassCosts
    acceptance: Mapping[str, Mapping[str, Sequence[float]]]
    """By part and category: the share of drafts that kept their first, second, ... token."""
    predicted: Sequence[Predicted]
    """Best first."""
    checked: Sequence[Checked]
    """Best first; plain decoding is 1 by definition and not among them."""

    @property
    def best(self) -> Candidate:
        """What to use; plain decoding if nothing was clearly faster."""
        first = self.checked[0]
        return first.candidate if first.ratio >= LEAST_GAIN else Candidate(PLAIN)

    def to_dict(self) -> dict[str, object]:
        """Return everything as plain data."""
        return {
            "best": {"method": self.best.method, "num_tokens": self.best.num_tokens or None},
            "costs": self.costs.to_dict(),
            "survival": {
                part: {name: list(row) for name, row in rows.items()} for part, rows in self.acceptance.items()
            },
            "predicted": [
                {
                    "method": one.candidate.method,
                    "num_tokens": one.candidate.num_tokens,
                    "ratio": one.ratio,
                    "tokens_per_second": dict(one.tokens_per_second),
                }
                for one in self.predicted
            ],
            "checked": [
                {
                    "method": one.candidate.method,
                    "num_tokens": one.candidate.num_tokens or None,
                    "ratio": one.ratio,
                    "ratio_quartiles": list(one.quartiles),
                    "ratios": dict(one.ratios),
                    "tokens_per_second": dict(one.tokens_per_second),
                    "predicted_ratio": one.predicted_ratio,
                }
                for one in self.checked
            ],
        }


@dataclass
class _Probe:
    """One part's answers with its longest drafts, by category."""

    answers: dict[str, list[Generation]] = field(default_factory=dict)

    @property
    def overhead_s(self) -> float:
        """Seconds of a round that neither a draft nor a pass takes."""
        timings = [answer.timings for answers in self.answers.values() for answer in answers]
        num_rounds = sum(len(answer.rounds) for answers in self.answers.values() for answer in answers)
        spent = sum(timing.decode_s - timing.draft_s - timing.target_s for timing in timings)
        return max(spent, 0.0) / max(num_rounds, 1)

    def survival(self, category: str) -> list[float]:
        """Return the share of drafts that kept at least k tokens, for k = 1, 2, ..."""
        records = [record for answer in self.answers[category] for record in answer.rounds if record.num_drafted]
        longest = max((record.num_accepted for record in records), default=0)
        return [sum(record.num_accepted >= k for record in records) / len(records) for k in range(1, longest + 1)]


def tune(
    engine: Engine,
    costs: PassCosts,
    prompts: Sequence[Prompt],
    *,
    num_finalists: int = 3,
    repeats: int = 2,
    notify: Callable[[str], None] | None = None,
) -> Tuning:
    """Find out what to draft with.

    Args:
        engine: its drafter's parts are the methods; greedy requests are assumed.
        costs: of its target and drafter on this machine.
        prompts: of every kind that matters, long enough to have a speed.
        num_finalists: how many of the predicted are run for real, besides the adaptive policy.
        repeats: how often each prompt is answered by each of them.
        notify: is told what is going on.

    Raises:
        ConfigError: there is no drafter, or no prompt.
    """
    if engine.drafter is None:
        raise ConfigError("there is nothing to tune: this engine decodes plainly; give it a drafter")
    if not prompts:
        raise ConfigError("there are no prompts to tune with")
    tell = notify or (lambda _: None)
    parts = {part.traits.name: part for part in engine.drafter.parts}
    plain = engine.without_drafter()
    probes = {PLAIN: _probe(plain, prompts, lambda text: tell(f"plain decoding: {text}"))}
    for name, part in parts.items():
        alone = _fixed(engine, part, part.traits.max_draft_tokens)
        probes[name] = _probe(alone, prompts, lambda text, name=name: tell(f"{name}: {text}"))  # type: ignore[misc]
    predicted = _predict(parts, probes, costs)
    finalists = [one.candidate for one in predicted[:num_finalists]]
    contenders = {candidate: _fixed(engine, parts[candidate.method], candidate.num_tokens) for candidate in finalists}
    contenders[Candidate(ADAPTIVE)] = Engine(
        engine.target, engine.tokenizer, engine.drafter, spec=_adaptive(engine.spec), costs=costs
    )
    checked = _check(plain, contenders, prompts, repeats, {one.candidate: one.ratio for one in predicted}, tell)
    return Tuning(
        costs=costs,
        acceptance={
            name: {category: probe.survival(category) for category in probe.answers}
            for name, probe in probes.items()
            if name != PLAIN
        },
        predicted=predicted,
        checked=checked,
    )


def _fixed(engine: Engine, part: Drafter, num_tokens: int) -> Engine:
    drafter = part if num_tokens == part.traits.max_draft_tokens else LimitedDrafter(part, num_tokens)
    return Engine(
        engine.target, engine.tokenizer, drafter, spec=replace(engine.spec, policy="fixed", n_min=0, p_min=0.0)
    )


def _adaptive(spec: SpecConfig) -> SpecConfig:
    return replace(spec, policy="adaptive", n_min=0, p_min=0.0)


def _probe(engine: Engine, prompts: Sequence[Prompt], tell: Callable[[str], None]) -> _Probe:
    engine.run([replace(prompts[0].request, max_tokens=WARM_UP_TOKENS)])
    probe = _Probe()
    for index, prompt in enumerate(prompts, start=1):
        tell(f"prompt {index} of {len(prompts)}")
        probe.answers.setdefault(prompt.category, []).extend(engine.run([prompt.request]))
    return probe


def _predict(parts: Mapping[str, Drafter], probes: Mapping[str, _Probe], costs: PassCosts) -> list[Predicted]:
    """Return all methods and lengths, the fastest first."""
    categories = list(probes[PLAIN].answers)
    plain = {category: _plain_speed(probes[PLAIN], category, costs) for category in categories}
    found = []
    for name, part in parts.items():
        for length in (length for length in LENGTHS if length <= part.traits.max_draft_tokens):
            speeds = {category: _speed(probes[name], category, name, length, costs) for category in categories}
            ratio = geometric_mean([speeds[category] / plain[category] for category in categories])
            found.append(Predicted(candidate=Candidate(name, length), tokens_per_second=speeds, ratio=ratio))
    return sorted(found, key=lambda one: -one.ratio)


def _plain_speed(probe: _Probe, category: str, costs: PassCosts) -> float:
    num_tokens, seconds = 0, 0.0
    for answer in probe.answers[category]:
        for index, record in enumerate(answer.rounds):
            num_tokens += record.num_emitted
            seconds += costs.target(1, len(answer.prompt_ids) + index) + probe.overhead_s
    return num_tokens / seconds if seconds else 1.0


def _speed(probe: _Probe, category: str, name: str, length: int, costs: PassCosts) -> float:
    """Return tokens per second with drafts of at most `length`, from rounds that drafted more.

    A round that kept more than that becomes several: full ones, and one for what is left.
    """
    num_tokens, seconds = 0, 0.0
    for answer in probe.answers[category]:
        depth = len(answer.prompt_ids)
        for record in answer.rounds:
            num_full = record.num_accepted // (length + 1)
            num_last = min(record.num_drafted - num_full * (length + 1), length)
            for drafted in [length] * num_full + [max(num_last, 0)]:
                # Looking for a draft takes its time also if none is found.
                draft_s = costs.draft(name, max(drafted, 1))
                seconds += costs.target(1 + drafted, depth) + draft_s + probe.overhead_s
            num_tokens += record.num_emitted
            depth += record.num_emitted
    return num_tokens / seconds if seconds else 1.0


def _check(  # noqa: PLR0917
    plain: Engine,
    contenders: Mapping[Candidate, Engine],
    prompts: Sequence[Prompt],
    repeats: int,
    predicted: Mapping[Candidate, float],
    tell: Callable[[str], None],
) -> list[Checked]:
    """Run everybody in turns, each turn beginning with another one; return the fastest first."""
    engines = {Candidate(PLAIN): plain, **contenders}
    names = list(engines)
    speeds: dict[Candidate, dict[str, list[float]]] = {name: {} for name in names}
    ratios: dict[Candidate, dict[str, list[float]]] = {name: {} for name in names}
    turn = 0
    for _ in range(repeats):
        for prompt in prompts:
            tell(f"checking {len(contenders)} settings: turn {turn + 1} of {repeats * len(prompts)}")
            start = turn % len(names)
            turn += 1
            answers = {name: engines[name].run([prompt.request])[0] for name in (*names[start:], *names[:start])}
            base = answers[Candidate(PLAIN)].tokens_per_second
            if min(answer.tokens_per_second for answer in answers.values()) <= 0:
                continue  # an answer of one token has no speed
            for name, answer in answers.items():
                speeds[name].setdefault(prompt.category, []).append(answer.tokens_per_second)
                ratios[name].setdefault(prompt.category, []).append(answer.tokens_per_second / base)
    if not speeds[Candidate(PLAIN)]:
        raise ConfigError("all answers are too short to have a speed; give longer prompts or more tokens")
    checked = []
    for name in contenders:
        by_category = {category: median(values) for category, values in ratios[name].items()}
        everything = [value for values in ratios[name].values() for value in values]
        low, _, high = quantiles(everything, n=4, method="inclusive") if len(everything) > 1 else everything * 3
        checked.append(
            Checked(
                candidate=name,
                tokens_per_second={category: median(values) for category, values in speeds[name].items()},
                ratios=by_category,
                ratio=geometric_mean(by_category.values()),
                quartiles=(low, high),
                predicted_ratio=predicted.get(name),
            )
        )
    return sorted(checked, key=lambda one: -one.ratio)
