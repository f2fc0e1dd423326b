from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from blockdraft.engine.pass_costs import DraftCost, PassCosts, measure_pass_costs
from blockdraft.testing.toy import ToyDrafter, ToyTarget, random_table

TABLE = PassCosts(
    num_rows=(1, 4, 8),
    depths=(100, 1100),
    target_s=((1.0, 1.6, 4.0), (3.0, 3.6, 8.0)),
    draft_s={"draft-dspark": DraftCost(first_s=0.5, further_s=0.1)},
)


def test_between_measured_sizes_the_curve_is_straight() -> None:
    assert TABLE.target(1, 100) == 1.0
    assert TABLE.target(2, 100) == pytest.approx(1.2)
    assert TABLE.target(6, 100) == pytest.approx(2.8)
    assert TABLE.target(1, 600) == pytest.approx(2.0)


def test_beyond_the_largest_size_it_goes_on_as_it_was() -> None:
    assert TABLE.target(12, 100) == pytest.approx(6.4)
    assert TABLE.target(1, 2100) == pytest.approx(5.0)
    assert TABLE.target(1, 0) == 1.0


def test_costs_of_drafts() -> None:
    assert TABLE.draft("draft-dspark", 0) == 0
    assert TABLE.draft("draft-dspark", 1) == pytest.approx(0.5)
    assert TABLE.draft("draft-dspark", 4) == pytest.approx(0.8)
    assert TABLE.draft("ngram-mod", 4) == 0


def test_a_table_survives_a_file() -> None:
    assert PassCosts.from_dict(json.loads(json.dumps(TABLE.to_dict()))) == TABLE


@pytest.mark.parametrize(
    "broken", [{}, {"num_rows": [1], "depths": [1], "target_s": [[1.0, 2.0]], "draft_s": {}}, {"num_rows": "x"}]
)
def test_what_is_no_table_is_refused(broken: dict[str, object]) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        PassCosts.from_dict(broken)


class SlowTarget(ToyTarget):
    """Takes as long as its clock says: a second, and a tenth for each row."""

    def __init__(self) -> None:
        super().__init__(random_table(4, 1), 4, context_length=4096)
        self.now = 0.0

    def forward(self, segments: Sequence, target_layer_ids: Sequence[int] = ()):  # type: ignore[no-untyped-def, type-arg]
        self.now += 0.9 + 0.1 * sum(len(segment.token_ids) for segment in segments)
        return super().forward(segments, target_layer_ids)


def test_what_is_measured_is_what_passes_take(monkeypatch: pytest.MonkeyPatch) -> None:
    target = SlowTarget()
    monkeypatch.setattr("blockdraft.engine.pass_costs.perf_counter", lambda: target.now)
    drafter = ToyDrafter(random_table(4, 2), lambda prefix: 3)
    costs = measure_pass_costs(target, drafter, num_rows=(1, 2, 8), num_repeats=1)
    assert costs.depths == (64,)  # a toy's cache cannot be filled without computing
    assert costs.target(1) == pytest.approx(1.0)
    assert costs.target(5) == pytest.approx(1.4)
    assert costs.draft("draft-toy", 3) == 0
