"""Who updates what, and by how much."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from blockdraft.train.optimizer import Stepper
from blockdraft.train.recipe import OptimizerSection


def parameters() -> dict[str, nn.Parameter]:
    torch.manual_seed(0)
    shapes = {"network.layers.0.mlp.up_proj": (24, 8), "network.norm": (8,), "markov_w1": (30, 4)}
    return {name: nn.Parameter(torch.randn(shape)) for name, shape in shapes.items()}


def changes(name: str, gradient_scale: float) -> dict[str, torch.Tensor]:
    weights = parameters()
    before = {key: value.detach().clone() for key, value in weights.items()}
    stepper = Stepper(OptimizerSection(name=name), weights, is_fused=False)  # type: ignore[arg-type]
    generator = torch.Generator().manual_seed(1)
    for value in weights.values():
        value.grad = torch.randn(value.shape, generator=generator) * gradient_scale
    stepper.step(learning_rate=0.01)
    return {key: value.detach() - before[key] for key, value in weights.items()}


def test_muon_steps_by_an_orthogonal_matrix_of_the_size_of_an_adam_step() -> None:
    change = changes("muon", 1.0)["network.layers.0.mlp.up_proj"]
    values = torch.linalg.svdvals(change) / (0.01 * 0.2 * 24**0.5)
    assert values.min() > 0.5  # Newton-Schulz brings singular values near one, not to it
    assert values.max() < 1.3
    size = change.square().mean().sqrt()
    assert size == pytest.approx(0.2 * 0.01, rel=0.3)  # 0.2: what an Adam step comes to when gradients are noisy


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_steps_do_not_depend_on_the_size_of_the_gradient(name: str) -> None:
    small, large = changes(name, 1e-2), changes(name, 1e2)
    for key, value in small.items():
        torch.testing.assert_close(value, large[key], rtol=0.05, atol=1e-4, msg=key)


def test_vectors_and_tables_are_left_to_adam() -> None:
    by_muon, by_adam = changes("muon", 1.0), changes("adamw", 1.0)
    assert torch.equal(by_muon["network.norm"], by_adam["network.norm"])
    assert torch.equal(by_muon["markov_w1"], by_adam["markov_w1"])
    assert not torch.equal(by_muon["network.layers.0.mlp.up_proj"], by_adam["network.layers.0.mlp.up_proj"])
