"""Each test here runs in its own process, on an unused driver: clients keep state, and so do drivers.

In that process, the simulated driver replaces NVIDIA's before any client is imported.
"""

from __future__ import annotations

import gc
import os
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from arena import sim

from .process import INSIDE, Server

if INSIDE in os.environ:  # elsewhere the tests are only collected, and other tests may use other drivers
    sim.enable()
with warnings.catch_warnings():  # warnings of the clients are for them to fix
    warnings.simplefilter("ignore")
    import cuda.core  # noqa: F401
    import numba.cuda  # noqa: F401

HERE = Path(__file__).parent
SERVER = pytest.StashKey[Server]()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> bool | None:
    """Run a test in another process, and pass on its reports."""
    if INSIDE in os.environ or HERE not in item.path.parents:
        return None
    stash = item.config.stash
    if SERVER not in stash:
        server = stash[SERVER] = Server()
        item.config.add_cleanup(server.close)
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    found, code = stash[SERVER].run(item.nodeid)
    reports = [pytest.TestReport._from_json(report) for report in found]
    if code != 0 or not reports:
        text = f"the process of the test ended with {code}; standard error has more"
        reports.append(pytest.TestReport(item.nodeid, item.location, {}, "failed", text, "teardown"))
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("ignore::DeprecationWarning"))


@pytest.fixture(autouse=True)
def _machine() -> Iterator[None]:
    """A machine that is not started, with the race checker on. At the end nothing may be left on it."""
    sim.configure(races=True)
    yield
    assert_nothing_is_left()
    assert [str(race) for race in sim.races()] == []


def assert_nothing_is_left() -> None:
    """Neither memory nor objects of any kind, except contexts."""
    gc.collect()
    census = sim.census()
    left = {name: count for name, count in vars(census).items() if count and name not in ("devices", "contexts")}
    assert left == {}
    assert [sim.used(device) for device in range(census.devices)] == [0] * census.devices
