"""A process with the clients loaded, which becomes a new one for each test: fresh, and without the time of an import.

conftest.py runs it. Tests come in by their names, a line each. What goes out for each is a line with pytest's reports,
which is missing if the process of the test did not live to write it, and a line with that process's exit code.
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

ROOT = Path(__file__).parents[2]
INSIDE = "ARENA_TEST_INSIDE"  # set where tests run as they stand, in the process that collected them
TIME_LIMIT = 60


class Server:
    """The other end: a child that runs tests, for the pytest that was asked to."""

    def __init__(self) -> None:
        # Threads of a numerical library would be there at the fork, and its copy would not have them.
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.clients.process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=environment() | {INSIDE: "1", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
        )

    def run(self, test: str) -> tuple[list[dict[str, Any]], int]:
        """Run one test; return its reports, as data, and how its process ended."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(test, file=self._process.stdin, flush=True)
        reports: list[dict[str, Any]] = []
        while line := self._process.stdout.readline():
            found = json.loads(line)
            if isinstance(found, int):
                return reports, found
            reports = found
        raise RuntimeError(f"the process that runs the tests has ended, with {self._process.wait()}")

    def close(self) -> None:
        self._process.communicate(timeout=TIME_LIMIT)


def environment() -> dict[str, str]:
    """The variables of this process, without those that would change the driver or a client."""
    foreign = ("ARENA_", "CUDASIM_", "CUDA_", "NUMBA_")
    return {name: value for name, value in os.environ.items() if not name.startswith(foreign)}


def run_client(code: str, **variables: str) -> str:
    """Run a Python program in a process of its own, and return what it prints."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment() | variables,
        capture_output=True,
        text=True,
        timeout=TIME_LIMIT,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


class _ForkForEach:
    """In place of pytest's loop over the tests that it has collected."""

    def __init__(self) -> None:
        # pytest takes the standard streams for itself.
        self.names, self.answers, self.errors = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w"), os.dup(2)
        self.reports: list[dict[str, Any]] = []
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        tests = {test.nodeid: test for test in session.items}
        gc.collect()
        gc.freeze()  # so that what is here already is not looked through in every child
        for name in self.names:
            child = os.fork()
            if child == 0:
                faulthandler.register(signal.SIGALRM, self.errors, chain=True)
                signal.alarm(TIME_LIMIT)
                test = tests[name.strip()]
                test.config.hook.pytest_runtest_protocol(item=test, nextitem=None)
                self.answer(self.reports)
                break  # the interpreter ends as it always does, with whatever the client has left behind
            _, status = os.waitpid(child, 0)
            self.answer(os.waitstatus_to_exitcode(status))
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.reports.append(report._to_json())

    def answer(self, what: object) -> None:
        print(json.dumps(what, default=str), file=self.answers, flush=True)


if __name__ == "__main__":
    # Hypothesis would be imported in each child anew, for tests that do without.
    without = ["-p", "no:cacheprovider", "-p", "no:hypothesispytest"]
    pytest.main([*without, str(Path(__file__).parent)], plugins=[_ForkForEach()])
