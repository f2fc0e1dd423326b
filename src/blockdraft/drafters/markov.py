"""DSpark's two small heads: a logit bias from the previous token, and the chance that a slot is kept.

Both see the token drafted just before the slot, never the slot's own token. The three Markov heads share a
pair of low-rank tables (`W1` by target id, `W2` over the draft vocabulary) and differ in what lies between.

Shape legend: A slots (one per sequence), R rank, D width, U draft vocabulary.
Ref: arXiv:2607.05147, section 3.1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor


class MarkovHead:
    """The plain head: bias = W2 . W1[previous token]."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self.w1 = tensors["markov_head.markov_w1.weight"]
        self.w2 = tensors["markov_head.markov_w2.weight"]

    def initial_state(self, num_sequences: int) -> Tensor:
        """Return what the head remembers before the first slot. Shapes: [A, R]."""
        return self.w1.new_zeros(num_sequences, self.w1.shape[1])

    def embed(self, previous_ids: Tensor) -> Tensor:
        """Look up the previous tokens. Shapes: target ids [A]; returns [A, R]."""
        return F.embedding(previous_ids, self.w1)

    def bias(self, embedding: Tensor, hidden: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Return the bias of one slot and the state after it.

        Shapes: embedding and state [A, R], hidden [A, D]; returns [A, U] and [A, R].
        """
        latent, state = self._latent(embedding, hidden, state)
        return F.linear(latent, self.w2), state

    def _latent(self, embedding: Tensor, hidden: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        return embedding, state


class GatedMarkovHead(MarkovHead):
    """The embedding passes a gate computed from it and the slot's hidden state."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        super().__init__(tensors)
        self.weight, self.offset = tensors["markov_head.gate_proj.weight"], tensors["markov_head.gate_proj.bias"]

    def _latent(self, embedding: Tensor, hidden: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        gate = torch.sigmoid(F.linear(torch.cat((hidden, embedding), dim=-1), self.weight, self.offset))
        return gate * embedding, state


class RecurrentMarkovHead(MarkovHead):
    """A gated recurrent state carries the tokens before the previous one."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        super().__init__(tensors)
        self.weight, self.offset = tensors["markov_head.joint_proj.weight"], tensors["markov_head.joint_proj.bias"]

    def _latent(self, embedding: Tensor, hidden: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        joint = F.linear(torch.cat((state, embedding, hidden), dim=-1), self.weight, self.offset)
        gate, candidate, output = joint.chunk(3, dim=-1)
        gate = torch.sigmoid(gate)
        return torch.tanh(output), gate * state + (1 - gate) * torch.tanh(candidate)


MARKOV_HEADS: dict[str, type[MarkovHead]] = {
    "vanilla": MarkovHead,
    "gated": GatedMarkovHead,
    "rnn": RecurrentMarkovHead,
}


class ConfidenceHead:
    """Chance that a slot's token is kept, given that those before it are: a logistic unit.

    Its input is the slot's hidden state, followed by the previous token's Markov embedding if it is wide
    enough for both. The two parts are kept apart, as the first is the same for every walk through the block.
    A calibrated head has a temperature for each slot, by which the logit is divided.
    """

    def __init__(self, tensors: Mapping[str, Tensor], hidden_size: int, temperatures: Sequence[float] = ()) -> None:
        weight = tensors["confidence_head.proj.weight"][0]
        self.hidden_weight, self.markov_weight = weight[:hidden_size], weight[hidden_size:]
        self.offset = tensors["confidence_head.proj.bias"]
        self.temperatures = torch.tensor(temperatures, device=weight.device) if temperatures else None

    def from_hidden(self, hidden: Tensor) -> Tensor:
        """Return the part of the logit that no token changes. Shapes: [..., D] to [...]."""
        return hidden.float() @ self.hidden_weight.float() + self.offset.float()

    def probability(self, partial: Tensor, embedding: Tensor | None, slot: int | Tensor) -> Tensor:
        """Return the confidence of `slot`, one or [A]. Shapes: partial [A], embedding [A, R] or None; returns [A]."""
        if embedding is not None and len(self.markov_weight):
            partial = partial + embedding.float() @ self.markov_weight.float()
        return torch.sigmoid(partial if self.temperatures is None else partial / self.temperatures[slot])
