"""The picked log-probabilities against log_softmax of the whole row, values and gradients."""

import pytest
import torch
from torch import Tensor

from blockdraft.train import head
from blockdraft.train.head import picked_log_probs

R, D, U, RANK = 7, 5, 11, 3


def inputs(*, markov: bool) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    torch.manual_seed(0)
    ids = torch.randint(0, U, (R, 4))
    ids[0] = 2  # the same column four times
    before = torch.randn(R, RANK, dtype=torch.float64, requires_grad=True) if markov else None
    table = torch.randn(U, RANK, dtype=torch.float64, requires_grad=True) if markov else None
    return (
        torch.randn(R, D, dtype=torch.float64, requires_grad=True),
        torch.randn(U, D, dtype=torch.float64),
        ids,
        before,
        table,
    )


@pytest.mark.parametrize("markov", [False, True])
@pytest.mark.parametrize("recompute", [False, True])
def test_equals_log_softmax_of_whole_rows_in_value_and_gradient(
    monkeypatch: pytest.MonkeyPatch, markov: bool, recompute: bool
) -> None:
    monkeypatch.setattr(head, "ROWS_PER_CHUNK", 3)
    hidden, weight, ids, before, table = inputs(markov=markov)
    trained = [tensor for tensor in (hidden, before, table) if tensor is not None]
    scale = torch.randn(R, 4)

    found = picked_log_probs(hidden, weight, ids, before=before, table=table, recompute=recompute)
    grads = torch.autograd.grad((found * scale).sum(), trained)

    logits = hidden @ weight.t()
    if before is not None and table is not None:
        logits = logits + before @ table.t()
    expected = torch.log_softmax(logits, dim=-1).gather(1, ids)
    assert torch.allclose(found.double(), expected, atol=1e-6)
    for grad, wanted in zip(grads, torch.autograd.grad((expected * scale).sum(), trained), strict=True):
        assert torch.allclose(grad, wanted, atol=1e-6)


def test_bfloat16_stays_near_float32() -> None:
    torch.manual_seed(1)
    hidden, weight, ids = torch.randn(6, 64), torch.randn(500, 64) * 0.3, torch.randint(0, 500, (6, 8))
    exact = torch.log_softmax(hidden.bfloat16().float() @ weight.bfloat16().float().t(), dim=-1).gather(1, ids)
    found = picked_log_probs(hidden.bfloat16(), weight.bfloat16(), ids)
    assert (found - exact).abs().max() < 0.06  # half a unit of a bfloat16 logit near 8, and of the log-sum


def test_no_rows_give_no_values_and_no_error() -> None:
    hidden = torch.randn(0, D, requires_grad=True)
    found = picked_log_probs(hidden, torch.randn(U, D), torch.empty(0, 2, dtype=torch.long))
    found.sum().backward()
    assert found.shape == (0, 2)
    assert hidden.grad is not None
