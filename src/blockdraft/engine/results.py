"""What a generation returns: every token with where it came from, the rounds, and the figures."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from blockdraft.core.acceptance import AcceptanceStats
from blockdraft.core.verify import NextKind
from blockdraft.engine.stopping import FinishReason

TokenKind = Literal["first", "drafted", "bonus", "recovered", "plain"]
"""`first` comes from the prefill, `drafted` from an accepted draft, the others as in `NextKind`."""


@dataclass(frozen=True, kw_only=True)
class Token:
    """One emitted token."""

    id: int
    text: str
    """The text that became certain with this token; the texts of all tokens together are the answer."""
    kind: TokenKind
    round_index: int
    """The round that emitted it, from 0; -1 for the first token."""
    drafter: str = ""
    """Who drafted it, if it was drafted."""
    logprob: float | None = None
    """Log-probability under the target's unshaped distribution, if asked for."""


@dataclass(frozen=True, kw_only=True)
class Round:
    """One draft -> verify -> commit cycle of one sequence."""

    drafter: str
    """Whose draft was verified; empty if there was none."""
    num_drafted: int
    num_accepted: int
    num_emitted: int
    next_kind: NextKind | None
    """How the last token came; None if the answer ended inside the accepted drafts."""


@dataclass(frozen=True, kw_only=True)
class Timings:
    """Wall-clock seconds of one sequence; those of a shared pass count fully for each sequence in it."""

    prefill_s: float = 0.0
    draft_s: float = 0.0
    target_s: float = 0.0
    decode_s: float = 0.0
    """From the first token to the last."""


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """A piece of a stream: what one round (or the prefill) added."""

    text: str
    tokens: tuple[Token, ...]
    finish_reason: FinishReason | None = None


@dataclass(frozen=True, kw_only=True)
class Generation:
    """A finished answer."""

    prompt_ids: tuple[int, ...]
    tokens: tuple[Token, ...]
    finish_reason: FinishReason
    stopped_by: str | int | None
    """The stop string or token id that ended the answer; None at the length limit."""
    rounds: tuple[Round, ...]
    timings: Timings
    drafter: str
    """The drafter that was configured; empty for plain decoding."""
    not_speculating: str | None
    """Why no draft token was accepted, if none was."""
    num_parked: int = 0
    """Rounds that decoded plainly, as the policy expected that to be faster."""

    @cached_property
    def text(self) -> str:
        """The answer, without the text of a stop."""
        return "".join(token.text for token in self.tokens)

    @cached_property
    def token_ids(self) -> tuple[int, ...]:
        """The emitted ids; the token that ended the answer is among them."""
        return tuple(token.id for token in self.tokens)

    @cached_property
    def stats(self) -> AcceptanceStats:
        """Acceptance over all rounds. The first token comes from the prefill and belongs to no round."""
        stats = AcceptanceStats()
        for record in self.rounds:
            stats.add_round(
                num_drafted=record.num_drafted,
                num_accepted=record.num_accepted,
                num_emitted=record.num_emitted,
                drafter=record.drafter,
            )
        return stats

    @property
    def tokens_per_second(self) -> float:
        """Decoding speed: the tokens after the first, by the time since the first."""
        return (len(self.tokens) - 1) / self.timings.decode_s if self.timings.decode_s > 0 else 0.0

    def to_dict(self) -> dict[str, object]:
        """Return everything as plain data."""
        return {
            "text": self.text,
            "num_prompt_tokens": len(self.prompt_ids),
            "num_tokens": len(self.tokens),
            "finish_reason": self.finish_reason,
            "stopped_by": self.stopped_by,
            "drafter": self.drafter or None,
            "not_speculating": self.not_speculating,
            "num_parked": self.num_parked,
            "tokens_per_second": self.tokens_per_second,
            "stats": self.stats.to_dict(),
            "timings": {
                "prefill_s": self.timings.prefill_s,
                "draft_s": self.timings.draft_s,
                "target_s": self.timings.target_s,
                "decode_s": self.timings.decode_s,
            },
            "tokens": [
                {
                    "id": token.id,
                    "text": token.text,
                    "kind": token.kind,
                    "round": token.round_index,
                    "drafter": token.drafter or None,
                    "logprob": token.logprob,
                }
                for token in self.tokens
            ],
        }
