"""`make test-gpu` completes its table and its file, whatever a test does."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from arena import sim

from ..programs import ROOT, clean_environment, run

MARKER = b"\0cudasimError\0"  # the function by which arena recognises the simulated driver


def make_test_gpu(file: Path, *flags: str, driver: str = "", **environment: str) -> tuple[int, str, dict[str, Any]]:
    """What `make test-gpu` returns, prints and writes, with what is installed already."""
    venv = Path(sys.prefix)
    command = ["make", "test-gpu", f"VENV={venv}", *(["DRIVER=" + driver] if driver else [])]
    command += [f"--old-file={venv / name}" for name in (".package", ".test")]
    command += ["TEST_GPU_FLAGS=" + " ".join([f"--json {file}", *flags])]
    variables = {name: value for name, value in clean_environment().items() if not name.startswith("MAKE")}
    done = subprocess.run(
        command, cwd=ROOT, env={**variables, **environment}, capture_output=True, text=True, timeout=250
    )
    assert file.exists(), done.stderr
    return done.returncode, done.stdout, json.loads(file.read_text())


def passing_for_nvidias(folder: Path) -> dict[str, str]:
    """An environment in which the simulated driver has NVIDIA's name, and does not call itself simulated."""
    library = Path(sim.library()).read_bytes()
    assert library.count(MARKER) == 1
    (folder / "libcuda.so.1").write_bytes(library.replace(MARKER, MARKER.upper()))
    return {"LD_LIBRARY_PATH": str(folder)}


@pytest.mark.slow
def test_all_tests_run_on_a_library_that_passes_for_nvidias(tmp_path: Path) -> None:
    """So they are known to run on a user's machine; here, one with a single device and a driver that stalls."""
    code, printed, found = make_test_gpu(
        tmp_path / "report.json",
        "-k 'not cupys_arrays'",  # CuPy also needs NVIDIA's runtime, which recognises the real driver
        **passing_for_nvidias(tmp_path),
        CUDASIM_SYNC_UNMAP="1",
        CUDASIM_DEVICES="1",
    )
    outcomes = {test["name"]: test["outcome"] for test in found["tests"]}
    reasons = {test["name"]: test.get("reason") for test in found["tests"]}
    assert (code, found["result"]) == (0, "passed"), printed
    assert (found["driver"]["path"], found["driver"]["simulated"]) == (str(tmp_path / "libcuda.so.1"), False)
    skipped = {name for name, outcome in outcomes.items() if outcome == "skipped"}
    assert {name for name in outcomes if name.startswith("test_devices.py")} <= skipped
    assert {reasons[name] for name in skipped} == {"there is only one device"}
    assert found["counts"]["passed"] == len(outcomes) - len(skipped) >= 44
    notes = {test["name"]: test.get("notes", {}) for test in found["tests"]}
    stalled = notes["test_memory.py::test_whether_mapping_waits_for_other_streams"]["waited for the busy stream"]
    assert stalled == "cuMemSetAccess, cuMemUnmap"


@pytest.fixture(scope="module")
def misbehaving(tmp_path_factory: pytest.TempPathFactory) -> tuple[int, str, dict[str, Any]]:
    file = tmp_path_factory.mktemp("report") / "new/report.json"
    return make_test_gpu(file, "--on-purpose -k 'not thousands and not stream_to_stream'", driver="sim")


def test_every_behaviour_of_a_test_has_an_outcome(misbehaving: tuple[int, str, dict[str, Any]]) -> None:
    code, _, found = misbehaving
    assert (code, found["result"]) == (2, "failed")  # make's own code for a failed command
    outcomes = [
        (test["name"].removeprefix("on_purpose.py::test_that_"), test["outcome"], test.get("reason", "").split("\n")[0])
        for test in found["tests"]
        if test["name"].startswith("on_purpose.py")
    ]
    assert outcomes == [
        ("passes_with_a_note", "passed", ""),
        ("crashes", "crashed", "SIGSEGV"),
        ("aborts", "crashed", "SIGABRT"),
        ("ends_the_process", "crashed", "exit code 3"),
        ("ends_the_process_as_if_all_were_well", "crashed", "exit code 0, before the end of the test"),
        ("fails_and_crashes_at_the_end", "crashed", "SIGABRT, in the teardown of the test"),
        ("crashes_at_exit", "crashed", "SIGABRT, after the end of the test"),
        ("hangs", "timed out", "killed after 2 s"),
        ("fails", "failed", "AssertionError: as it should"),
        ("fails_at_the_end", "failed", outcomes[9][2]),
        ("is_skipped", "skipped", "because it likes to"),
    ]
    others = {test["name"]: test["outcome"] for test in found["tests"] if not test["name"].startswith("on_purpose.py")}
    assert len(others) > 45
    assert {name for name, outcome in others.items() if outcome != "passed"} == set()
    assert found["counts"] == {"passed": len(others) + 1, "skipped": 1, "failed": 2, "crashed": 6, "timed out": 1}
    tests = {test["name"].removeprefix("on_purpose.py::test_that_"): test for test in found["tests"]}
    assert tests["passes_with_a_note"]["notes"] == {"measured": 42}
    assert "about to read address 8" in tests["crashes"]["output"]
    assert "in test_that_crashes" in tests["crashes"]["output"]  # the traceback of faulthandler
    assert (tests["crashes"]["signal"], tests["ends_the_process"]["exit_code"]) == ("SIGSEGV", 3)
    assert "assert 2 == 3" in tests["fails"]["output"]
    assert "in test_that_hangs" in tests["hangs"]["output"]
    assert "before the crash" in tests["fails_and_crashes_at_the_end"]["output"]
    assert str(ROOT) not in json.dumps(found)
    assert "ArgumentError" in tests["fails_at_the_end"]["output"]


def test_processes_started_by_a_test_end_with_it(misbehaving: tuple[int, str, dict[str, Any]]) -> None:
    hung = next(test for test in misbehaving[2]["tests"] if test["outcome"] == "timed out")
    process = int(hung["output"].split("started ")[1].split()[0])
    status = Path(f"/proc/{process}/status")
    assert not status.exists() or "Z (zombie)" in status.read_text()


def test_the_table_and_the_file_describe_the_machine(misbehaving: tuple[int, str, dict[str, Any]]) -> None:
    _, printed, found = misbehaving
    rows = printed.splitlines()
    assert any(row.startswith("crashed ") and row.endswith("on_purpose.py::test_that_crashes") for row in rows)
    assert " passed, 1 skipped, 2 failed, 6 crashed, 1 timed out in " in printed
    assert "peer access: 0-1, 1-0" in rows
    assert found["schema"] == 1
    assert (found["driver"]["choice"], found["driver"]["simulated"], found["driver"]["version"]) == ("sim", True, 13000)
    assert [device["total_memory"] for device in found["devices"]] == [8 << 30] * 2
    assert found["devices"][0]["uuid"] != found["devices"][1]["uuid"]
    assert found["devices"][1]["virtual_memory"] == found["devices"][1]["rdma_with_virtual_memory"] == 1
    assert found["peers"] == [[0, 1], [1, 0]]
    assert [device["free_memory"] for device in found["devices"]] == [8 << 30] * 2
    assert found["environment"]["ARENA_TEST_DRIVER"] == "sim"
    assert {"arena", "python", "packages", "system", "started", "seconds"} <= set(found)


def test_without_a_gpu_the_run_says_so_and_does_not_succeed(tmp_path: Path) -> None:
    (tmp_path / "libcuda.so.1").write_bytes(b"no library")  # or this machine's own would be found
    code, printed, found = make_test_gpu(tmp_path / "report.json", LD_LIBRARY_PATH=str(tmp_path))
    assert (code, found["result"], found["tests"]) == (2, "no GPU", [])
    assert "could not be opened" in found["driver"]["error"]
    assert "No GPU: nothing was tested." in printed


CRASHES = """
import os, sys
from tests.gpu import describe, run
asked = describe._questions
describe._questions = lambda cu, number: {**asked(cu, number), "the end": os.abort}
sys.exit(run.main(sys.argv[1:]))
"""


def test_a_driver_that_crashes_when_queried_for_devices_is_still_tested(tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    arguments = ["--driver=sim", f"--json={file}", "-kdescribed"]
    done = run(CRASHES, *arguments, ARENA_TEST_DRIVER="sim")
    found = json.loads(file.read_text())
    assert (done.returncode, found["result"]) == (1, "failed")
    assert found["driver"]["error"] == "describing the devices ended with SIGABRT"
    assert [device["name"] for device in found["devices"]] == ["Simulated CUDA device"]
    assert [test["outcome"] for test in found["tests"]] == ["passed"]


def run_here(*arguments: str) -> subprocess.CompletedProcess[str]:
    return run("import sys; from tests.gpu import run; sys.exit(run.main(sys.argv[1:]))", "--driver=sim", *arguments)


def test_selecting_no_tests_is_no_success(tmp_path: Path) -> None:
    done = run_here(f"--json={tmp_path / 'report.json'}", "-knothing_of_that_name")
    assert (done.returncode, done.stderr) == (1, "")
    assert "pytest: no tests collected" in done.stdout


def test_a_file_that_cannot_be_imported_is_a_failure_and_the_others_run(tmp_path: Path) -> None:
    (tmp_path / "test_broken.py").write_text("import nothing_of_that_name\n")
    done = run_here(
        f"--json={tmp_path / 'report.json'}", "-k", "described or broken", "tests/gpu", f"{tmp_path}/test_broken.py"
    )
    found = json.loads((tmp_path / "report.json").read_text())
    assert [test["outcome"] for test in found["tests"]] == ["failed", "passed"], done.stdout + done.stderr
    assert "No module named 'nothing_of_that_name'" in found["tests"][0]["reason"]


def test_ctrl_c_ends_the_test_and_the_run_and_writes_the_file(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.gpu.run", "--driver=sim", "--json", str(tmp_path / "report.json")]
    process = subprocess.Popen(
        [*command, "tests/gpu/on_purpose.py", "-k", "note or hangs"],
        cwd=ROOT,
        env=clean_environment(),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    for line in process.stdout:
        if "measured: 42" in line:
            break
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    rest = process.communicate(timeout=60)[0]
    found = json.loads((tmp_path / "report.json").read_text())
    assert (process.returncode, [test["outcome"] for test in found["tests"]]) == (1, ["passed", "failed"])
    assert "pytest: interrupted" in rest
