"""A process that has imported the clients and forks a fresh process for each test, which saves the import time.

conftest.py runs it. It reads test names, one per line. For each it writes a line with pytest's reports, which is
missing if the test's process died before, and a line with that process's exit code.
"""

from __future__ import annotations

import faulthandler
import gc
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from .. import forked
from ..programs import clean_environment

INSIDE = "ARENA_TEST_INSIDE"  # set where tests run directly, in the process that collected them
TIME_LIMIT = 60


class Server(forked.Server):
    """The parent's side: a child process that runs tests for this pytest."""

    def __init__(self) -> None:
        # Some of these tests use dead handles on purpose.
        super().__init__("tests.clients.process", CUDASIM_DEAD="report", **{INSIDE: "1"})

    def run(self, test: str) -> tuple[list[dict[str, Any]], int]:
        """Run one test; return its reports, as data, and the exit code of its process."""
        self.ask(test)
        reports: list[dict[str, Any]] = []
        while not isinstance(found := self.answer(), int):
            reports = found
        return reports, found


def run_client(code: str, **variables: str) -> str:
    """Run a Python program in a new process, and return what it prints."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=clean_environment() | variables,
        capture_output=True,
        text=True,
        timeout=TIME_LIMIT,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


class _ForkForEach:
    """Replaces pytest's loop over the collected tests."""

    def __init__(self) -> None:
        # pytest redirects the standard streams.
        self.names, self.answers, self.errors = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w"), os.dup(2)
        self.reports: list[dict[str, Any]] = []
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        tests = {test.nodeid: test for test in session.items}
        gc.collect()
        gc.freeze()  # so that children do not scan what exists already
        for name in self.names:
            child = os.fork()
            if child == 0:
                faulthandler.register(signal.SIGALRM, self.errors, chain=True)
                signal.alarm(TIME_LIMIT)
                test = tests[name.strip()]
                test.config.hook.pytest_runtest_protocol(item=test, nextitem=None)
                self.answer(self.reports)
                break  # the interpreter exits as usual, with whatever the client has left behind
            _, status = os.waitpid(child, 0)
            self.answer(os.waitstatus_to_exitcode(status))
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.reports.append(report._to_json())

    def answer(self, what: object) -> None:
        print(json.dumps(what, default=str), file=self.answers, flush=True)


if __name__ == "__main__":
    # Hypothesis would be imported again in each child, for tests that do not use it.
    without = ["-p", "no:cacheprovider", "-p", "no:hypothesispytest"]
    pytest.main([*without, str(Path(__file__).parent)], plugins=[_ForkForEach()])
