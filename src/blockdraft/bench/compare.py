"""Speculative against plain decoding of one request, in the same process, turn by turn.

Both sides run on the same target. They take turns, and who goes first alternates, so that a machine which
slows down or warms up does so for both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from statistics import median

from blockdraft.bench.identity import Difference, first_difference
from blockdraft.engine import Engine, Generation, Request
from blockdraft.errors import ConfigError

WARM_UP_TOKENS = 32


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What both sides answered, how fast, and whether it is the same."""

    plain: tuple[Generation, ...]
    speculative: tuple[Generation, ...]
    """As many as `plain`; those at the same index ran next to each other."""
    difference: Difference | None
    """The first difference of the first pair that differs; None if there is none or nothing was to be equal."""
    not_comparable: str | None
    """Why equal texts cannot be expected; None if they can."""
    notes: tuple[str, ...] = ()
    """What a reader of the speed ratio should know."""

    @property
    def identical(self) -> bool | None:
        """Whether every pair gave the same tokens; None if that is not to be expected (`not_comparable`)."""
        return None if self.not_comparable else self.difference is None

    @property
    def plain_tokens_per_second(self) -> float:
        return median(generation.tokens_per_second for generation in self.plain)

    @property
    def speculative_tokens_per_second(self) -> float:
        return median(generation.tokens_per_second for generation in self.speculative)

    @property
    def speed_ratios(self) -> tuple[float, ...]:
        """Speculative by plain speed of each pair; empty if the answers are too short to have a speed."""
        pairs = zip(self.plain, self.speculative, strict=True)
        speeds = [(plain.tokens_per_second, speculative.tokens_per_second) for plain, speculative in pairs]
        return tuple(fast / slow for slow, fast in speeds if slow > 0 and fast > 0)

    @property
    def speed_ratio(self) -> float | None:
        """The median of the pairs; None if the answers are too short to have a speed."""
        return median(self.speed_ratios) if self.speed_ratios else None

    @property
    def speed_ratio_range(self) -> tuple[float, float] | None:
        """The lowest and the highest ratio."""
        return (min(self.speed_ratios), max(self.speed_ratios)) if self.speed_ratios else None

    def to_dict(self) -> dict[str, object]:
        """Return figures and verdict as plain data, without the answers."""
        return {
            "num_tokens": len(self.plain[0].tokens),
            "plain_tokens_per_second": self.plain_tokens_per_second,
            "speculative_tokens_per_second": self.speculative_tokens_per_second,
            "speed_ratio": self.speed_ratio,
            "speed_ratio_range": list(self.speed_ratio_range) if self.speed_ratio_range else None,
            "repeats": len(self.plain),
            "identical": self.identical,
            "not_comparable": self.not_comparable,
            "difference": self.difference.to_dict() if self.difference else None,
            "stats": self.speculative[0].stats.to_dict(),
            "notes": list(self.notes),
        }


def compare(
    engine: Engine, request: Request, *, repeats: int = 3, notify: Callable[[str], None] | None = None
) -> Comparison:
    """Serve a request `repeats` times with and without the drafter, after a short warm-up of each.

    `notify` is told before each run which one it is.

    Raises:
        ConfigError: there is no drafter to compare, or nothing to repeat.
    """
    if engine.drafter is None:
        raise ConfigError("there is nothing to compare: this engine decodes plainly; give it a drafter")
    if repeats < 1:
        raise ConfigError(f"repeats must be at least 1, not {repeats}")
    tell = notify or (lambda _: None)
    baseline = engine.without_drafter()
    tell("warm-up")
    warm_up = replace(request, max_tokens=min(request.max_tokens, WARM_UP_TOKENS))
    baseline.run([warm_up])
    engine.run([warm_up])
    answers: dict[bool, list[Generation]] = {False: [], True: []}
    for number, is_speculative in _turns(repeats):
        side = engine if is_speculative else baseline
        tell(f"run {number} of {repeats}: {engine.drafter_name if is_speculative else 'plain'}")
        answers[is_speculative] += side.run([request])
    not_comparable = why_not_comparable(engine, request)
    return Comparison(
        plain=tuple(answers[False]),
        speculative=tuple(answers[True]),
        difference=None if not_comparable else _difference(engine, request, answers[False], answers[True]),
        not_comparable=not_comparable,
        notes=_notes(engine),
    )


def why_not_comparable(engine: Engine, request: Request) -> str | None:
    """Return why this request's text may differ from plain decoding's, although its distribution does not."""
    if request.sampling.is_greedy or engine.drafter is None or engine.spec.rule == "match":
        return None
    if engine.spec.rule == "auto" and engine.drafter.traits.is_deterministic:
        return None  # Drafts without probabilities are matched with the target's own draws.
    return (
        "rejection sampling keeps the distribution of sampled answers, not each draw; "
        "compare greedily (temperature 0) or verify with `match`"
    )


def _turns(repeats: int) -> Iterator[tuple[int, bool]]:
    """Yield (number, is_speculative): plain first, then speculative first, and so on."""
    for index in range(repeats):
        starts_with_drafter = index % 2 == 1
        yield index + 1, starts_with_drafter
        yield index + 1, not starts_with_drafter


def _difference(
    engine: Engine, request: Request, plain: list[Generation], speculative: list[Generation]
) -> Difference | None:
    for left, right in zip(plain, speculative, strict=True):
        found = first_difference(
            engine.target, request.prompt_ids, left.token_ids, right.token_ids, sampling=request.sampling
        )
        if found:
            return found if request.sampling.is_greedy else replace(found, gap=None)
    return None


def _notes(engine: Engine) -> tuple[str, ...]:
    if "ngram-mod" in engine.spec.types and engine.spec.ngram_mod.shared:
        return ("ngram-mod shares its table: the repeats draft from the first answer, a new prompt would be slower",)
    return ()
