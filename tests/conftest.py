"""What all tests share: those of the native kernels are left out, and counted as such, where there are none; the
machine seems idle, as what is said of a busy one would come and go; and what passes cost, which differs from moment to
moment on a busy machine, and packed weights are not kept where users keep them.
"""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from blockdraft.runtime.native_core import why_unavailable


def pytest_configure() -> None:
    # A shell that runs the tests in the background lets them, and what they start, ignore interrupts.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if reason := why_unavailable():
        for item in items:
            if item.get_closest_marker("native"):
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(autouse=True, scope="session")
def own_cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("blockdraft.engine.kept_costs.cache_folder", lambda: folder)
        patch.setattr("blockdraft.models.weights.kept.cache_folder", lambda: folder)
        yield folder


@pytest.fixture(autouse=True)
def idle_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.getloadavg", lambda: (0.0, 0.0, 0.0))
