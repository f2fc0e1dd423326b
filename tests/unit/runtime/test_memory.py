import numpy as np
import pytest

from blockdraft.runtime.memory import HUGE_PAGE, zeroed_memory


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
