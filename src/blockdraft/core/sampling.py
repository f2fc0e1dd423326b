"""From logits to the distribution a request asked for, row by row.

Every row of a verify pass is shaped with the tokens of its own prefix: row j has seen the prompt, the
committed tokens and the first j draft tokens, so penalties count a token that was drafted earlier in the
same block. Nothing here chooses a token except `greedy_ids` and `sample_rows`.

Order of the steps: logit bias, repetition / frequency / presence penalties, temperature, min-p, top-k,
top-p. Repetition counts prompt and answer tokens; frequency and presence count answer tokens only.

Shape legend: R rows (one per verified position), K draft tokens, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from types import MappingProxyType

import torch
from torch import Tensor, nn

from blockdraft.errors import ConfigError

GREEDY_TEMPERATURE = 1e-5
"""A temperature below this is greedy decoding."""

_SPAN = 128
"""How many tokens are summed together where one is drawn; it divides the vocabularies of Llama 3, Qwen 3, SmolLM2."""

_WINDOWS = (128, 1024, 8192)
"""How many of the most likely tokens are looked at for the sets of top-p and min-p, before all are sorted."""


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """How the next token is chosen from the target's logits.

    Raises:
        ConfigError: a value is outside its range.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int = 0

    def __post_init__(self) -> None:
        for name, ok, want in (
            ("temperature", self.temperature >= 0 and math.isfinite(self.temperature), "at least 0"),
            ("top_k", self.top_k >= 0, "at least 0 (0 keeps all tokens)"),
            ("top_p", 0 < self.top_p <= 1, "in (0, 1]"),
            ("min_p", 0 <= self.min_p <= 1, "in [0, 1]"),
            ("repetition_penalty", 0 < self.repetition_penalty < math.inf, "above 0"),
            ("presence_penalty", math.isfinite(self.presence_penalty), "finite"),
            ("frequency_penalty", math.isfinite(self.frequency_penalty), "finite"),
        ):
            if not ok:
                raise ConfigError(f"{name} must be {want}, not {getattr(self, name)}")
        if any(token_id < 0 for token_id in self.logit_bias):
            raise ConfigError("logit_bias keys are token ids and cannot be negative")
        for token_id, bias in self.logit_bias.items():
            if not bias < math.inf:
                raise ConfigError(f"logit_bias of token {token_id} must be finite, or -inf to forbid it, not {bias}")
        object.__setattr__(self, "logit_bias", MappingProxyType(dict(self.logit_bias)))

    @property
    def is_greedy(self) -> bool:
        """True if the most likely token is always taken."""
        return self.temperature < GREEDY_TEMPERATURE

    @property
    def has_penalties(self) -> bool:
        """True if the logits depend on which tokens came before."""
        return self.repetition_penalty != 1.0 or self.presence_penalty != 0.0 or self.frequency_penalty != 0.0

    def to_dict(self) -> dict[str, object]:
        """Return the parameters as plain data."""
        values: dict[str, object] = {f.name: getattr(self, f.name) for f in fields(self)}
        return values | {"logit_bias": dict(self.logit_bias)}


class TokenCounts:
    """How often each token occurred so far in one sequence; the state behind the penalties."""

    def __init__(self, prompt_ids: Sequence[int], vocab_size: int, device: torch.device) -> None:
        prompt = torch.as_tensor(prompt_ids, dtype=torch.long, device=device)
        self.in_prompt = torch.zeros(vocab_size, dtype=torch.bool, device=device)
        self.in_prompt[prompt] = True
        self.in_answer = torch.zeros(vocab_size, dtype=torch.float32, device=device)

    def add(self, token_ids: Sequence[int]) -> None:
        """Count newly committed answer tokens."""
        ids = torch.as_tensor(token_ids, dtype=torch.long, device=self.in_answer.device)
        self.in_answer.index_add_(0, ids, torch.ones(len(ids), device=ids.device))


def shape_logits(
    logits: Tensor, params: SamplingParams, counts: TokenCounts | None = None, draft_ids: Sequence[int] = ()
) -> Tensor:
    """Apply bias and penalties to the rows of one sequence; the argmax of a row is its greedy token.

    Shapes: logits [R, V] with R = K + 1 and K = len(draft_ids); returns [R, V], the input itself if there
    is nothing to apply.
    """
    if not params.logit_bias and not params.has_penalties:
        return logits
    shaped = logits.float().clone() if logits.dtype != torch.float64 else logits.clone()
    if params.logit_bias:
        bias_ids = torch.tensor(list(params.logit_bias), device=logits.device)
        shaped[:, bias_ids] += torch.tensor(list(params.logit_bias.values()), dtype=shaped.dtype, device=logits.device)
    if params.has_penalties:
        assert counts is not None, "penalties need the counts of the sequence"
        _apply_penalties(shaped, params, counts, draft_ids)
    return shaped


def _apply_penalties(logits: Tensor, params: SamplingParams, counts: TokenCounts, draft_ids: Sequence[int]) -> None:
    in_answer = counts.in_answer.clone()
    for row, draft_id in enumerate((*draft_ids, None)):
        scores = logits[row]
        seen = counts.in_prompt | (in_answer > 0)
        if params.repetition_penalty != 1.0:
            penalised = torch.where(scores > 0, scores / params.repetition_penalty, scores * params.repetition_penalty)
            scores.copy_(torch.where(seen, penalised, scores))
        scores -= params.frequency_penalty * in_answer
        scores -= params.presence_penalty * (in_answer > 0)
        if draft_id is not None:
            in_answer[draft_id] += 1


def shape_probs(logits: Tensor, params: SamplingParams) -> Tensor:
    """Turn (biased, penalised) logits into the distribution that is sampled from.

    Shapes: logits [R, V]; returns probabilities [R, V] in float32 (float64 for float64 logits). A greedy
    request gives one-hot rows.
    """
    scores = logits if logits.dtype == torch.float64 else logits.float()
    if params.is_greedy:
        return torch.zeros_like(scores).scatter_(-1, greedy_ids(scores)[..., None], 1.0)
    scores = scores / params.temperature
    vocab_size = scores.shape[-1]
    if params.min_p == 0 and params.top_p == 1 and not 0 < params.top_k < vocab_size:
        return torch.softmax(scores, dim=-1)
    if params.top_k > 0:
        return _truncate(scores, params, min(params.top_k, vocab_size))[0]
    if scores.device.type != "cpu":  # a look at the outcome would wait for all that was queued
        return _truncate(scores, params, vocab_size)[0]
    first, *others = (*(window for window in _WINDOWS if window < vocab_size), vocab_size)
    probs, is_complete = _truncate(scores, params, first)
    for num_candidates in others:
        if bool(is_complete.all()):
            break
        rows = (~is_complete).nonzero()[:, 0]
        probs[rows], is_complete[rows] = _truncate(scores[rows], params, num_candidates)
    return probs


def _truncate(scores: Tensor, params: SamplingParams, num_candidates: int) -> tuple[Tensor, Tensor]:
    """Apply min-p, top-k and top-p to the `num_candidates` most likely tokens; no other token keeps any mass.

    Shapes: scores [R, V]; returns probabilities [R, V], and bool [R]: whether more candidates would change nothing
    (for top-k, which sets their number, this says nothing).
    """
    values, ids = scores.topk(num_candidates, dim=-1)
    probs = torch.exp(values - scores.logsumexp(-1, keepdim=True))
    keep = probs >= params.min_p * probs[:, :1]
    is_complete = ~keep[:, -1]
    if params.top_p < 1:
        # The nucleus is measured on what min-p and top-k left; without both that is everything.
        left = probs * keep
        is_all = params.min_p == 0 and params.top_k == 0
        total = 1.0 if is_all else left.sum(-1, keepdim=True)
        keep &= (left.cumsum(-1) - left) < params.top_p * total
        if is_all:
            is_complete = ~keep[:, -1]
    kept = probs * keep
    kept /= kept.sum(-1, keepdim=True)
    return torch.zeros_like(scores).scatter_(-1, ids, kept), is_complete


def greedy_ids(logits: Tensor) -> Tensor:
    """Return the most likely token of each row, the first of equals. Shapes: logits [..., V]; returns [...]."""
    # Not argmax: on CPUs it takes several times as long for the same answer.
    return logits.max(-1).indices


def sample_rows(probs: Tensor, uniforms: Tensor) -> Tensor:
    """Draw one token per row by inverting the cumulative distribution.

    Shapes: probs [R, V] (need not be normalised), uniforms [R] in [0, 1); returns token ids [R].
    A token of probability 0 is never drawn.
    """
    # First which span, then which token of it: running sums over a whole vocabulary take longer than its softmax.
    num_rows, vocab_size = probs.shape
    num_spans = -(-vocab_size // _SPAN)
    missing = num_spans * _SPAN - vocab_size
    spans = (nn.functional.pad(probs, (0, missing)) if missing else probs).reshape(num_rows, num_spans, _SPAN)
    before = spans.sum(-1).double().cumsum(-1)
    point = uniforms.to(before)[:, None] * before[:, -1:]
    span = _first_above(before, point)
    within = spans.take_along_dim(span[:, :, None], 1)[:, 0].double().cumsum(-1)
    left = point - nn.functional.pad(before, (1, 0)).gather(1, span)
    return (span * _SPAN + _first_above(within, left))[:, 0]


def _first_above(mass: Tensor, point: Tensor) -> Tensor:
    """Return where the running sums [R, N] first exceed the point [R, 1] of their row, as [R, 1]."""
    drawn = torch.searchsorted(mass, point, right=True)
    # Rounding can put a point on the total or past it: then the last element with any mass is meant.
    last = torch.searchsorted(mass, mass[:, -1:].contiguous())
    return torch.minimum(drawn, last)
