"""Recording: every event is read back, and a recording ends cleanly however the program or the disk does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import arena
from arena import Trace, UsageError

from ..arena.conftest import MIB, MakeArena
from ..programs import ROOT, run
from ..simulated.cu import Cu
from ..threads import run_together


def test_every_event_is_recorded_and_read_back(make: MakeArena, cu: Cu, tmp_path: Path) -> None:
    pool = make(cap="64MiB")
    stream = cu.stream()
    before = pool.allocate(700)
    with pool.record(tmp_path / "run.arena") as recording:
        arena.trace_lines(True)
        buffer = pool.allocate(1000, stream)
        arena.trace_lines(False)
        buffer.record_stream(0)
        with pool.scope("load", budget="1MiB"), pytest.raises(arena.OutOfMemoryError):
            pool.allocate(2 * MIB)
        buffer.free()
        before.free()
        pool.reserve("8MiB")
        pool.set_cap("32MiB")
        pool.trim()
    trace = Trace.read(tmp_path / "run.arena")
    events = list(trace)
    assert trace.problem == ""
    assert len(trace) == recording.events == len(events)
    kinds = [event.kind for event in events if event.kind != "reserved"]
    assert kinds == [
        *("allocate", "allocate", "record_stream", "scope_begin", "failure", "scope_end"),
        *("free", "free", "reserve", "set_cap", "trim"),
    ]
    assert (events[0].size, events[0].block) == (700, 0)
    mine = next(event for event in events if event.size == 1000)
    assert [line.file for line in trace.lines[mine.line]] == [__file__]
    assert trace._core.handle_of(mine.stream) == stream
    assert trace.scope_name(0) == "load"
    times = [event.time for event in events]
    assert times == sorted(times)
    assert trace.facts["device"]["simulated"]


def test_nothing_is_overwritten_unless_requested(make: MakeArena, tmp_path: Path) -> None:
    pool, path = make(cap="8MiB"), tmp_path / "run.arena"
    path.write_text("precious")
    with pytest.raises(UsageError, match=r"run\.arena already exists"):
        pool.record(path)
    assert path.read_text() == "precious"
    with pool.record(path, overwrite=True) as recording:
        pass
    recording.stop()
    assert Trace.read(path).problem == ""
    with pytest.raises(UsageError, match=r"the folder .* does not exist"):
        pool.record(tmp_path / "no" / "run.arena")


def test_a_second_recording_is_refused_while_one_is_running(make: MakeArena, tmp_path: Path) -> None:
    pool = make(cap="8MiB")
    with pool.record(tmp_path / "run.arena"):
        pool.allocate(1000).free()
        with pytest.raises(
            UsageError,
            match=r"other\.arena cannot be recorded: the arena is already being recorded to .*run\.arena; stop",
        ):
            pool.record(tmp_path / "other.arena")
        pool.allocate(2000).free()
    assert not (tmp_path / "other.arena").exists()
    sizes = [event.size for event in Trace.read(tmp_path / "run.arena") if event.kind == "allocate"]
    assert sizes == [1000, 2000]  # the first one continues
    with pool.record(tmp_path / "other.arena"):
        pass


def test_a_recording_that_cannot_start_leaves_no_file_and_may_be_tried_again(
    make: MakeArena, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_thread(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    pool, path = make(cap="8MiB"), tmp_path / "run.arena"
    with monkeypatch.context() as without_threads:
        without_threads.setattr(threading.Thread, "start", no_thread)
        with pytest.raises(RuntimeError, match="new thread"):
            pool.record(path)
        with pytest.raises(RuntimeError, match="new thread"), arena.Timeline(pool, interval=1):
            pass
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(sys, "argv", [path])  # not a text, as some programs do
    with pool.record(path):
        pass
    assert Trace.read(path).facts["program"] == str(path)


def test_a_full_disk_ends_the_recording_and_not_the_program(tmp_path: Path) -> None:
    path = tmp_path / "run.arena"
    code = f"""
import random, resource, signal
import arena
pool = arena.Arena(device="sim:1GiB")
first = pool.allocate(1000)  # the simulated device's own memory is there now
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
recording = pool.record({str(path)!r})
for _ in range(100_000):
    pool.allocate(random.randrange(100_000)).free()
recording.stop()
print(pool.stats().blocks)
"""
    done = run(code, ARENA_DRIVER="sim")
    assert (done.stdout, done.returncode) == ("1\n", 0)
    assert f"RuntimeWarning: the recording {path} stopped: [Errno 27]" in done.stderr
    trace = Trace.read(path)
    assert trace.problem
    assert len(trace) < 200_000


def test_a_file_that_cannot_be_written_to_is_an_error(make: MakeArena) -> None:
    with pytest.raises(arena.ArenaError):
        make(cap="8MiB").record("/dev/full", overwrite=True)


def test_a_killed_process_leaves_a_trace_that_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "run.arena"
    code = f"""
import sys, time
import arena
pool = arena.Arena(device="sim:1GiB")
recording = pool.record({str(path)!r})
for _ in range(2000):
    pool.allocate(1000).free()
time.sleep(1.5)
print("ready", flush=True)
time.sleep(60)
"""
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, cwd=ROOT)
    assert child.stdout is not None
    child.stdout.readline()
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    child.stdout.close()
    trace = Trace.read(path)
    assert trace.problem == "the recording has no end: the last events may be missing"
    assert len(trace) >= 4000


def test_interpreter_exit_completes_a_recording(tmp_path: Path) -> None:
    path = tmp_path / "run.arena"
    code = f"""
import arena
pool = arena.Arena(device="sim:1GiB")
recording = pool.record({str(path)!r})
buffers = [pool.allocate(1000) for _ in range(10)]
"""
    done = run(code, ARENA_DRIVER="sim")
    assert (done.returncode, done.stderr) == (0, "")
    assert Trace.read(path).problem == ""
    assert sum(event.kind == "allocate" for event in Trace.read(path)) == 10


def test_several_threads_are_recorded_in_the_order_in_which_the_arena_served_them(
    make: MakeArena, tmp_path: Path
) -> None:
    pool = make(cap="64MiB")

    def work() -> None:
        for _ in range(500):
            pool.allocate(1000).free()

    with pool.record(tmp_path / "run.arena"):
        run_together(*[work] * 4)
    trace = Trace.read(tmp_path / "run.arena")
    live = set()
    for event in trace:
        if event.kind == "allocate":
            live.add(event.block)
        elif event.kind == "free":
            live.remove(event.block)
    assert live == set()
    assert len({event.thread for event in trace}) >= 4
    assert sum(event.kind == "allocate" for event in trace) == 2000


def test_the_environment_can_start_a_recording(tmp_path: Path) -> None:
    code = """
import arena
pools = [arena.Arena(device="sim:1GiB") for _ in range(2)]
buffers = [pool.allocate(1000) for pool in pools]
pools[0].close()
"""
    done = run(code, ARENA_DRIVER="sim", ARENA_RECORD=str(tmp_path / "run.arena"))
    assert (done.returncode, done.stderr) == (0, "")
    for name in ("run.arena", "run-2.arena"):
        assert sum(event.kind == "allocate" for event in Trace.read(tmp_path / name)) == 1
        assert Trace.read(tmp_path / name).problem == ""
    again = run(code, ARENA_DRIVER="sim", ARENA_RECORD=str(tmp_path / "run.arena"))
    assert "run.arena already exists; choose another name" in again.stderr.splitlines()[-1]
