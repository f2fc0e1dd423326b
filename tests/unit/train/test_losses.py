"""Every term against the formula written out in loops."""

import math

import torch

from blockdraft.train.losses import acceptance_rate, cross_entropy, decay_weights, dpace_weights


def test_decay_halves_where_the_formula_says() -> None:
    weights = decay_weights(4, 2.0, torch.device("cpu")).tolist()
    assert all(math.isclose(found, math.exp(-k / 2.0), rel_tol=1e-6) for k, found in enumerate(weights))
    assert decay_weights(3, None, torch.device("cpu")).tolist() == [1, 1, 1]


def test_dpace_weights_are_the_sums_of_the_paths_through_a_slot() -> None:
    ce = torch.tensor([[0.1, 1.0, 0.3, 2.0], [0.5, 0.2, 0.7, 0.1]])
    taught = torch.tensor([[True, True, True, True], [True, True, False, False]])
    alpha = 0.5
    found = dpace_weights(ce, taught, alpha)
    for row in range(2):
        for j in range(4):
            expected = 0.0
            for m in range(j, 4):
                if not taught[row, m]:
                    continue
                product = 1.0
                for i in range(m + 1):
                    product *= (1 - alpha) * math.exp(-ce[row, i].item()) + alpha
                expected += product
            assert math.isclose(found[row, j].item(), expected, rel_tol=1e-5, abs_tol=1e-7)
    assert not found.requires_grad


def test_cross_entropy_is_renormalised_over_what_can_be_drafted() -> None:
    log_probs = torch.log(torch.tensor([[[0.5, 0.2, 0.1]]]))
    target = torch.tensor([[[0.6, 0.0, 0.2]]])  # the second candidate cannot be drafted
    expected = -(0.75 * math.log(0.5) + 0.25 * math.log(0.1))
    assert math.isclose(cross_entropy(log_probs, target).item(), expected, rel_tol=1e-5)
    nothing = cross_entropy(log_probs, torch.zeros(1, 1, 3))
    assert nothing.item() == 0.0


def test_acceptance_is_one_minus_the_total_variation_of_two_distributions() -> None:
    torch.manual_seed(0)
    p, q = torch.softmax(torch.randn(5, 6), -1), torch.softmax(torch.randn(5, 6), -1)
    found = acceptance_rate(q.log(), p)
    assert torch.allclose(found, 1 - 0.5 * (p - q).abs().sum(-1), atol=1e-6)
