import pytest
import torch

from blockdraft.core.sampling import greedy_ids


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_the_first_of_equals_is_taken_alone_and_among_other_rows(dtype):
    rows = torch.zeros(5, 1000, dtype=dtype)
    rows[:, 700] = rows[:, 300] = rows[:, 999] = 2.0
    assert greedy_ids(rows).tolist() == [300] * 5
    assert [int(greedy_ids(row)) for row in rows] == [300] * 5


def test_a_forbidden_token_is_never_chosen():
    rows = torch.full((2, 6), -torch.inf)
    rows[0, 4], rows[1, 2] = -50.0, 1.0
    assert greedy_ids(rows).tolist() == [4, 2]
