"""Plain decoding of hundreds of sequences at once, for making data: what counts is tokens per second in all.

The engine attends sequence by sequence. Here sequences of about the same length form a group whose keys and
values lie in one padded tensor, so that one operation attends for all of them; the linear layers run over all
groups together. A finished sequence gives up its place to the last one of its group, and what is left of two
small groups becomes one, so no place is computed for nothing. The tokens are the engine's own: equal in
float32, and in bfloat16 up to near-ties, since the shape of a product can change its last bits there.

Shape legend: B sequences of all groups, n of one group, L layers, S stored rows, N query heads, G key/value
heads, H head size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from blockdraft.models.base import Segment
from blockdraft.models.decoder import Decoder
from blockdraft.train.generate.jobs import Completion, Job, Running, choose, refuse_history

GROUP_SIZE = 32
"""Sequences that are prefilled together and attended over in one operation."""

_GROWTH = 128
"""Rows that a group's store grows by."""
_PREFILL_ROWS = 4096


class BatchDecoder:
    """Continues many texts together.

    Raises:
        UnsupportedModelError: a job asks for a way of sampling that depends on earlier tokens.
    """

    def __init__(self, target: Decoder, group_size: int = GROUP_SIZE) -> None:
        self.target = target
        self.group_size = group_size
        self._groups: list[_Group] = []

    @property
    def num_running(self) -> int:
        """How many sequences are not finished."""
        return sum(len(group.sequences) for group in self._groups)

    @torch.inference_mode()
    def add(self, jobs: Sequence[Job]) -> list[Completion]:
        """Run the prompts, best of about equal length, and emit their first tokens; return what that finished."""
        refuse_history(jobs)
        completions: list[Completion] = []
        for start in range(0, len(jobs), self.group_size):
            group = _Group(self.target, jobs[start : start + self.group_size])
            completions += self._commit([group], _prefill(self.target, group))
            self._groups.append(group)
        self._tidy()
        return completions

    @torch.inference_mode()
    def step(self) -> list[Completion]:
        """Add one token to every sequence; return those that are finished by it."""
        sequences = [sequence for group in self._groups for sequence in group.sequences]
        if not sequences:
            return []
        device = self.target.info.device
        positions = [sequence.num_stored for sequence in sequences]
        for group in self._groups:
            group.prepare()
        logits = self.target.run_rows(
            torch.tensor([sequence.last_id for sequence in sequences], device=device),
            torch.tensor(positions, device=device),
            max(positions),
            self._attend,
        )
        completions = self._commit(self._groups, logits)
        self._tidy()
        return completions

    def _attend(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        sizes = [len(group.sequences) for group in self._groups]
        parts = zip(self._groups, *(torch.split(heads, sizes) for heads in (queries, keys, values)), strict=True)
        return torch.cat([group.attend(layer, q, k, v) for group, q, k, v in parts])

    def _commit(self, groups: Sequence[_Group], logits: Tensor) -> list[Completion]:
        """Choose a token for each row and drop the sequences that it finishes. Shapes: logits [B, V]."""
        sequences = [sequence for group in groups for sequence in group.sequences]
        chosen = iter(choose(sequences, logits))
        completions: list[Completion] = []
        for group in groups:
            ended = [sequence.push(next(chosen)) for sequence in group.sequences]
            for place in reversed([place for place, completion in enumerate(ended) if completion]):
                group.drop(place)
            completions += [completion for completion in ended if completion]
        return completions

    def _tidy(self) -> None:
        """Drop empty groups, and join small ones."""
        self._groups = [group for group in self._groups if group.sequences]
        small = [group for group in self._groups if 2 * len(group.sequences) <= self.group_size]
        small.sort(key=lambda group: max(sequence.num_stored for sequence in group.sequences))
        for shorter, longer in zip(small[::2], small[1::2], strict=False):
            longer.take_over(shorter)
            self._groups.remove(shorter)


class _Group:
    """Sequences whose keys and values lie side by side. Shapes: rows [L, 2, n, S, G, H], keys first."""

    def __init__(self, target: Decoder, jobs: Sequence[Job]) -> None:
        self.sequences = [Running.of(job) for job in jobs]
        self._windows = target.config.windows
        self._num_heads = target.config.num_heads
        self._scale = target.config.head_dim**-0.5
        self._biases: dict[int | None, Tensor] = {}
        self._places = torch.empty(0)
        self._num_read = 0
        config, info = target.config, target.info
        capacity = max(len(job.prompt_ids) for job in jobs) + _GROWTH
        shape = (config.num_layers, 2, len(jobs), capacity, config.num_kv_heads, config.head_dim)
        # Zeros, not empty: masked rows take part in the arithmetic, and 0 * NaN is NaN.
        self.rows = torch.zeros(shape, dtype=info.dtype, device=info.device)

    def prepare(self) -> None:
        """Make room for a row of each sequence, and masks for what they see."""
        lengths = torch.tensor([sequence.num_stored for sequence in self.sequences], device=self.rows.device)
        needed = int(lengths.max()) + 1
        capacity = self.rows.shape[3]
        if needed > capacity:
            self.rows = F.pad(self.rows, (0, 0, 0, 0, 0, _GROWTH))
            capacity += _GROWTH
        self._places = torch.arange(len(lengths), device=lengths.device) * capacity + lengths
        self._num_read = min(-(-needed // 16) * 16, capacity)
        stored = torch.arange(self._num_read, device=lengths.device)
        for window in set(self._windows):
            hidden = stored > lengths[:, None]
            if window is not None:
                hidden |= stored <= lengths[:, None] - window
            bias = torch.zeros(hidden.shape, dtype=self.rows.dtype, device=lengths.device)
            self._biases[window] = bias.masked_fill_(hidden, float("-inf"))[:, None, None]

    def attend(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Store the rows of a layer and attend. Shapes: queries [n, N, H], keys and values [n, G, H]."""
        n, num_heads, head_dim = queries.shape
        stored = self.rows[layer, :, :n]
        for part, new in enumerate((keys, values)):
            stored[part].view(-1, *new.shape[1:]).index_copy_(0, self._places, new)
        read_keys, read_values = stored[:, :, : self._num_read].transpose(2, 3)
        num_kv_heads = keys.shape[1]
        # The query heads that share a key/value head are rows of one product.
        folded = queries.reshape(n, num_kv_heads, num_heads // num_kv_heads, head_dim)
        bias = self._biases[self._windows[layer]].expand(-1, num_kv_heads, num_heads // num_kv_heads, -1)
        attended = F.scaled_dot_product_attention(folded, read_keys, read_values, attn_mask=bias, scale=self._scale)
        return attended.reshape(n, num_heads * head_dim)

    def drop(self, place: int) -> None:
        """Forget a sequence; the last one takes its place."""
        last = len(self.sequences) - 1
        if place != last:
            num_stored = self.sequences[last].num_stored
            self.rows[:, :, place, :num_stored] = self.rows[:, :, last, :num_stored]
            self.sequences[place] = self.sequences[last]
        self.sequences.pop()

    def take_over(self, other: _Group) -> None:
        """Add the sequences of another group."""
        n, m = len(self.sequences), len(other.sequences)
        capacity = max(self.rows.shape[3], other.rows.shape[3])
        grown = self.rows.new_zeros((*self.rows.shape[:2], n + m, capacity, *self.rows.shape[4:]))
        grown[:, :, :n, : self.rows.shape[3]] = self.rows[:, :, :n]
        grown[:, :, n:, : other.rows.shape[3]] = other.rows[:, :, :m]
        self.rows = grown
        self.sequences += other.sequences


def _prefill(target: Decoder, group: _Group) -> Tensor:
    """Run the prompts of a group and store their keys and values. Shapes: returns logits [n, V]."""
    logits: list[Tensor] = []
    for places in _passes([len(sequence.job.prompt_ids) for sequence in group.sequences]):
        prompts = [group.sequences[place].job.prompt_ids for place in places]
        caches = [target.new_cache(len(prompt)) for prompt in prompts]
        segments = [
            Segment(token_ids=prompt, cache=cache, num_logits=1) for prompt, cache in zip(prompts, caches, strict=True)
        ]
        logits.append(target.forward(segments).logits)
        for place, cache in zip(places, caches, strict=True):
            for layer in range(target.info.num_layers):
                for part, stored in enumerate(cache.read(layer, cache.length)):
                    group.rows[layer, part, place, : cache.length] = stored.transpose(0, 1)
    return torch.cat(logits)


def _passes(lengths: Sequence[int]) -> Iterator[range]:
    """Cut sequences into runs of at most `_PREFILL_ROWS` rows, or one sequence."""
    start = num_rows = 0
    for place, length in enumerate(lengths):
        if place > start and num_rows + length > _PREFILL_ROWS:
            yield range(start, place)
            start, num_rows = place, 0
        num_rows += length
    yield range(start, len(lengths))
