from types import SimpleNamespace

import numpy as np
import pytest

from blockdraft.runtime.memory import HUGE_PAGE, Stretch, give_back_free_memory, zeroed_memory


@pytest.mark.parametrize("num_bytes", [0, 1, 4096, HUGE_PAGE - 1, HUGE_PAGE, 2 * HUGE_PAGE + 5])
def test_memory_is_zeroed_writable_and_outlives_its_allocation(num_bytes: int) -> None:
    memory = zeroed_memory(num_bytes)
    assert memory.shape == (num_bytes,)
    assert not memory.any()
    memory[:] = 7
    part = memory[num_bytes // 2 :].view(np.uint8)
    del memory
    assert (part == 7).all()


def test_large_memory_begins_where_a_huge_page_may() -> None:
    assert zeroed_memory(HUGE_PAGE).ctypes.data % HUGE_PAGE == 0


def test_without_huge_pages_there_is_memory_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("mmap.MADV_HUGEPAGE", raising=False)
    assert not zeroed_memory(HUGE_PAGE + 1).any()


def test_arrays_of_a_stretch_are_copies_that_begin_at_cache_lines() -> None:
    arrays = [np.full(shape, index, np.uint8) for index, shape in enumerate([(3, 5), (64,), (1,), (2, 33)], start=1)]
    stretch = Stretch(sum(array.nbytes for array in arrays), len(arrays))
    copies = [stretch.put(array) for array in arrays]
    for copy, array in zip(copies, arrays, strict=True):
        np.testing.assert_array_equal(copy, array)
        assert copy.ctypes.data % 64 == copies[0].ctypes.data % 64
        assert not np.shares_memory(copy, array)
    copies[0][...] = 9
    np.testing.assert_array_equal(copies[1], arrays[1])


def test_free_memory_is_given_back_where_the_library_can(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr("ctypes.CDLL", lambda name: SimpleNamespace(malloc_trim=asked.append))
    give_back_free_memory()
    assert asked == [0]
    monkeypatch.setattr("ctypes.CDLL", lambda name: SimpleNamespace())
    give_back_free_memory()
    assert asked == [0]
