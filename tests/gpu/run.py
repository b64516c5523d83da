"""`make test-gpu`: the tests of this folder, each in its own process; a table, and a JSON file for a report.

    python -m tests.gpu.run [--driver cuda|sim] [--json FILE] [--limit SECONDS] [-k EXPRESSION] [--on-purpose] [PATH...]

pytest collects the tests; each then runs in a fork (isolated.py) with a time limit. This process never opens a driver,
so whatever a test does, the run continues. The exit code is 0 if every test passed or was skipped, 1 if not, and 2 if
there was nothing to test on.
"""

from __future__ import annotations

import argparse
import datetime
import gc
import json
import os
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from _pytest.runner import runtestprotocol
from _pytest.terminal import TerminalReporter

from ..programs import ROOT
from .isolated import Ended, Send, run

SCHEMA = 1
OUTCOMES = ("passed", "skipped", "failed", "crashed", "timed out")
FOLDER = Path(__file__).parent
GOOD, BAD, NOTHING = 0, 1, 2
THEN = {"call": ", in the teardown of the test", "teardown": ", after the end of the test"}  # by the last report
OURS = ("/_pytest/", "/pluggy/", "/tests/gpu/run.py", "/tests/gpu/isolated.py", "<frozen runpy>")  # in tracebacks


class Isolate:
    """A pytest plug-in that runs each test in its own process, and keeps the result."""

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self.tests: list[dict[str, Any]] = []
        self.parent = os.getpid()
        self.send: Send | None = None  # in a child

    @pytest.hookimpl(trylast=True)
    def pytest_configure(self, config: pytest.Config) -> None:
        """Silence pytest. It still needs a reporter, to describe failed assertions."""
        config.pluginmanager.unregister(name="terminalreporter")
        silent = TerminalReporter(config, open(os.devnull, "w"))  # noqa: SIM115
        config.pluginmanager.register(silent, "terminalreporter")

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [item for item in items if "gpu" in getattr(item, "fixturenames", ())]
        gc.collect()
        gc.freeze()  # so that no child scans all this again

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            failure = _failure([_report(report)], "")
            self.add({"name": report.nodeid or "collection", "outcome": "failed", "seconds": 0.0, **failure})

    def pytest_runtest_protocol(self, item: pytest.Item) -> bool:
        def in_child(send: Send) -> None:
            self.send = send
            runtestprotocol(item, nextitem=None)

        marker = item.get_closest_marker("limit")
        ended = run(in_child, marker.args[0] if marker else self.limit)
        if ended is None:
            item.session.items.clear()  # this process has run its test, and exits as pytest does
            return True
        self.add({"name": item.nodeid.removeprefix("tests/gpu/"), **judge(ended)})
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if self.send is not None:
            self.send(_report(report))

    def add(self, test: dict[str, Any]) -> None:
        self.tests.append(test)
        print_row(test)


def _report(report: pytest.TestReport | pytest.CollectReport) -> dict[str, Any]:
    """What a child sends after the setup, the call and the teardown of a test."""
    crash = getattr(report.longrepr, "reprcrash", None)
    skip = report.longrepr[2] if isinstance(report.longrepr, tuple) else ""
    return {
        "when": getattr(report, "when", "collect"),
        "outcome": report.outcome,
        "reason": (crash.message if crash else skip).removeprefix("Skipped: "),
        "text": report.longreprtext if report.failed else "",
        "notes": dict(getattr(report, "user_properties", ())),
    }


def judge(ended: Ended) -> dict[str, Any]:
    """The result of a test, from how its process ended and what it sent before."""
    reports = ended.sent
    result: dict[str, Any] = {"outcome": "passed", "seconds": round(ended.seconds, 3)}
    if reports and reports[-1]["notes"]:
        result["notes"] = reports[-1]["notes"]
    last = reports[-1]["when"] if reports else None
    skipped = [report for report in reports if report["outcome"] == "skipped"]
    if any(report["outcome"] == "failed" for report in reports):
        result |= {"outcome": "failed", **_failure(reports, ended.output)}
    elif skipped:
        result |= {"outcome": "skipped", "reason": skipped[0]["reason"]}
    if ended.how or last != "teardown":
        result["outcome"] = "timed out" if ended.timed_out else "crashed"
        result["reason"] = (ended.how or "exit code 0, before the end of the test") + THEN.get(last or "", "")
        result.setdefault("output", ended.output)
        result |= {"signal": ended.signal, "exit_code": ended.exit_code}
    return result


def _failure(reports: list[dict[str, Any]], output: str) -> dict[str, str]:
    failed = [report for report in reports if report["outcome"] == "failed"]
    text = "\n".join(report["text"] for report in failed)
    reason = failed[0]["reason"] or text.strip().splitlines()[-1].removeprefix("E").strip()
    return {"reason": reason, "output": f"{text}\n{output}".strip()}


def print_row(test: dict[str, Any]) -> None:
    """One row of the table, and below it the reason and the measurements."""
    print(f"{test['outcome']:<10}{test['seconds']:>7.2f} s  {test['name']}")
    lines = test.get("reason", "").splitlines()[:3]
    if test["outcome"] in ("crashed", "timed out"):
        lines += [line for line in test["output"].splitlines() if line and not any(map(line.count, OURS))][-6:]
    for line in lines:
        print(f"{'':21}{without_own_paths(line)[:160]}")
    for name, value in test.get("notes", {}).items():
        print(f"{'':21}{name}: {value}")
    sys.stdout.flush()


def without_own_paths(text: str) -> str:
    """Reports are shared, so leave out where this tree and the user's home are."""
    home = str(Path.home())
    text = text.replace(f"{ROOT}/", "")
    return text.replace(home, "~") if len(home) > 1 else text


def print_machine(found: dict[str, Any]) -> None:
    commit = f" ({found['arena']['commit']})" if found["arena"]["commit"] else ""
    wsl = ", WSL" if found["system"]["wsl"] else ""
    print(f"arena {found['arena']['version']}{commit}, {found['python']}, {found['system']['platform']}{wsl}")
    driver = found["driver"]
    if "path" in driver:
        kind = "simulated" if driver["simulated"] else driver["kernel_module"] or "NVIDIA's"
        path = without_own_paths(driver["path"])
        print(f"driver: {path}, CUDA {driver['version'] // 1000}.{driver['version'] % 1000 // 10}, {kind}")
    for device in found["devices"]:
        print(f"device {device['number']}: {_in_short(device)}")
    if len(found["devices"]) > 1 and "peers" in found:
        pairs = [f"{one}-{two}" for one, row in enumerate(found["peers"]) for two, can in enumerate(row) if can == 1]
        print(f"peer access: {', '.join(pairs) or 'none'}")
    if "error" in driver:
        print(f"error: {driver['error']}")
    print(flush=True)


def _in_short(device: dict[str, Any]) -> str:
    """Whatever is known about it: the process that asked may have crashed."""
    parts = [str(device.get("name", "no name"))]
    if isinstance(total := device.get("total_memory"), int):
        parts.append(f"{total / (1 << 30):.1f} GiB")
    if "compute_capability_minor" in device:
        parts.append(f"compute {device['compute_capability_major']}.{device['compute_capability_minor']}")
    has = {"virtual_memory": "virtual memory", "rdma_with_virtual_memory": "RDMA"}
    parts += [text if device[name] == 1 else f"no {text}" for name, text in has.items() if name in device]
    parts += ["integrated"] if device.get("integrated") == 1 else []
    return ", ".join(parts)


def collect_and_run(options: argparse.Namespace) -> list[dict[str, Any]]:
    isolate = Isolate(options.limit)
    paths = options.paths or sorted(FOLDER.glob("test_*.py"))
    paths += [FOLDER / "on_purpose.py"] if options.on_purpose else []
    # Without the project's options, which are for a terminal, and its time limit: each process has its own.
    flags = ["--capture=no", "-o", "addopts=", "-o", "timeout=0", "--strict-markers", "--continue-on-collection-errors"]
    flags += ["-p", "no:cacheprovider", "-p", "no:hypothesispytest"]
    flags += ["-k", options.expression] if options.expression else []
    code = pytest.main([*flags, *map(str, paths)], plugins=[isolate])
    if os.getpid() != isolate.parent:
        sys.exit(code == pytest.ExitCode.INTERNAL_ERROR)  # a child has ended; other codes are about collecting
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        reason = f"pytest: {pytest.ExitCode(code).name.lower().replace('_', ' ')}"
        isolate.add({"name": "the whole run", "outcome": "failed", "seconds": 0.0, "reason": reason})
    return isolate.tests


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make test-gpu", description="Run the conformance tests, one by one.")
    parser.add_argument("--driver", choices=("cuda", "sim"), default="cuda", help="NVIDIA's, or the simulated one")
    parser.add_argument("--json", type=Path, default=Path("build/test-gpu.json"), help="where to write the report")
    parser.add_argument("--limit", type=float, default=120, help="seconds that each test may take")
    parser.add_argument("-k", dest="expression", help="which tests, as for pytest")
    parser.add_argument("--on-purpose", action="store_true", help="also run tests that crash, hang and fail on purpose")
    parser.add_argument("paths", nargs="*", type=Path, help="files with tests, instead of all in tests/gpu")
    options = parser.parse_args(arguments)
    os.environ["ARENA_TEST_DRIVER"] = options.driver
    from . import describe  # after the driver was chosen, since its imports depend on that

    start = time.monotonic()
    found: dict[str, Any] = {
        "schema": SCHEMA,
        "started": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        **describe.machine(),
        **describe.driver_and_devices(options.driver),
    }
    print_machine(found)
    nothing = "error" in found["driver"] and not found["devices"] and "output" not in found["driver"]
    found["tests"] = [] if nothing else collect_and_run(options)
    counts = Counter(test["outcome"] for test in found["tests"])
    found["counts"] = {outcome: counts[outcome] for outcome in OUTCOMES}
    good = counts["passed"] + counts["skipped"] == len(found["tests"]) and "error" not in found["driver"]
    found["result"] = "no GPU" if nothing else "passed" if good else "failed"
    found["seconds"] = round(time.monotonic() - start, 1)
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(without_own_paths(json.dumps(found, indent=2)) + "\n")
    summary = ", ".join(f"{counts[outcome]} {outcome}" for outcome in OUTCOMES if counts[outcome])
    print(f"\n{summary} in {found['seconds']} s" if not nothing else "No GPU: nothing was tested.")
    if nothing:
        print("To run the tests on the simulated driver: make test-gpu DRIVER=sim")
    print(f"Written to {options.json}. Attach that file if you report what you saw.")
    return NOTHING if nothing else GOOD if good else BAD


if __name__ == "__main__":
    sys.exit(main())
