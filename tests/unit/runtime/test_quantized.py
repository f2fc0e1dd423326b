"""Packed weights stand for the numbers that a file holds, and come back as they went in."""

import gguf
import numpy as np
import pytest
from random_weights import random_matrix

from blockdraft.runtime.quantized import (
    Format,
    from_gguf,
    pack,
    pad_rows,
    quantize,
    quantize_to_nibbles,
    stack,
    unpack,
)

RANDOM = np.random.default_rng(0)


def weights(num_rows: int = 48, num_cols: int = 512) -> np.ndarray:
    return RANDOM.standard_normal((num_rows, num_cols)).astype(np.float32)


@pytest.mark.parametrize("name", ["Q4_0", "Q4_1", "Q8_0"])
def test_simple_types_lose_nothing(name):
    kind = gguf.GGMLQuantizationType[name]
    raw = gguf.quants.quantize(weights(), kind)
    assert np.array_equal(from_gguf(name, raw).to_floats(), gguf.quants.dequantize(raw, kind))


def test_q4_k_keeps_its_two_levels_to_half_precision():
    """The package writes no Q4_K, so blocks are random bytes with sane scales."""
    raw = RANDOM.integers(0, 256, (16, 2 * 144)).astype(np.uint8)
    blocks = raw.reshape(16, 2, 144)
    blocks[..., :4] = RANDOM.random((16, 2, 2)).astype(np.float16).view(np.uint8)
    expected = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType.Q4_K)
    found = from_gguf("Q4_K", raw).to_floats()
    # Products of a scale and six bits, rounded to eleven bits each.
    np.testing.assert_allclose(found, expected, atol=np.abs(expected).max() * 2**-10)


def test_rounding_to_bytes_is_q8_0():
    floats = weights()
    raw = gguf.quants.quantize(floats, gguf.GGMLQuantizationType.Q8_0)
    theirs = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType.Q8_0)
    ours = quantize(floats).to_floats()
    assert np.abs(ours - floats).max() <= np.abs(theirs - floats).max() * 1.01
    # What was rounded before is not rounded again.
    assert np.array_equal(quantize(theirs).to_floats(), theirs)


def test_groups_of_zeros_and_of_tiny_numbers():
    floats = np.zeros((1, 64), np.float32)
    floats[0, 32:] = 1e-9
    assert np.array_equal(quantize(floats).to_floats(), np.zeros((1, 64), np.float32))


@pytest.mark.parametrize("kind", Format)
def test_tiles_hold_what_was_packed(kind):
    matrix = random_matrix(RANDOM, kind, 32, 96)
    found = unpack(pack(matrix), kind)
    assert np.array_equal(found.values, matrix.values)
    assert np.array_equal(found.scales, matrix.scales)
    assert matrix.mins is None or np.array_equal(found.mins, matrix.mins)


@pytest.mark.parametrize("kind", Format)
def test_padding_adds_rows_of_zero(kind):
    matrix = random_matrix(RANDOM, kind, 40, 96)
    padded = pad_rows(matrix).to_floats()
    assert padded.shape == (64, 96)
    assert np.array_equal(padded[:40], matrix.to_floats())
    assert not padded[40:].any()


def test_parts_of_one_format_are_stacked_as_they_are_and_others_as_bytes():
    nibbles, more = (random_matrix(RANDOM, Format.NIBBLES, 32, 96) for _ in range(2))
    others = random_matrix(RANDOM, Format.BYTES, 32, 96)
    same = stack([nibbles, more])
    assert same.format == Format.NIBBLES
    assert np.array_equal(same.to_floats(), np.concatenate((nibbles.to_floats(), more.to_floats())))
    mixed = stack([nibbles, others])
    assert mixed.format == Format.BYTES
    assert np.array_equal(mixed.to_floats()[32:], others.to_floats())
    np.testing.assert_allclose(mixed.to_floats()[:32], nibbles.to_floats(), atol=8 / 127)


def test_four_bits_come_as_close_as_they_can() -> None:
    """No further off than half a step of the group's range, and closer in the mean than plain rounding to it."""
    weights = np.random.default_rng(3).normal(size=(32, 256)).astype(np.float32)
    rounded = quantize_to_nibbles(weights)
    assert rounded.format == Format.NIBBLES_WITH_MIN
    groups = weights.reshape(32, 8, 32)
    low, step = groups.min(-1, keepdims=True), np.ptp(groups, axis=-1, keepdims=True) / 15
    plain = (low + step * np.rint((groups - low) / step)).reshape(weights.shape)
    error, plain_error = (((found - weights) ** 2).mean() for found in (rounded.to_floats(), plain))
    assert error < 0.95 * plain_error


def test_four_bits_hold_a_group_of_equal_numbers() -> None:
    weights = np.repeat(np.array([[0.0], [1.5], [-2.25]], np.float32), 64, axis=1)
    assert np.array_equal(quantize_to_nibbles(weights).to_floats(), weights)
