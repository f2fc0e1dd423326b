"""What engines count about drafts, in one form: from Prometheus text, or from the answer itself.

vLLM and llama.cpp count rounds, drafted and accepted tokens, the latter by position as well, since their start:
subtract what was read before from what was read after. SGLang counts verify passes and tokens; accepted tokens
follow from the two, drafted ones do not. The definitions are those of `core.acceptance`: `num_accepted` leaves the
target's own token of a round out, a round is one verify pass of one sequence.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from blockdraft.bench.endpoint.connection import Connection
from blockdraft.errors import EndpointError

_SAMPLE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_PREFIXES = ("vllm:", "llamacpp:")
_SPEC = "spec_decode_num_"


@dataclass(frozen=True, kw_only=True)
class DraftCounters:
    """Rounds and tokens of speculative decoding; None where an engine does not tell."""

    num_rounds: int | None
    num_drafted: int | None
    num_accepted: int | None
    accepted_at: tuple[int, ...] = ()
    """In how many rounds the draft token of each position was kept; empty if it is not told."""
    source: str
    """Where the figures were read."""

    def __sub__(self, earlier: DraftCounters) -> DraftCounters:
        """Return what was counted since `earlier`.

        Raises:
            EndpointError: a counter went back, so the server was restarted in between.
        """
        since = DraftCounters(
            num_rounds=_minus(self.num_rounds, earlier.num_rounds),
            num_drafted=_minus(self.num_drafted, earlier.num_drafted),
            num_accepted=_minus(self.num_accepted, earlier.num_accepted),
            accepted_at=tuple(
                now - before for now, before in zip_longest(self.accepted_at, earlier.accepted_at, fillvalue=0)
            ),
            source=self.source,
        )
        figures = (since.num_rounds, since.num_drafted, since.num_accepted, *since.accepted_at)
        if any(figure is not None and figure < 0 for figure in figures):
            raise EndpointError(f"counters of {self.source} went back: was the server restarted during the run?")
        return since

    def beyond(self, shorter: DraftCounters) -> DraftCounters:
        """Return what was drafted for the rest of answers whose beginnings have these counters, and no less than 0."""
        rest = [
            None if mine is None or other is None else max(0, mine - other)
            for mine, other in (
                (self.num_rounds, shorter.num_rounds),
                (self.num_drafted, shorter.num_drafted),
                (self.num_accepted, shorter.num_accepted),
            )
        ]
        return DraftCounters(num_rounds=rest[0], num_drafted=rest[1], num_accepted=rest[2], source=self.source)

    def __add__(self, other: DraftCounters) -> DraftCounters:
        return DraftCounters(
            num_rounds=_plus(self.num_rounds, other.num_rounds),
            num_drafted=_plus(self.num_drafted, other.num_drafted),
            num_accepted=_plus(self.num_accepted, other.num_accepted),
            accepted_at=tuple(
                left + right for left, right in zip_longest(self.accepted_at, other.accepted_at, fillvalue=0)
            ),
            source=self.source,
        )

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted by drafted tokens; None if nothing was drafted or an engine does not tell."""
        if not self.num_drafted or self.num_accepted is None:
            return None
        return self.num_accepted / self.num_drafted

    @property
    def mean_acceptance_length(self) -> float | None:
        """1 + accepted tokens by rounds: how many tokens a round gives; None if there was no round."""
        if not self.num_rounds or self.num_accepted is None:
            return None
        return 1 + self.num_accepted / self.num_rounds

    @property
    def survival(self) -> tuple[float, ...]:
        """In which share of all rounds the first i + 1 drafts were kept, by i."""
        return tuple(count / self.num_rounds for count in self.accepted_at) if self.num_rounds else ()

    def describe(self) -> str:
        """Say how much was kept, as far as the engine tells."""
        if self.num_accepted is None or (self.num_drafted is None and not self.num_rounds):
            return "drafts are not counted"
        if self.num_drafted == 0:
            return "nothing drafted"
        of = f" of {self.num_drafted}" if self.num_drafted is not None else ""
        rate = f" ({100 * self.acceptance_rate:.0f} %)" if self.acceptance_rate is not None else ""
        length = self.mean_acceptance_length
        each = f", {length:.2f} tokens a round" if length is not None else ""
        return f"{self.num_accepted}{of} drafted tokens kept{rate}{each}"

    def to_dict(self) -> dict[str, object]:
        """Return counts and ratios as plain data."""
        return {
            "num_rounds": self.num_rounds,
            "num_drafted": self.num_drafted,
            "num_accepted": self.num_accepted,
            "accepted_at": list(self.accepted_at),
            "acceptance_rate": self.acceptance_rate,
            "mean_acceptance_length": self.mean_acceptance_length,
            "survival": list(self.survival),
            "source": self.source,
        }


@dataclass(frozen=True, kw_only=True)
class MetricSample:
    """One line of Prometheus text."""

    name: str
    labels: Mapping[str, str]
    value: float


def parse_metrics(text: str) -> list[MetricSample]:
    """Return the samples of a Prometheus page; comments and lines that are none are left out."""
    samples = []
    for line in text.splitlines():
        match = _SAMPLE.match(line)
        if match:
            labels = {name: re.sub(r"\\(.)", r"\1", value) for name, value in _LABEL.findall(match[2] or "")}
            try:
                samples.append(MetricSample(name=match[1], labels=labels, value=float(match[3])))
            except ValueError:
                continue
    return samples


def total_of(samples: Iterable[MetricSample], name: str) -> float | None:
    """Return a metric summed over its labels, with or without `_total` at its end; None if it is not there."""
    values = [sample.value for sample in samples if sample.name in (name, f"{name}_total")]
    return sum(values) if values else None


def counters_of_metrics(samples: Iterable[MetricSample]) -> DraftCounters | None:
    """Return what a metrics page counts about drafts, over all models and engines of the server; None if nothing."""
    samples = list(samples)
    for prefix in _PREFIXES:
        num_rounds = total_of(samples, f"{prefix}{_SPEC}drafts")
        if num_rounds is not None:
            return DraftCounters(
                num_rounds=int(num_rounds),
                num_drafted=_whole(total_of(samples, f"{prefix}{_SPEC}draft_tokens")),
                num_accepted=_whole(total_of(samples, f"{prefix}{_SPEC}accepted_tokens")),
                accepted_at=_by_position(samples, f"{prefix}{_SPEC}accepted_tokens_per_pos"),
                source="/metrics",
            )
    return _counters_of_sglang(samples)


def counters_of_answer(answer: Mapping[str, Any]) -> DraftCounters | None:
    """Return what an answer says about its own drafts; None if it says nothing.

    llama.cpp puts `draft_n` into `timings` if something was drafted; vLLM puts `metrics.speculative_decoding` into an
    answer if it runs with --per-request-spec-decode-metrics; SGLang puts `spec_...` into `meta_info`, which a request
    through the interface of OpenAI gets with `return_meta_info`.
    """
    timings = answer.get("timings")
    if isinstance(timings, Mapping):
        return DraftCounters(
            num_rounds=None,
            num_drafted=int(timings.get("draft_n", 0)),
            num_accepted=int(timings.get("draft_n_accepted", 0)),
            source="timings",
        )
    found = (answer.get("metrics") or {}).get("speculative_decoding")
    if isinstance(found, Mapping):
        histogram = [int(count) for count in found.get("acceptance_histogram") or ()]
        return DraftCounters(
            num_rounds=_whole(found.get("num_spec_steps")),
            num_drafted=_whole(found.get("num_draft_tokens")),
            num_accepted=_whole(found.get("num_accepted_draft_tokens")),
            # The histogram counts rounds by how many drafts they kept.
            accepted_at=tuple(sum(histogram[position:]) for position in range(1, len(histogram))),
            source="metrics.speculative_decoding",
        )
    choices: Any = answer.get("choices") or ({},)
    meta = answer.get("meta_info") or choices[0].get("meta_info")
    if isinstance(meta, Mapping) and "spec_verify_ct" in meta:
        return DraftCounters(
            num_rounds=_whole(meta["spec_verify_ct"]),
            num_drafted=_whole(meta.get("spec_num_proposed_drafts")),
            num_accepted=_whole(meta.get("spec_num_correct_drafts")),
            source="meta_info",
        )
    return None


async def read_metrics(connection: Connection) -> list[MetricSample] | None:
    """Return the samples of the server's metrics page; None if it has none."""
    try:
        return parse_metrics(await connection.get_text("/metrics"))
    except EndpointError:
        return None


async def read_counters(connection: Connection) -> DraftCounters | None:
    """Return what the server counted about drafts since its start; None if it does not tell.

    llama.cpp needs `--metrics`, SGLang `--enable-metrics`; vLLM has them if it speculates.
    """
    samples = await read_metrics(connection)
    return None if samples is None else counters_of_metrics(samples)


def _counters_of_sglang(samples: list[MetricSample]) -> DraftCounters | None:
    num_rounds = total_of(samples, "sglang:spec_verify_calls")
    num_tokens = total_of(samples, "sglang:generation_tokens")
    if num_rounds is None:
        return None
    # Prefill gives the first token of each request, a verify pass gives one more than it accepts.
    num_requests = total_of(samples, "sglang:num_requests")
    is_known = num_tokens is not None and num_requests is not None
    accepted = max(0, int((num_tokens or 0) - (num_requests or 0) - num_rounds)) if is_known else None
    return DraftCounters(
        num_rounds=int(num_rounds),
        num_drafted=None,
        num_accepted=accepted,
        source="/metrics (accepted from tokens, requests and verify calls)",
    )


def _by_position(samples: Iterable[MetricSample], name: str) -> tuple[int, ...]:
    counts: dict[int, float] = {}
    for sample in samples:
        if sample.name in (name, f"{name}_total") and sample.labels.get("position", "").isdigit():
            position = int(sample.labels["position"])
            counts[position] = counts.get(position, 0.0) + sample.value
    return tuple(int(counts.get(position, 0)) for position in range(max(counts, default=-1) + 1))


def _whole(value: Any) -> int | None:
    return None if value is None else int(value)


def _minus(left: int | None, right: int | None) -> int | None:
    return None if left is None or right is None else left - right


def _plus(left: int | None, right: int | None) -> int | None:
    return None if left is None or right is None else left + right
