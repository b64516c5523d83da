"""Tests of dry runs with the real PyTorch, and of arena.torch. They run with `make test-torch` only: see README.md.

This process imports PyTorch on the simulated libraries, and forks one process for each test: PyTorch takes seconds to
import, chooses its allocator once, and keeps what it found. Each of these processes exits as any program does, and a
test fails if its process crashes or prints something then.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

import arena
import arena.torch
from arena import sim

IS_WANTED = "TEST_TORCH" in os.environ
HERE = Path(__file__).parent
CARD = "t4"
TIME_LIMIT = 120

# One test stays, and says how to run the others.
AVAILABLE = "test_available.py"
collect_ignore = [] if IS_WANTED else [file.name for file in HERE.glob("test_*.py") if file.name != AVAILABLE]

if IS_WANTED:
    device = sim.dryrun(card=CARD)
    device.__enter__()  # for good: this process does nothing else
    with warnings.catch_warnings():  # PyTorch's own business
        warnings.simplefilter("ignore")
        import torch  # noqa: F401


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Run each test in a process of its own. Returns in those, too, so that the interpreter exits as usual."""
    if not IS_WANTED or session.config.option.collectonly or session.testsfailed:
        return None
    gc.collect()
    gc.freeze()  # so that children do not scan what exists already
    for item in session.items:
        if run_forked(item):
            return True
        if session.shouldfail or session.shouldstop:
            raise session.Failed(session.shouldfail or session.shouldstop)
    return True


def run_forked(item: pytest.Item) -> bool:
    """Run a test in a fork; True in that process, when the test is over."""
    with tempfile.TemporaryFile("w+") as answers, tempfile.TemporaryFile("w+") as errors:
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            run_here(item, os.dup(answers.fileno()), os.dup(errors.fileno()))
            return True
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        answers.seek(0)
        errors.seek(0)
        reports = [pytest.TestReport._from_json(json.loads(line)) for line in answers]
        for report in reports:
            if isinstance(report.longrepr, list):  # where and why a test was skipped
                report.longrepr = tuple(report.longrepr)
        said = errors.read()
    if code != 0 or said or not reports:
        text = f"the process of the test ended with exit code {code}, and said at its end:\n{said}"
        reports.append(pytest.TestReport(item.nodeid, item.location, {}, "failed", text, "teardown"))
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return False


def run_here(item: pytest.Item, answers: int, errors: int) -> None:
    signal.alarm(TIME_LIMIT)
    reports: list[pytest.TestReport] = []

    class Collector:
        def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
            reports.append(report)

    manager = item.config.pluginmanager
    manager.unregister(manager.getplugin("terminalreporter"))
    manager.register(Collector())
    item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
    with os.fdopen(answers, "w") as file:
        file.writelines(f"{json.dumps(report._to_json(), default=str)}\n" for report in reports)
    item.session.testsfailed = 0  # the parent counts; the exit code says how the process ended
    manager.getplugin("capturemanager").stop_global_capturing()
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what pytest says
    os.dup2(errors, 2)


@pytest.fixture(autouse=True)
def _machine() -> Iterator[None]:
    """The race checker is on, and finds nothing."""
    if not IS_WANTED:
        yield
        return
    sim.configure(races=True)
    yield
    assert [str(race) for race in sim.races()] == []


@pytest.fixture
def pool() -> arena.Arena:
    """An arena that PyTorch uses."""
    made = arena.Arena(cap="256MiB")
    arena.torch.use(made)
    return made
