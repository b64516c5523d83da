"""A process with the clients loaded, which becomes a new one for each test: fresh, and without the time of an import.

conftest.py runs it. Tests come in by their names, a line each. What goes out for each is a line with pytest's reports,
which is missing if the process of the test did not live to write it, and a line with that process's exit code.
"""

from __future__ import annotations

import faulthandler
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
INSIDE = "ARENA_TEST_INSIDE"  # set where tests run as they stand, in this process
TIME_LIMIT = 60


class Server:
    """The other end: a child that runs tests, for the pytest that collected them."""

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


def _run(test: str) -> str:
    import pytest

    reports = []

    class Keep:
        def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
            reports.append(report._to_json())

    pytest.main(["-q", "-p", "no:cacheprovider", "--rootdir", str(ROOT), test], plugins=[Keep()])
    return json.dumps(reports, default=str)


def main() -> None:
    from arena import sim

    sim.enable()
    import cuda.core
    import numba.cuda  # noqa: F401

    answers = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            faulthandler.dump_traceback_later(TIME_LIMIT, exit=True)
            print(_run(line.strip()), file=answers, flush=True)
            return  # the interpreter ends as it always does, with whatever the client has left behind
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), file=answers, flush=True)


if __name__ == "__main__":
    main()
