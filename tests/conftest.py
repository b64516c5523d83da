"""For all tests: no test may leave an unexpected finding of the simulated driver. Also speeds up garbage collection."""

from __future__ import annotations

import gc
import signal
from collections.abc import Iterator

import pytest

from . import findings

SHOWN = 20

pytest.register_assert_rewrite("tests.clients.conformance")


def pytest_configure(config: pytest.Config) -> None:
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    config.addinivalue_line("markers", "findings(*kinds): findings of the simulated driver that this test causes")


@pytest.fixture(autouse=True)
def _no_unexpected_findings(request: pytest.FixtureRequest) -> Iterator[None]:
    """Set up first and torn down last, so it also sees what other fixtures did. See tests/findings.py."""
    yield
    found = findings.take()
    marker = request.node.get_closest_marker("findings")
    unexpected = [f for f in found if marker is None or (marker.args and f.kind not in marker.args)]
    if unexpected:
        shown = [str(f) for f in unexpected[:SHOWN]]
        more = [f"and {len(unexpected) - SHOWN} more"] if len(unexpected) > SHOWN else []
        pytest.fail("\n".join(["the simulated driver found:", *shown, *more]), pytrace=False)


@pytest.fixture(autouse=True, scope="module")
def _spare_the_collector() -> Iterator[None]:
    """Failing requests and most tests' ends collect garbage, and pytest keeps many live objects: exclude those."""
    if gc.get_freeze_count():  # set by a process that forks another for each test
        yield
        return
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
