"""Norm and rotation against the serving code, and their gradients against finite differences."""

import torch
import torch.nn.functional as F

from blockdraft.models.layers.rope import Rope, RopeConfig, apply_rope
from blockdraft.train.functions import rms_norm, rotate


def test_norm_is_the_one_of_the_serving_code() -> None:
    torch.manual_seed(0)
    rows, weight = torch.randn(3, 4, 16), torch.randn(16)
    assert torch.allclose(rms_norm(rows, weight, 1e-5), F.rms_norm(rows, (16,), weight, 1e-5), atol=1e-6)
    low = rms_norm(rows.bfloat16(), weight.bfloat16(), 1e-5)
    assert low.dtype == torch.bfloat16
    assert torch.allclose(low.float(), F.rms_norm(rows, (16,), weight, 1e-5), atol=0.05)


def test_rotation_is_the_one_of_the_serving_code() -> None:
    torch.manual_seed(0)
    heads = torch.randn(5, 2, 8)
    cos, sin = Rope(RopeConfig(theta=100.0, rotary_dim=8), torch.float32, torch.device("cpu")).rows(
        torch.tensor([0, 3, 7, 2, 9]), 9
    )
    assert torch.allclose(rotate(heads, cos, sin), apply_rope(heads, cos, sin), atol=1e-6)


def test_gradients_are_those_of_finite_differences() -> None:
    torch.manual_seed(0)
    rows = torch.randn(3, 2, 4, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x, w: rms_norm(x, w, 1e-5), (rows, weight))
    angles = torch.randn(3, 1, 2, dtype=torch.float64).repeat(1, 1, 2)
    assert torch.autograd.gradcheck(lambda x: rotate(x, angles.cos(), angles.sin()), (rows,))
