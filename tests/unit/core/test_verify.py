from __future__ import annotations

import pytest
import torch

from blockdraft.core.verify import Verdict, verify_choices, verify_rejection

P = torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.6, 0.3], [0.2, 0.2, 0.6]], dtype=torch.float64)
Q = torch.tensor([[0.2, 0.6, 0.2], [0.1, 0.8, 0.1]], dtype=torch.float64)


def uniforms(*rows: tuple[float, float, float, float]) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def run(draft_probs: torch.Tensor | None, draft_ids: list[int], draws: torch.Tensor) -> tuple[int, int]:
    rows = P[: len(draft_ids) + 1]
    return tuple(int(value) for value in verify_rejection(rows, draft_probs, torch.tensor(draft_ids), draws))


def test_choices_keep_the_agreeing_prefix_and_name_the_next_token() -> None:
    assert verify_choices([4, 5, 6], [4, 5]) == Verdict(num_accepted=2, next_id=6, next_kind="bonus")
    assert verify_choices([4, 9, 6], [4, 5]) == Verdict(num_accepted=1, next_id=9, next_kind="recovered")
    assert verify_choices([4], []) == Verdict(num_accepted=0, next_id=4, next_kind="plain")


def test_an_agreement_behind_a_rejection_does_not_count() -> None:
    assert verify_choices([1, 5, 6, 7], [4, 5, 6]).num_accepted == 0


def test_rejection_keeps_below_the_ratio_and_not_at_it() -> None:
    ratio = 0.3 / 0.6
    for draw, accepted in ((ratio - 1e-9, 1), (ratio, 0), (ratio + 1e-9, 0)):
        num_accepted, _ = run(Q[:1], [1], uniforms((0, draw, 0, 0), (0, 0, 0, 0)))
        assert num_accepted == accepted


def test_a_token_more_likely_under_the_target_is_always_kept() -> None:
    assert run(Q[:1], [0], uniforms((0, 1 - 1e-12, 0, 0), (0, 0, 0, 0)))[0] == 1


def test_the_recovered_token_comes_from_the_positive_part_of_the_difference() -> None:
    # p - q in row 0 is (0.3, -0.3, 0): only token 0 can be recovered, whatever the draw.
    for draw in (0.0, 0.5, 1 - 1e-12):
        assert run(Q[:1], [1], uniforms((0, 0.99, draw, 0.9), (0, 0, 0, 0))) == (0, 0)


def test_the_bonus_comes_from_the_targets_last_row_and_its_own_draw() -> None:
    kept = (0.0, 0.0, 0.0, 0.0)
    for draw, next_id in ((0.1, 0), (0.3, 1), (0.9, 2)):
        assert run(Q, [0, 0], uniforms(kept, kept, (0, 0, 0.999, draw))) == (2, next_id)


def test_a_chosen_draft_is_kept_with_the_targets_probability_and_not_recovered() -> None:
    assert run(None, [1], uniforms((0, 0.29, 0, 0), (0, 0, 0, 0)))[0] == 1
    for draw, next_id in ((0.0, 0), (0.70, 0), (0.72, 2), (1 - 1e-12, 2)):
        assert run(None, [1], uniforms((0, 0.31, draw, 0), (0, 0, 0, 0))) == (0, next_id)


def test_the_second_slot_is_judged_with_its_own_row() -> None:
    # Row 1: p / q of token 1 is 0.75.
    kept = (0.0, 0.0, 0.0, 0.0)
    assert run(Q, [0, 1], uniforms(kept, (0, 0.74, 0, 0), kept))[0] == 2
    assert run(Q, [0, 1], uniforms(kept, (0, 0.76, 0, 0), kept))[0] == 1


def test_a_draft_of_impossible_tokens_is_rejected_and_never_recovered() -> None:
    target = torch.tensor([[0.0, 0.4, 0.6], [0.0, 0.4, 0.6]], dtype=torch.float64)
    draft = torch.tensor([[1.0, 0.0, 0.0]], dtype=torch.float64)
    for draw in (0.0, 0.39, 0.41, 1 - 1e-12):
        num_accepted, next_id = verify_rejection(
            target, draft, torch.tensor([0]), uniforms((0, 0.0, draw, 0), (0, 0, 0, 0))
        )
        assert int(num_accepted) == 0
        assert int(next_id) == (1 if draw < 0.4 else 2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_narrower_draft_distribution_is_compared_in_the_targets_precision(dtype: torch.dtype) -> None:
    num_accepted, _ = verify_rejection(P[:2], Q[:1].to(dtype), torch.tensor([0]), uniforms((0, 0.9, 0, 0), (0,) * 4))
    assert int(num_accepted) == 1
