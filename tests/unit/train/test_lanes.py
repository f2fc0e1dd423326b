"""Lanes share torch's threads and leave the caller's alone."""

from __future__ import annotations

from collections.abc import Iterator
from threading import get_ident

import pytest
import torch

from blockdraft.train.lanes import MAX_LANES, num_lanes, open_lanes


@pytest.fixture(autouse=True)
def keep_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(("threads", "lanes"), [(1, 1), (2, 2), (64, MAX_LANES)])
def test_there_are_as_many_as_threads_up_to_a_limit_and_one_on_a_gpu(threads: int, lanes: int) -> None:
    torch.set_num_threads(threads)
    assert num_lanes(torch.device("cpu")) == lanes
    assert num_lanes(torch.device("cuda")) == 1


@pytest.mark.parametrize(("threads", "count", "each"), [(2, 2, 1), (8, 4, 2), (2, 3, 1)])
def test_each_has_its_share_from_the_start_and_the_caller_keeps_its_own(threads: int, count: int, each: int) -> None:
    torch.set_num_threads(threads)
    with open_lanes(count) as lanes:
        assert len(lanes._threads) == count
        seen = list(lanes.map(lambda _: (get_ident(), torch.get_num_threads()), range(20)))
        assert torch.get_num_threads() == threads
    assert {number for _, number in seen} == {each}
    assert torch.get_num_threads() == threads
