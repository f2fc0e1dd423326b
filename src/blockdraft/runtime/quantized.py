"""Weights in groups of 32 along a row, and the tiles in which the native kernels read them.

Three ways of storing a group, each with a scale `d` in half precision:

- `NIBBLES_WITH_MIN`: w = d * q + m, q in 0..15 (GGUF's Q4_1, and Q4_K with its two levels of scales multiplied out);
- `NIBBLES`: w = d * (q - 8), q in 0..15 (Q4_0);
- `BYTES`: w = d * (q - 128), q in 0..255 (Q8_0, and whatever else, rounded to eight bits).

Q4_0, Q4_1 and Q8_0 lose nothing.

Shape legend: R rows (outputs), C columns (inputs), G groups of a row, 32 G = C.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

GROUP = 32
TILE_ROWS = 16
UNIT_ROWS = 32
"""Matrices have a multiple of this many rows; `pad_rows` makes it so."""


class Format(IntEnum):
    """How a group is stored; the numbers are those of `native/core.h`."""

    NIBBLES_WITH_MIN = 0
    NIBBLES = 1
    BYTES = 2


_OFFSETS = {Format.NIBBLES_WITH_MIN: 0, Format.NIBBLES: 8, Format.BYTES: 128}


@dataclass(frozen=True, kw_only=True)
class Quantized:
    """A matrix in groups. Shapes: values uint8 [R, C]; scales and mins float16 [R, G], mins for one format only."""

    format: Format
    values: NDArray[np.uint8]
    scales: NDArray[np.float16]
    mins: NDArray[np.float16] | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return self.values.shape[0], self.values.shape[1]

    def to_floats(self) -> NDArray[np.float32]:
        """Return the weights that this stands for, [R, C]."""
        groups = self.values.reshape(len(self.values), -1, GROUP).astype(np.float32) - _OFFSETS[self.format]
        floats = groups * self.scales.astype(np.float32)[..., None]
        if self.mins is not None:
            floats += self.mins.astype(np.float32)[..., None]
        return floats.reshape(self.values.shape)

    def take_rows(self, order: NDArray[np.intp]) -> Quantized:
        """Return the rows with these numbers."""
        mins = None if self.mins is None else self.mins[order]
        return Quantized(format=self.format, values=self.values[order], scales=self.scales[order], mins=mins)

    def as_bytes(self) -> Quantized:
        """Return the same weights, rounded to eight bits unless they are."""
        return self if self.format == Format.BYTES else quantize(self.to_floats())


def stack(parts: Sequence[Quantized]) -> Quantized:
    """Return the rows of all parts; parts of different formats are brought to eight bits."""
    if len({part.format for part in parts}) > 1:
        parts = [part.as_bytes() for part in parts]
    mins = [part.mins for part in parts if part.mins is not None]
    return Quantized(
        format=parts[0].format,
        values=np.concatenate([part.values for part in parts]),
        scales=np.concatenate([part.scales for part in parts]),
        mins=np.concatenate(mins) if mins else None,
    )


def quantize(weights: NDArray[np.float32]) -> Quantized:
    """Round to eight bits. Shapes: weights [R, C] with C a multiple of 32."""
    groups = weights.reshape(len(weights), -1, GROUP)
    scales = (np.abs(groups).max(axis=-1) / 127).astype(np.float16)
    steps = scales.astype(np.float32)[..., None]
    # A group smaller than half precision can tell from nothing is nothing.
    rounded = np.rint(np.divide(groups, steps, out=np.zeros_like(groups), where=steps > 0))
    values = (np.clip(rounded, -128, 127) + 128).astype(np.uint8)
    return Quantized(format=Format.BYTES, values=values.reshape(weights.shape), scales=scales)


_SHRINKAGES = (1.0, 0.95, 0.9, 0.85)
"""A group's range is tried as it is and a little narrower: outliers cost less than coarse steps for all the others."""


def quantize_to_nibbles(weights: NDArray[np.float32]) -> Quantized:
    """Round to four bits with a minimum, each group to its least squared error.

    Shapes: weights [R, C] with C a multiple of 32.
    """
    groups = weights.reshape(len(weights), -1, GROUP).astype(np.float32)
    low, high = groups.min(axis=-1), groups.max(axis=-1)
    centre, mean = (low + high) / 2, groups.mean(axis=-1)
    least = np.full(low.shape, np.inf, np.float32)
    values = np.zeros(groups.shape, np.uint8)
    scales, mins = np.zeros_like(low), np.zeros_like(low)
    for shrinkage in _SHRINKAGES:
        start, step = centre + (low - centre) * shrinkage, np.maximum((high - low) * shrinkage / 15, 1e-8)
        steps = np.clip(np.rint((groups - start[..., None]) / step[..., None]), 0, 15)
        # The best line through the rounded values, in the precision in which it is kept.
        mean_step = steps.mean(axis=-1)
        spread = ((steps - mean_step[..., None]) ** 2).sum(axis=-1)
        slope = ((steps - mean_step[..., None]) * groups).sum(axis=-1) / np.maximum(spread, 1e-8)
        slope = slope.astype(np.float16).astype(np.float32)
        offset = (mean - slope * mean_step).astype(np.float16).astype(np.float32)
        error = ((steps * slope[..., None] + offset[..., None] - groups) ** 2).sum(axis=-1)
        better = error < least
        least = np.where(better, error, least)
        scales, mins = np.where(better, slope, scales), np.where(better, offset, mins)
        values = np.where(better[..., None], steps, values).astype(np.uint8)
    return Quantized(
        format=Format.NIBBLES_WITH_MIN,
        values=values.reshape(weights.shape),
        scales=scales.astype(np.float16),
        mins=mins.astype(np.float16),
    )


def _from_q4_0(blocks: NDArray[np.uint8]) -> Quantized:
    scales, values = blocks[..., :2].copy().view(np.float16)[..., 0], _nibbles(blocks[..., 2:])
    return Quantized(format=Format.NIBBLES, values=values, scales=scales)


def _from_q4_1(blocks: NDArray[np.uint8]) -> Quantized:
    numbers = blocks[..., :4].copy().view(np.float16)
    values = _nibbles(blocks[..., 4:])
    return Quantized(
        format=Format.NIBBLES_WITH_MIN, values=values, scales=numbers[..., 0].copy(), mins=numbers[..., 1].copy()
    )


def _from_q8_0(blocks: NDArray[np.uint8]) -> Quantized:
    scales = blocks[..., :2].copy().view(np.float16)[..., 0]
    values = (blocks[..., 2:].view(np.int8).astype(np.int16) + 128).astype(np.uint8)
    return Quantized(format=Format.BYTES, values=values.reshape(len(blocks), -1), scales=scales)


def _from_q4_k(blocks: NDArray[np.uint8]) -> Quantized:
    """Read blocks of 256: d, dmin, eight six-bit scales and mins, nibbles in four runs of two groups."""
    num_rows, num_blocks = blocks.shape[:2]
    d, dmin = (blocks[..., i : i + 2].copy().view(np.float16).astype(np.float32) for i in (0, 2))
    packed = blocks[..., 4:16]
    low, high = packed[..., :8] & 63, packed[..., 8:]
    upper = packed[..., :8] >> 6
    scales = np.concatenate((low[..., :4], (high & 15) | upper[..., :4] << 4), axis=-1)
    mins = np.concatenate((low[..., 4:], high >> 4 | upper[..., 4:] << 4), axis=-1)
    runs = blocks[..., 16:].reshape(num_rows, num_blocks, 4, 1, GROUP)
    values = np.concatenate((runs & 15, runs >> 4), axis=3)
    return Quantized(
        format=Format.NIBBLES_WITH_MIN,
        values=values.reshape(num_rows, -1),
        scales=(d * scales).reshape(num_rows, -1).astype(np.float16),
        mins=(-dmin * mins).reshape(num_rows, -1).astype(np.float16),
    )


_DECODERS: Mapping[str, tuple[int, Callable[[NDArray[np.uint8]], Quantized]]] = {
    "Q4_0": (18, _from_q4_0),
    "Q4_1": (20, _from_q4_1),
    "Q8_0": (34, _from_q8_0),
    "Q4_K": (144, _from_q4_k),
}
"""For types that are kept as they are stored: bytes of a block, and what reads [R, blocks, bytes]."""

KEPT_TYPES = tuple(_DECODERS)
"""GGUF types whose weights are kept; all others are rounded to eight bits."""


def from_gguf(type_name: str, raw: NDArray[np.uint8]) -> Quantized:
    """Read the rows of a tensor of one of `KEPT_TYPES`. Shapes: raw [R, bytes of a row]."""
    block_bytes, decode = _DECODERS[type_name]
    return decode(raw.reshape(len(raw), -1, block_bytes))


def _nibbles(packed: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Shapes: [R, G, 16], low halves before high ones; returns [R, 32 G]."""
    return np.concatenate((packed & 15, packed >> 4), axis=-1).reshape(len(packed), -1)


def pad_rows(matrix: Quantized) -> Quantized:
    """Return the matrix with rows of zero behind its own, to a multiple of `UNIT_ROWS`."""
    missing = -len(matrix.values) % UNIT_ROWS
    if not missing:
        return matrix

    def padded(array: NDArray) -> NDArray:  # type: ignore[type-arg]
        return np.concatenate((array, np.zeros((missing, array.shape[1]), array.dtype)))

    return Quantized(
        format=matrix.format,
        values=padded(matrix.values),
        scales=padded(matrix.scales),
        mins=None if matrix.mins is None else padded(matrix.mins),
    )


def pack(matrix: Quantized) -> NDArray[np.uint8]:
    """Lay out the units that the kernels read from end to end: 32 rows side by side, group after group.

    A group of a unit is two tiles of sixteen rows. A tile is its values, four columns of each row in turns (nibbles: a
    byte holds a column and the one sixteen further on), then sixteen scales, then, for one format, sixteen mins.

    Shapes: R a multiple of 32; returns bytes [R / 32, G, 2, bytes of a tile].
    """
    num_rows, num_cols = matrix.shape
    units, groups = num_rows // UNIT_ROWS, num_cols // GROUP
    values: NDArray[np.uint8] = matrix.values.reshape(units, 2, TILE_ROWS, groups, GROUP)
    if matrix.format != Format.BYTES:
        values = np.bitwise_or(values[..., : GROUP // 2], values[..., GROUP // 2 :] << 4)
    values = values.reshape(units, 2, TILE_ROWS, groups, -1, 4).transpose(0, 3, 1, 4, 2, 5)
    parts = [values.reshape(units, groups, 2, -1)]
    for numbers in (matrix.scales, matrix.mins):
        if numbers is not None:
            turned = numbers.reshape(units, 2, TILE_ROWS, groups).transpose(0, 3, 1, 2)
            parts.append(np.ascontiguousarray(turned).view(np.uint8))
    return np.concatenate(parts, axis=-1)


def unpack(packed: NDArray[np.uint8], kind: Format) -> Quantized:
    """Return the matrix that `pack` made this of."""
    units, groups = packed.shape[:2]
    num_values = 512 if kind == Format.BYTES else 256
    values = packed[..., :num_values].reshape(units, groups, 2, -1, TILE_ROWS, 4).transpose(0, 2, 4, 1, 3, 5)
    values = values.reshape(units * UNIT_ROWS, groups, -1)
    if kind != Format.BYTES:
        values = np.concatenate((values & 15, values >> 4), axis=-1)
    numbers = np.ascontiguousarray(packed[..., num_values:]).view(np.float16)
    numbers = numbers.reshape(units, groups, 2, -1, TILE_ROWS).transpose(3, 0, 2, 4, 1)
    numbers = numbers.reshape(len(numbers), -1, groups)
    return Quantized(
        format=kind,
        values=values.reshape(len(values), -1),
        scales=numbers[0],
        mins=numbers[1] if kind == Format.NIBBLES_WITH_MIN else None,
    )
