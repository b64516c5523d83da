"""``arena run --report --record``: which files it writes, when, and what it never overwrites."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from arena import Trace

from .command import ALLOCATES, facts_of, run_arena

MIB = 1 << 20


FAILS = """
import cupy, sys
kept = cupy.empty(40 << 20, dtype="u1")
def step():
    mine = cupy.empty(10 << 20, dtype="u1")
    return cupy.empty(30 << 20, dtype="u1")
if len(sys.argv) > 1:
    try:
        step()
    except MemoryError:
        del kept
else:
    step()
"""


@pytest.mark.parametrize("caught", [False, True])
def test_the_report_shows_the_moment_when_a_request_failed(script: Any, tmp_path: Path, caught: bool) -> None:
    path = tmp_path / "out.json"
    arguments = ("caught",) if caught else ()
    done = script(FAILS, *arguments, options=("--cap", "64MiB", "--lines", "--report", path))
    report = json.loads(path.read_text())
    assert done.returncode == (0 if caught else 1)
    assert (report["verdict"], report["request"], report["account"]["requested"]) == (
        "cap reached",
        30 * MIB,
        50 * MIB,
    )
    assert "program.py:5 in step" in {holder["name"] for holder in report["lines"]}
    assert f"wrote {path}: the report of the moment when the last request failed" in done.stderr
    # It is written before the error is shown, and the error says where it is.
    assert (f"Full report: {path}" in done.stderr) is not caught


def test_a_program_that_fails_often_leaves_the_report_of_the_last_failure(script: Any, tmp_path: Path) -> None:
    code = """
import cupy
for size in range(70, 100):
    try:
        cupy.empty(size << 20, dtype="u1")
    except MemoryError:
        pass
"""
    path = tmp_path / "out.json"
    facts = facts_of(script(code, options=("--cap", "64MiB", "--report", path, "--json")))
    assert json.loads(path.read_text())["request"] == 99 * MIB
    assert (facts["failures"], facts["reports"], facts["report_of"]) == (30, [str(path)], "failure")


def test_threads_that_fail_at_once_leave_one_report(script: Any, tmp_path: Path) -> None:
    code = """
import threading, cupy
together = threading.Barrier(4)
def work():
    together.wait()
    try:
        cupy.empty(70 << 20, dtype="u1")
    except MemoryError:
        pass
threads = [threading.Thread(target=work) for _ in range(4)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
"""
    facts = facts_of(script(code, options=("--cap", "64MiB", "--report", tmp_path / "out.html", "--json")))
    assert (facts["failures"], facts["problems"], len(facts["reports"])) == (4, [], 1)


def test_the_report_shows_what_is_live_at_the_end_even_if_the_program_changes_its_folder(
    script: Any, tmp_path: Path
) -> None:
    path = tmp_path / "out.json"
    code = f"import os; os.chdir('/')\n{ALLOCATES}"
    done = script(code, options=("--report", path))
    assert json.loads(path.read_text())["end"]["account"]["requested"] == 3 * MIB
    assert f"wrote {path}: the report of the peak\n" in done.stderr
    assert done.stderr.splitlines()[-1] == f"Next: arena report {path} --save {path.with_suffix('.html')}"


def test_every_arena_gets_a_report_and_a_recording(script: Any, tmp_path: Path) -> None:
    (tmp_path / "out-2.txt").write_text("mine")
    (tmp_path / "run-2.arena").write_text("mine")
    code = "import arena\npools = [arena.Arena(cap=f'{n}MiB') for n in (10, 20)]\n[p.allocate(1000) for p in pools]"
    options = ("--report", tmp_path / "out.txt", "--record", tmp_path / "run.arena")
    facts = facts_of(script(code, options=(*options, "--json")))
    assert [Path(name).name for name in facts["reports"]] == ["out.txt", "out-3.txt"]
    assert "of a cap of 20 MiB" in (tmp_path / "out-3.txt").read_text()
    assert [Path(made["path"]).name for made in facts["recordings"]] == ["run.arena", "run-3.arena"]
    assert (tmp_path / "out-2.txt").read_text() == (tmp_path / "run-2.arena").read_text() == "mine"


def test_a_run_is_recorded_and_replays(script: Any, tmp_path: Path) -> None:
    path = tmp_path / "run.arena"
    done = script(ALLOCATES, options=("--record", path))
    trace = Trace.read(path)
    assert [event.kind for event in trace if event.kind != "reserved"] == ["allocate", "free", "allocate"]
    assert trace.problem == ""
    assert trace.facts["program"] == str(tmp_path / "program.py")
    assert f"wrote {path}: {len(trace)} events" in done.stderr
    words = done.stderr.splitlines()[-1].removeprefix("Next: arena ").split()
    assert run_arena(*words).returncode == 0


def test_a_recording_that_ends_early_is_reported_at_the_end(script: Any, tmp_path: Path) -> None:
    code = """
import resource, signal, arena
pool = arena.default_arena()
kept = pool.allocate(1000)  # the simulated device's own memory is there now
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
for i in range(100_000):
    pool.allocate(i % 100 << 10).free()
"""
    path = tmp_path / "run.arena"
    (problem,) = facts_of(script(code, options=("--record", path, "--json")))["problems"]
    assert problem == f"{path} is incomplete: [Errno 27] File too large"
    path.unlink()
    assert f"arena: {problem}\n" in script(code, options=("--record", path)).stderr


@pytest.mark.parametrize("option", ["--report", "--record"])
def test_an_existing_file_is_refused_before_the_program_starts(script: Any, tmp_path: Path, option: str) -> None:
    path = tmp_path / "out.txt"
    path.write_text("mine")
    done = script("print('began')", options=(option, path))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"arena: {path} already exists; choose another name, or pass --force\n"
    assert path.read_text() == "mine"
    assert script(ALLOCATES, options=(option, path, "--force")).returncode == 0
    assert path.read_bytes() != b"mine"


def test_a_recording_includes_exit_functions_registered_before_the_arena_was_made(script: Any, tmp_path: Path) -> None:
    code = """
import atexit
def last():
    kept.clear()
    pool.allocate(7 << 20).free()
atexit.register(last)
import arena
pool = arena.Arena()
kept = [pool.allocate(1 << 20)]
"""
    path = tmp_path / "run.arena"
    facts = facts_of(script(code, options=("--record", path, "--json")))
    trace = Trace.read(path)
    assert trace.problem == ""
    assert [(event.kind, event.size >> 20) for event in trace if event.kind in ("allocate", "free")] == [
        ("allocate", 1),
        ("free", 0),
        ("allocate", 7),
        ("free", 0),
    ]
    assert facts["recordings"] == [{"path": str(path), "events": len(trace)}]
    assert facts["problems"] == []


def test_a_program_that_requests_no_memory_says_which_files_were_not_written_and_why(
    script: Any, tmp_path: Path
) -> None:
    options = ("--record", tmp_path / "run.arena", "--report", tmp_path / "out.html")
    done = script("print('done')", options=options)
    assert (done.returncode, done.stdout) == (0, "done\n")
    said = done.stderr.splitlines()
    assert said[0].startswith(
        "arena: the program allocated no GPU memory that arena can see: it imported no framework that "
    )
    assert said[1:3] == [
        f"arena: {tmp_path / 'run.arena'} was not written: there was nothing to record",
        f"arena: {tmp_path / 'out.html'} was not written: there was nothing to report",
    ]
    assert said[3].startswith("Next: make sure that the program allocates memory in this process")
    imported = script("import cupy").stderr
    assert imported.startswith("arena: the program allocated no GPU memory: it imported CuPy, but created no array\n")


@pytest.mark.parametrize("command", ["fit", "replay"])
def test_a_recording_without_allocations_is_not_said_to_fit(script: Any, tmp_path: Path, command: str) -> None:
    path = tmp_path / "run.arena"
    made = script("import arena; pool = arena.Arena(device='sim:1GiB')", options=("--record", path))
    assert made.stderr.splitlines()[-1].startswith("Next: make sure that the program allocates memory")
    done = run_arena(command, path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"arena: {path} has no allocations: the recorded arena was not used. ")
