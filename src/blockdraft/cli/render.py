"""What is shown of an answer: its text, its rounds in colour, the last line, and a comparison."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from blockdraft.core.acceptance import AcceptanceStats

if TYPE_CHECKING:
    from blockdraft.bench.compare import Comparison
    from blockdraft.engine import Engine, Generation, Token
    from blockdraft.engine.request import SequenceState


class PlainView:
    """Writes the text to standard output as it comes."""

    def __init__(self) -> None:
        self._last = ""

    def show(self, tokens: Sequence[Token]) -> None:
        if text := "".join(token.text for token in tokens):
            self._last = text[-1]
            sys.stdout.write(text)
            sys.stdout.flush()

    def close(self) -> None:
        if self._last not in ("", "\n"):
            sys.stdout.write("\n")
            sys.stdout.flush()


_SHADES = ("#dce8f7", "#f8ecd0")
"""Backgrounds of even and odd rounds. Text colours are set too, so both read well on dark and light terminals."""

_COLOURS = {
    "first": "#5b2a86",
    "drafted": "bold #00592b",
    "bonus": "#003a8c",
    "recovered": "underline #9b1c1c",
    "plain": "#404040",
}
_MARKS = {"first": "^", "drafted": "+", "bonus": "*", "recovered": "!", "plain": ""}
_MEANINGS = {
    "first": "from the prompt",
    "drafted": "drafted and accepted",
    "bonus": "the target's own, after a draft that was accepted whole",
    "recovered": "the target's correction of a draft",
    "plain": "the target's own, without a draft",
}


class RoundsView:
    """Shows by colour which round a token came in and how it came; by marks where there are no colours."""

    def __init__(self) -> None:
        self._console = Console(highlight=False, soft_wrap=True)
        self.has_colours = self._console.color_system is not None and not self._console.no_color
        self._round = -1
        self._is_empty = True

    def legend(self) -> Text:
        """Return what the colours or marks mean."""
        text = Text.assemble(("rounds  ", "dim"))
        if self.has_colours:
            text.append(" one ", style=f"#202020 on {_SHADES[0]}")
            text.append(" the next ", style=f"#202020 on {_SHADES[1]}")
        else:
            text.append("| between two", style="dim")
        for kind, meaning in _MEANINGS.items():
            text.append("\n")
            if self.has_colours:
                text.append(f" {kind:9} ", style=f"{_COLOURS[kind]} on {_SHADES[0]}")
            else:
                text.append(f"{_MARKS[kind] or ' '} {kind:9}")
            text.append(f"  {meaning}", style="dim")
        return text

    def show(self, tokens: Sequence[Token]) -> None:
        for token in tokens:
            self._console.print(self._styled(token) if self.has_colours else self._marked(token), end="")
            self._round = token.round_index
            self._is_empty = False

    def close(self) -> None:
        if not self._is_empty:
            self._console.print()

    def _styled(self, token: Token) -> Text:
        shade = _SHADES[token.round_index % 2]
        return Text(token.text, style=f"{_COLOURS[token.kind]} on {shade}", end="")

    def _marked(self, token: Token) -> Text:
        border = "|" if token.round_index != self._round else ""
        return Text(f"{border}{_MARKS[token.kind]}{token.text}", end="")


@dataclass(frozen=True, kw_only=True)
class Figures:
    """What the last line tells about an answer, or about several."""

    num_tokens: int
    seconds: float
    """From the first token of each answer to its last."""
    stats: AcceptanceStats
    drafter: str
    num_answers: int = 1
    num_parked: int = 0
    not_speculating: str | None = None
    reached_limit: bool = False
    mean_logprob: float | None = None

    @classmethod
    def of(cls, generation: Generation) -> Figures:
        """Return the figures of a finished answer."""
        return cls(
            num_tokens=len(generation.tokens),
            seconds=generation.timings.decode_s,
            stats=generation.stats,
            drafter=generation.drafter,
            num_parked=generation.num_parked,
            not_speculating=generation.not_speculating,
            reached_limit=generation.finish_reason == "length",
            mean_logprob=_mean_logprob(generation.tokens),
        )

    @classmethod
    def of_unfinished(cls, sequence: SequenceState, drafter: str) -> Figures:
        """Return the figures of an answer that was cut short."""
        stats = AcceptanceStats()
        for record in sequence.rounds:
            stats.add_round(
                num_drafted=record.num_drafted,
                num_accepted=record.num_accepted,
                num_emitted=record.num_emitted,
                drafter=record.drafter,
            )
        return cls(
            num_tokens=len(sequence.tokens),
            seconds=sequence.last_token_at - sequence.first_token_at if sequence.rounds else 0.0,
            stats=stats,
            drafter=drafter,
            num_parked=sequence.num_parked,
            mean_logprob=_mean_logprob(sequence.tokens),
        )

    @classmethod
    def total(cls, parts: Sequence[Figures]) -> Figures:
        """Return the figures of several answers of one drafter together."""
        return cls(
            num_tokens=sum(part.num_tokens for part in parts),
            seconds=sum(part.seconds for part in parts),
            stats=AcceptanceStats.merge(part.stats for part in parts),
            drafter=parts[0].drafter,
            num_parked=sum(part.num_parked for part in parts),
            num_answers=len(parts),
        )

    @property
    def tokens_per_second(self) -> float:
        """Decoding speed: the first token of an answer belongs to the prompt's pass and does not count."""
        return (self.num_tokens - self.num_answers) / self.seconds if self.seconds > 0 else 0.0

    def line(self) -> str:
        """Return the figures in one line."""
        stats = self.stats
        parts = [_count(self.num_answers, "answer")] if self.num_answers > 1 else []
        parts.append(_count(self.num_tokens, "token"))
        if self.tokens_per_second > 0:
            parts.append(f"{self.tokens_per_second:.1f} tok/s")
        if stats.num_rounds:
            parts.append(f"{stats.mean_acceptance_length:.2f} tokens/round")
        parts.append(f"{stats.acceptance_rate:.0%} accepted" if stats.num_drafted else "nothing drafted")
        parts += [_count(stats.num_rounds, "round"), self._drafters()]
        if self.num_parked:
            parts.append(f"{self.num_parked} of them parked, as drafting would be slower")
        if self.mean_logprob is not None:
            parts.append(f"mean logprob {self.mean_logprob:.3f}")
        if self.reached_limit:
            parts.append("cut at --max-tokens")
        if self.not_speculating:
            parts.append(f"not speculating: {self.not_speculating}")
        return "  ".join(part for part in parts if part)

    def _drafters(self) -> str:
        """Return who was configured; for a chain, who won how many rounds."""
        if "," not in self.drafter:
            return self.drafter
        rounds = self.stats.rounds_by_drafter
        won = [f"{name} {rounds.get(name, 0)}" for name in self.drafter.split(",")]
        return ", ".join([*won, f"no draft {rounds['none']}"] if "none" in rounds else won)


def comparison_lines(comparison: Comparison, engine: Engine) -> list[str]:
    """Return speeds, their ratio, and whether the texts are the same."""
    rows = [
        ("plain", _speed(comparison.plain, comparison.plain_tokens_per_second)),
        (engine.drafter_name, _speed(comparison.speculative, comparison.speculative_tokens_per_second)),
    ]
    if comparison.speed_ratio is not None and comparison.speed_ratio_range is not None:
        low, high = comparison.speed_ratio_range
        rows.append(("ratio", f"{comparison.speed_ratio:.2f}x  ({low:.2f} to {high:.2f})"))
    rows.append(("texts", _verdict(comparison, engine)))
    width = max(len(name) for name, _ in rows)
    return [*(f"{name:{width}}  {value}" for name, value in rows), *comparison.notes]


def _speed(answers: Sequence[Generation], median: float) -> str:
    if median <= 0:
        return "the answer is too short for a speed"
    speeds = [answer.tokens_per_second for answer in answers]
    return f"{median:.1f} tok/s  (median of {len(speeds)}, {min(speeds):.1f} to {max(speeds):.1f})"


def is_fault(comparison: Comparison) -> bool:
    """True if the texts differ and rounding does not explain it. Sampled answers cannot be judged that way."""
    difference = comparison.difference
    if difference is None or difference.is_near_tie:
        return False
    return difference.gap is not None or None in (difference.plain_id, difference.other_id)


def _verdict(comparison: Comparison, engine: Engine) -> str:
    difference = comparison.difference
    if comparison.not_comparable:
        return f"not compared: {comparison.not_comparable}"
    if difference is None:
        return f"identical, {_count(len(comparison.plain[0].tokens), 'token')}"
    left, right = (_reading(engine, token_id) for token_id in (difference.plain_id, difference.other_id))
    place = f"they differ from token {difference.position + 1} on: plain {left}, speculative {right}"
    if difference.is_near_tie:
        return f"{place}; near-tie: the logits are {difference.gap:.4f} nat apart, which rounding can tip"
    if not is_fault(comparison):
        return f"{place}; undecided: sampled draws may be tipped by rounding, compare with --temperature 0"
    gap = "" if difference.gap is None else f": the logits are {difference.gap:.3f} nat apart"
    return f"{place}; FAULT{gap}. This must not happen, please report it"


def _reading(engine: Engine, token_id: int | None) -> str:
    if token_id is None:
        return "has ended"
    return repr(engine.tokenizer.token_text(token_id)) if engine.tokenizer else str(token_id)


def _mean_logprob(tokens: Sequence[Token]) -> float | None:
    values = [token.logprob for token in tokens if token.logprob is not None]
    return sum(values) / len(values) if values else None


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
