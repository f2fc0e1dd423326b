"""What all tests share: those of the native kernels are left out, and counted as such, where there are none."""

import pytest

from blockdraft.runtime.native_core import why_unavailable


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if reason := why_unavailable():
        for item in items:
            if item.get_closest_marker("native"):
                item.add_marker(pytest.mark.skip(reason=reason))
