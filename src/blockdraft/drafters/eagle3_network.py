"""The network of EAGLE-3: one decoder layer that reads a token's embedding beside a hidden state.

Row i of a sequence is the pair (hidden state of token i, embedding of token i + 1), stands at position i, and
predicts token i + 2. For tokens the target has run, the hidden state is its tapped layers fused by `fc`; past
them it is the network's own output of the row before. Later layers, if a head has any, are ordinary ones.

Shape legend: T packed rows, S feature rows, M tapped target layers, D width, F MLP width, N query heads,
G key/value heads, H head size.
Ref: arXiv:2503.01840.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from blockdraft.cache import KVCache, KVLayout
from blockdraft.drafters.eagle3_config import Eagle3Config
from blockdraft.models.layers.attention import attend, causal_mask
from blockdraft.models.layers.rope import Rope, apply_rope

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_pytorch_tanh": lambda gate: F.gelu(gate, approximate="tanh"),
}


@dataclass(frozen=True, kw_only=True)
class _Layer:
    """Weights of one layer. Shapes: qkv [(N+2G)*H, 2D or D], qk_norm [N+G, H], o [D, N*H], gate_up [2F, D]."""

    input_norm: Tensor
    hidden_norm: Tensor | None
    """Only in the first layer, which reads two vectors."""
    qkv: Tensor
    qk_norm: Tensor | None
    o: Tensor
    post_norm: Tensor
    gate_up: Tensor
    down: Tensor


@dataclass(frozen=True, kw_only=True)
class _Rows:
    """The rows of one pass: whose they are, where they stand, how they are rotated."""

    caches: Sequence[KVCache]
    spans: Sequence[range]
    rotation: tuple[Tensor, Tensor]


class Eagle3Network:
    """The network, for packed rows of several sequences."""

    def __init__(self, config: Eagle3Config, tensors: dict[str, Tensor]) -> None:
        self.config = config
        self.fc, self.norm = tensors["fc.weight"], tensors["norm.weight"]
        self.dtype, self.device = self.fc.dtype, self.fc.device
        self.rope = Rope(config.rope, self.dtype, self.device)
        self.feature_norm = self.fc.new_empty(0)
        if config.feature_norm == "joint":
            self.feature_norm = tensors["input_norm.weight"]
        elif config.feature_norm == "each":
            self.feature_norm = torch.stack([tensors[f"fc_norm.{tap}.weight"] for tap in range(config.num_taps)])
        self.layers = [self._layer(index, tensors) for index in range(len(config.windows))]
        self._activate = ACTIVATIONS[config.activation]

    def _layer(self, index: int, tensors: dict[str, Tensor]) -> _Layer:
        config = self.config
        prefix = f"layers.{index}."
        own = {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
        qk_norm = None
        if config.has_qk_norm:
            q_norm = own["self_attn.q_norm.weight"].expand(config.num_heads, -1)
            qk_norm = torch.cat([q_norm, own["self_attn.k_norm.weight"].expand(config.num_kv_heads, -1)])
        return _Layer(
            input_norm=own["input_layernorm.weight"],
            hidden_norm=own.get("hidden_norm.weight"),
            qkv=torch.cat([own[f"self_attn.{part}_proj.weight"] for part in "qkv"]),
            qk_norm=qk_norm,
            o=own["self_attn.o_proj.weight"],
            post_norm=own["post_attention_layernorm.weight"],
            gate_up=torch.cat([own["mlp.gate_proj.weight"], own["mlp.up_proj.weight"]]),
            down=own["mlp.down_proj.weight"],
        )

    def new_cache(self, capacity: int = 0) -> KVCache:
        """Return an empty state for one sequence."""
        layout = KVLayout(
            num_layers=len(self.layers),
            num_kv_heads=self.config.num_kv_heads,
            head_dim=self.config.head_dim,
            dtype=self.dtype,
            device=self.device,
        )
        return KVCache(layout, capacity)

    def fuse(self, features: Tensor) -> Tensor:
        """Turn the target's tapped states into hidden states. Shapes: features [S, M*D]; returns [S, D]."""
        features = features.to(self.dtype)
        if self.config.feature_norm == "joint":
            features = self._rms_norm(features, self.feature_norm)
        elif self.config.feature_norm == "each":
            D = self.config.hidden_size
            normed = F.rms_norm(features.view(len(features), -1, D), (D,), None, self.config.rms_norm_eps)
            features = (normed * self.feature_norm).view(len(features), -1)
        return F.linear(features, self.fc)

    def run(self, hidden: Tensor, embeddings: Tensor, caches: Sequence[KVCache], counts: Sequence[int]) -> Tensor:
        """Append rows to each sequence and return what the layers make of them.

        Shapes: hidden and embeddings [T, D] with T the sum of counts; returns [T, D], before the final norm.
        """
        for cache, count in zip(caches, counts, strict=True):
            cache.reserve(count)
        spans = [range(cache.length, cache.length + count) for cache, count in zip(caches, counts, strict=True)]
        positions = torch.tensor([position for span in spans for position in span], device=self.device)
        rotation = self.rope.rows(positions, max(span.stop for span in spans) - 1)
        rows = _Rows(caches=caches, spans=spans, rotation=rotation)
        masks = {
            window: [causal_mask(span.start, len(span), self.device, window) for span in spans]
            for window in set(self.config.windows)
        }
        for index, (layer, window) in enumerate(zip(self.layers, self.config.windows, strict=True)):
            inputs = self._rms_norm(embeddings.to(self.dtype) if index == 0 else hidden, layer.input_norm)
            if layer.hidden_norm is not None:
                normed = self._rms_norm(hidden, layer.hidden_norm)
                inputs = torch.cat((inputs, normed), dim=-1)
                hidden = normed if self.config.norm_before_residual else hidden
            hidden = hidden + F.linear(self._attend(index, inputs, rows, masks[window]), layer.o)
            gate, up = F.linear(self._rms_norm(hidden, layer.post_norm), layer.gate_up).chunk(2, dim=-1)
            hidden = hidden + F.linear(self._activate(gate) * up, layer.down)
        for cache, count in zip(caches, counts, strict=True):
            cache.advance(count)
        return hidden

    def normed(self, hidden: Tensor) -> Tensor:
        """Apply the final norm, which the head expects. Shapes: hidden [T, D]; returns [T, D]."""
        return self._rms_norm(hidden, self.norm)

    def _attend(self, index: int, inputs: Tensor, rows: _Rows, masks: Sequence[Tensor]) -> Tensor:
        config, layer = self.config, self.layers[index]
        N, G, H = config.num_heads, config.num_kv_heads, config.head_dim
        qkv = F.linear(inputs, layer.qkv).view(-1, N + 2 * G, H)
        heads, values = qkv[:, : N + G], qkv[:, N + G :]
        if layer.qk_norm is not None:
            heads = F.rms_norm(heads, (H,), None, config.rms_norm_eps) * layer.qk_norm
        heads = apply_rope(heads, *rows.rotation)
        queries, keys = heads[:, :N], heads[:, N:]
        outputs = []
        start = 0
        for cache, span, mask in zip(rows.caches, rows.spans, masks, strict=True):
            part = slice(start, start + len(span))
            cache.write(index, keys[part], values[part])
            outputs.append(attend(queries[part], cache, index, mask))
            start += len(span)
        return torch.cat(outputs) if len(outputs) > 1 else outputs[0]

    def _rms_norm(self, hidden: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(hidden, weight.shape, weight, self.config.rms_norm_eps)
