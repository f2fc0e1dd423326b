"""What the torch layers do so that a row on a CPU has the bits it has beside others."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from blockdraft.cache import KVCache, KVLayout
from blockdraft.models.layers.attention import attend, attention_bias, causal_mask, folded_rows
from blockdraft.models.layers.linear import linear

NUM_HEADS, NUM_KV_HEADS, HEAD_DIM = 6, 2, 16


def test_a_wide_bfloat16_row_alone_has_the_bits_it_has_beside_another():
    torch.manual_seed(0)
    weight, bias = torch.randn(1024, 4096).bfloat16(), torch.randn(1024).bfloat16()
    rows = torch.randn(16, 4096).bfloat16()
    for first in range(0, 16, 2):
        beside = torch.nn.functional.linear(rows[first : first + 2], weight, bias)
        assert torch.equal(linear(rows[first : first + 1], weight, bias), beside[:1])


@given(st.integers(1, 3), st.sampled_from([8, 1024, 1025]), st.sampled_from([torch.bfloat16, torch.float32]))
def test_a_linear_layer_gives_as_many_rows_as_it_got(num_rows, width, dtype):
    rows = torch.randn(num_rows, width, dtype=dtype)
    weight = torch.randn(5, width, dtype=dtype)
    result = linear(rows, weight)
    assert result.shape == (num_rows, 5)
    assert torch.allclose(result.double(), rows.double() @ weight.double().T, rtol=0.02, atol=0.5)


@given(st.integers(1, 2000))
def test_never_one_to_three_rows_are_left_over_of_thirty_two(num_rows):
    computed = folded_rows(num_rows)
    assert 0 <= computed - num_rows <= 3
    assert computed % 32 not in {1, 2, 3}


def attended(num_rows: int, dtype: torch.dtype) -> torch.Tensor:
    """Attend with the last `num_rows` of 40 rows, whose numbers depend on nothing else. Shapes: returns [T, N * H]."""
    generator = torch.Generator().manual_seed(0)
    shape = (40, NUM_HEADS + 2 * NUM_KV_HEADS, HEAD_DIM)
    rows = torch.randn(shape, generator=generator).bfloat16().to(dtype)
    queries, keys, values = rows.split((NUM_HEADS, NUM_KV_HEADS, NUM_KV_HEADS), dim=1)
    layout = KVLayout(
        num_layers=1, num_kv_heads=NUM_KV_HEADS, head_dim=HEAD_DIM, dtype=dtype, device=torch.device("cpu")
    )
    cache = KVCache(layout, 40)
    cache.write(0, keys, values)
    mask = causal_mask(40 - num_rows, num_rows, torch.device("cpu"))
    return attend(queries[40 - num_rows :], cache, 0, mask)


@given(st.integers(1, 12))
def test_idle_rows_change_nothing_that_is_returned(num_rows):
    """A group has three heads: 1 row is folded to 3 and computed as 4, 11 are folded to 33 and computed as 36."""
    result = attended(num_rows, torch.bfloat16)
    assert result.shape == (num_rows, NUM_HEADS * HEAD_DIM)
    assert torch.allclose(result.float(), attended(num_rows, torch.float32), atol=0.03)


def test_only_a_cpu_in_bfloat16_computes_idle_rows():
    mask = causal_mask(4, 1, torch.device("cpu"))
    assert len(attention_bias(mask, 3, torch.bfloat16)) == 4
    assert len(attention_bias(mask, 3, torch.float32)) == 3
    assert len(attention_bias(mask.to("meta"), 3, torch.bfloat16)) == 3
