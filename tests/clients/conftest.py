"""Each test here runs in a process of its own, on a driver that nobody has used: clients keep state, and drivers do.

There, the simulated driver takes the place of NVIDIA's before any client is imported.
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

if INSIDE in os.environ:  # elsewhere they are only collected, and other tests may have other drivers
    sim.enable()
with warnings.catch_warnings():  # what the clients have to warn of is theirs to mend
    warnings.simplefilter("ignore")
    import cuda.core  # noqa: F401
    import numba.cuda  # noqa: F401

HERE = Path(__file__).parent
SERVER = pytest.StashKey[Server]()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> bool | None:
    """Have a test run elsewhere, and report what is reported from there."""
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
    """A machine that is not started, with the race checker on; at the end nothing may be left on it."""
    sim.configure(races=True)
    yield
    assert_nothing_is_left()
    assert [str(race) for race in sim.races()] == []


def assert_nothing_is_left() -> None:
    """Neither memory nor objects of any kind, beside contexts."""
    gc.collect()
    census = sim.census()
    left = {name: count for name, count in vars(census).items() if count and name not in ("devices", "contexts")}
    assert left == {}
    assert [sim.used(device) for device in range(census.devices)] == [0] * census.devices
