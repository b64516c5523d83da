"""Runs some of CuPy's own tests in a dry run, and writes each one's outcome as JSON.

Started by test_cupys_own_tests.py in a process that has the libraries for dry runs: ``python -m
tests.dryrun_cupy.cupys_tests RESULT FILE...``, in the folder of CuPy's source package.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest


class Outcomes:
    """A plugin of pytest that remembers how each test ended."""

    def __init__(self) -> None:
        self.ended: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.outcome != "passed":
            before = self.ended.get(report.nodeid)
            self.ended[report.nodeid] = "failed" if before == "failed" else report.outcome


def main() -> int:
    result, *files = sys.argv[1:]
    outcomes = Outcomes()
    code = pytest.main(["-q", "-p", "no:cacheprovider", "--timeout=60", "--tb=line", *files], plugins=[outcomes])
    Path(result).write_text(json.dumps(outcomes.ended))
    return 0 if code in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED) else int(code)


if __name__ == "__main__":
    sys.exit(main())
