"""What the figures of a probe mean: each rule looks at one way in which drafting quietly stops paying."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from blockdraft.bench.endpoint.counters import DraftCounters
from blockdraft.bench.endpoint.statistics import two_sided
from blockdraft.bench.findings import Finding, by_severity

if TYPE_CHECKING:
    from blockdraft.bench.endpoint.probe import Measured

_FELL_TO = 0.5
"""A rate that is under this share of another one is called a collapse, if chance does not explain it."""
_FAR_UNDER = 0.6
"""Accepted tokens a round under this share of what is promised are far under it."""
_CHANCE = 0.001
_FEW = 40
"""Fewer drafted tokens show nothing."""
_LEAST_CACHED = 0.3

_HOW_TO_COUNT = {
    "llamacpp": "start llama-server with --metrics",
    "sglang": "start SGLang with --enable-metrics",
    "vllm": "vLLM shows its counters if it runs with --speculative-config; look at its command line and its log",
    "unknown": "look for the engine's own counters of drafted and accepted tokens",
}


def diagnose(measured: Measured, expected_length: float | None) -> list[Finding]:
    """Return what is wrong with a server, the worst first."""
    total = measured.total
    if total is None:
        return [_uncounted(measured), *_prefix_hits(measured)]
    if not (total.num_drafted or total.num_rounds):
        return [_never_drafts(measured)]
    if not total.num_accepted:
        return [_nothing_accepted(total)]
    return by_severity(
        [
            *_late_collapse(measured),
            *_depth(measured),
            *_known_prompts(measured),
            *_prefix_hits(measured),
            *_under_the_card(measured, expected_length),
        ]
    )


def _uncounted(measured: Measured) -> Finding:
    engine = measured.engine
    if engine.speculates is False:
        return _never_drafts(measured)
    return Finding(
        severity="warning",
        name="drafts-not-counted",
        what="the server does not tell whether it drafts",
        reason="a drafter that is missing, dead or off leaves a server healthy and slow",
        fix=_HOW_TO_COUNT[engine.engine],
        source="/metrics and the answers",
    )


def _drafts_from_text(method: str | None) -> bool:
    """True if all ways to draft that a server names copy from its text."""
    ways = [way.strip().lower() for way in (method or "").split(",") if way.strip()]
    return bool(ways) and all(way.startswith(("ngram", "suffix")) for way in ways)


def _never_drafts(measured: Measured) -> Finding:
    if _drafts_from_text(measured.engine.method):
        return Finding(
            severity="note",
            name="nothing-to-copy",
            what=f"not one token was drafted; {measured.engine.method} copies from the text, and what the probe asks "
            "hardly repeats itself",
            reason="where nothing repeats it rightly proposes nothing, which costs almost nothing",
            fix="measure with prompts like yours: blockdraft bench URL --prompts FILE",
            source=measured.total.source if measured.total else "what the server says of itself",
        )
    says = {True: "although it says that it speculates", False: "and says that it does not speculate"}
    said = says.get(measured.engine.speculates) if measured.engine.speculates is not None else None
    return Finding(
        severity="error",
        name="never-drafts",
        what="not one token was drafted" + (f", {said}" if said else ""),
        reason="it decodes plainly: the drafter is missing, was not loaded, or never proposes anything",
        fix="look for the drafter in the server's log; check its path, its kind (--spec-type, method) and its lengths",
        source=measured.total.source if measured.total else "what the server says of itself",
    )


def _nothing_accepted(total: DraftCounters) -> Finding:
    return Finding(
        severity="error",
        name="nothing-accepted",
        what=f"none of {total.num_drafted or 'the'} drafted tokens was accepted",
        reason="the drafter costs time and gives nothing: a wrong pair, mask token, layer ids or a broken head",
        fix="check the pair with: blockdraft doctor TARGET DRAFTER",
        source=total.source,
    )


def _late_collapse(measured: Measured) -> Iterator[Finding]:
    # Answers after the first ones are to known prompts, so what those do to drafts would be taken for their length.
    if len(measured.by_length) < 2 or any(_known_prompts(measured)):
        return
    first = measured.by_length[0]
    for window in measured.by_length[1:]:
        if has_fallen(first.counters, window.counters):
            early, late = _rate(first.counters), _rate(window.counters)
            yield Finding(
                severity="error",
                name="late-collapse",
                what=f"from token {window.start} of an answer on, {_shown(late)} of the drafts are accepted; "
                f"of the first {first.end} it is {_shown(early)}",
                reason="short tests look well and long answers are slow: the drafter's state goes wrong as it grows",
                fix="compare with another engine or another checkpoint of the drafter; report it with this output",
                source=f"{window.counters.source}, answers of {first.end} to {window.end} tokens",
            )
            return


def _depth(measured: Measured) -> Iterator[Finding]:
    if not measured.by_length:
        return
    shallow = measured.by_length[0].counters
    for window in measured.by_depth:
        if has_fallen(shallow, window.counters):
            yield Finding(
                severity="warning",
                name="deep-context",
                what=f"behind {window.end} tokens {_shown(_rate(window.counters))} of the drafts are accepted; "
                f"behind short prompts it is {_shown(_rate(shallow))}",
                reason="the context is longer than what the drafter was trained on, or it slides and is run as full",
                fix="use a drafter with sliding windows, limit the drafter's window, or do not speculate that deep",
                source=f"{window.counters.source}, prompts of about {window.end} tokens",
            )
            return


def _known_prompts(measured: Measured) -> Iterator[Finding]:
    if measured.cold and measured.warm and has_fallen(measured.cold, measured.warm):
        yield Finding(
            severity="warning",
            name="prefix-hit-acceptance",
            what=f"behind a prompt that the server knows {_shown(_rate(measured.warm))} of the drafts are accepted; "
            f"when it was new it was {_shown(_rate(measured.cold))}",
            reason="features of cached tokens are missing or shifted for the drafter (vllm#47930 is a case)",
            fix="compare with the prefix cache off; upgrade the engine",
            source=f"{measured.warm.source}, the same prompts twice",
        )


def _prefix_hits(measured: Measured) -> Iterator[Finding]:
    cached, size = measured.cached_tokens, measured.prompt_tokens
    if cached is None or not size or size < 64:
        return
    if cached < _LEAST_CACHED * size:
        yield Finding(
            severity="warning",
            name="prefix-hits-gone",
            what=f"of prompts asked again {cached} of {size} tokens came from the prefix cache",
            reason="some engines give the prefix cache up with a drafter: every turn of a conversation is read anew",
            fix="measure the time to the first token with and without the drafter; upgrade or reconfigure the cache",
            source="cached tokens of the answers, or vllm:prefix_cache_hits",
        )


def _under_the_card(measured: Measured, expected: float | None) -> Iterator[Finding]:
    total = measured.total
    found = total.mean_acceptance_length if total else None
    if expected is None or found is None or found - 1 >= _FAR_UNDER * (expected - 1):
        return
    yield Finding(
        severity="warning",
        name="under-the-card",
        what=f"a round gives {found:.2f} tokens, the drafter's card promises {expected:g}",
        reason="another thinking mode, chat template, precision or language than the drafter's, or a faulty pair",
        fix="check the pair with: blockdraft doctor TARGET DRAFTER; compare the thinking mode with the card's",
        source=total.source if total else "",
    )


def has_fallen(before: DraftCounters, after: DraftCounters) -> bool:
    """True if drafts are accepted less than half as often, and chance does not explain it."""
    early, late = _trials(before), _trials(after)
    if early is None or late is None or min(early[1], late[1]) < _FEW:
        return False
    first, second = early[0] / early[1], late[0] / late[1]
    share = (early[0] + late[0]) / (early[1] + late[1])
    spread = math.sqrt(share * (1 - share) * (1 / early[1] + 1 / late[1]))
    return second < _FELL_TO * first and spread > 0 and two_sided((first - second) / spread) < _CHANCE


def _trials(counters: DraftCounters) -> tuple[int, int] | None:
    """Return how many tokens were accepted, and how many could have been."""
    trials = counters.num_drafted if counters.num_drafted is not None else counters.num_rounds
    if trials is None or counters.num_accepted is None:
        return None
    return min(counters.num_accepted, trials), trials


def _rate(counters: DraftCounters) -> float:
    trials = _trials(counters)
    return trials[0] / trials[1] if trials and trials[1] else 0.0


def _shown(rate: float) -> str:
    return f"{100 * rate:.0f} %"
