"""Rotary position embedding, half-split (NeoX) layout, with the dialects that checkpoints use.

Interleaved checkpoints (GGUF `llama`) are permuted to this layout when they are loaded, so there is one
kernel. Dialects: default, linear, llama3, yarn; partial rotation through `rotary_dim`.

Shape legend: T rows, N heads, H head size.
Ref: arXiv:2104.09864 (RoPE); arXiv:2309.00071 (YaRN).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from blockdraft.models.config import RopeConfig

__all__ = ["Rope", "RopeConfig", "apply_rope", "rope_frequencies"]


def rope_frequencies(config: RopeConfig) -> tuple[Tensor, float]:
    """Return inverse frequencies [rotary_dim / 2] in float32 and the factor on cos and sin."""
    dim = config.rotary_dim
    inverse = 1.0 / config.theta ** (torch.arange(0, dim, 2, dtype=torch.float32) / dim)
    if config.freq_divisors is not None:
        inverse = inverse / torch.tensor(config.freq_divisors, dtype=torch.float32)
    if config.rope_type == "linear":
        return inverse / config.factor, 1.0
    if config.rope_type == "llama3":
        return _llama3(inverse, config), 1.0
    if config.rope_type == "yarn":
        return _yarn(inverse, config)
    return inverse, 1.0


def _llama3(inverse: Tensor, config: RopeConfig) -> Tensor:
    wavelength = 2 * math.pi / inverse
    low, high = config.low_freq_factor, config.high_freq_factor
    # 0 where the wavelength is long (fully scaled), 1 where it is short (untouched), linear between.
    keep = ((config.original_context / wavelength - low) / (high - low)).clamp(0, 1)
    return (1 - keep) * inverse / config.factor + keep * inverse


def _yarn(inverse: Tensor, config: RopeConfig) -> tuple[Tensor, float]:
    dim, base = config.rotary_dim, config.theta

    def dimension_of(num_rotations: float) -> float:
        return dim * math.log(config.original_context / (num_rotations * 2 * math.pi)) / (2 * math.log(base))

    low, high = dimension_of(config.beta_fast), dimension_of(config.beta_slow)
    if config.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    ramp = ((torch.arange(dim // 2, dtype=torch.float32) - low) / max(high - low, 0.001)).clamp(0, 1)
    frequencies = inverse / config.factor * ramp + inverse * (1 - ramp)

    def magnitude(scale: float, mscale: float = 1.0) -> float:
        return 1.0 if scale <= 1 else 0.1 * mscale * math.log(scale) + 1.0

    factor = config.attention_factor
    if factor is None:
        if config.mscale and config.mscale_all_dim:
            factor = magnitude(config.factor, config.mscale) / magnitude(config.factor, config.mscale_all_dim)
        else:
            factor = magnitude(config.factor)
    return frequencies, factor


class Rope:
    """Tables of cos and sin that grow with the longest position seen; threads may share them."""

    def __init__(self, config: RopeConfig, dtype: torch.dtype, device: torch.device) -> None:
        self.config = config
        self._inverse, self._factor = rope_frequencies(config)
        self._inverse = self._inverse.to(device)
        self._dtype = dtype
        empty = torch.empty(0, config.rotary_dim, dtype=dtype, device=device)
        self._tables = empty, empty  # replaced together, so that no thread sees one of each

    def rows(self, positions: Tensor, max_position: int) -> tuple[Tensor, Tensor]:
        """Return cos and sin of `positions`, to be passed to `apply`.

        Shapes: positions [T], all <= max_position (an int, so that no device is asked); returns two [T, 1, rotary_dim].
        """
        cos, sin = self._tables
        if max_position >= len(cos):
            cos, sin = self._tables = self._compute(max(2 * max_position, 1024))
        return cos[positions][:, None], sin[positions][:, None]

    def _compute(self, num_positions: int) -> tuple[Tensor, Tensor]:
        angles = torch.arange(num_positions, dtype=torch.float32, device=self._inverse.device)[:, None] * self._inverse
        angles = torch.cat((angles, angles), dim=-1)
        return (angles.cos() * self._factor).to(self._dtype), (angles.sin() * self._factor).to(self._dtype)


def apply_rope(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the first rotary_dim channels of each head.

    Shapes: heads [T, N, H]; cos and sin [T, 1, rotary_dim]; returns [T, N, H].
    """
    rotary_dim = cos.shape[-1]
    if rotary_dim < heads.shape[-1]:
        return torch.cat((apply_rope(heads[..., :rotary_dim], cos, sin), heads[..., rotary_dim:]), dim=-1)
    first, second = heads.chunk(2, dim=-1)
    return heads * cos + torch.cat((-second, first), dim=-1) * sin
