"""Interrupted work: exits, forks, exceptions in callbacks, device errors, and memory taken by another process.

See also tests/arena/test_lifetimes.py and docs/reliability.md.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import arena
from arena import OutOfMemoryError, UsageError, sim

from .. import forked
from ..arena.conftest import GIB, MIB, MakeArena, Work, check
from ..programs import run
from ..simulated.cu import Cu

START = """
import os, resource, sys, threading, time, warnings
import arena
from arena import sim
from tests.simulated.cu import Cu, MIB
cu = Cu()
cu.start()
pool = arena.Arena(cap="64MiB")
"""


@pytest.mark.parametrize("end", ["", "sys.exit(0)", "pool.close()", "del buffers", "raise SystemExit(0)"])
@pytest.mark.parametrize("vmm", [True, False], ids=["virtual", "plain"])
def test_the_interpreter_exits_while_streams_still_work(end: str, vmm: bool) -> None:
    code = f"""{START}
pool = arena.Arena(cap="64MiB", vmm={vmm})
sim.configure(delay=100_000, races=True)
streams = [cu.stream(), cu.stream()]
buffers = [pool.allocate(3 * MIB, stream) for stream in streams * 3]
for buffer, stream in zip(buffers, streams * 3):
    cu.ok("cuMemsetD8Async", buffer.ptr, 1, buffer.nbytes, stream)
buffers[0].record_stream(streams[1])
buffers.pop(0).free()
assert sim.races() == []
{end}
"""
    done = forked.run(code, imported=("arena", "tests.simulated.cu"), ARENA_DRIVER="sim")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("child", ["os._exit(0)", "sys.exit(0)", "pool.close(); recording.stop(); os._exit(0)"])
def test_a_fork_in_the_middle_of_work_leaves_the_parents_recording_whole(child: str, tmp_path: Path) -> None:
    code = f"""{START}
recording = pool.record(sys.argv[1])
stream = cu.stream()
sim.configure(delay=2000)
stop = threading.Event()
def work():
    while not stop.is_set():
        pool.allocate(1000, stream).free()
threads = [threading.Thread(target=work) for _ in range(2)]
for thread in threads: thread.start()
for _ in range(5):
    buffer = pool.allocate(MIB, stream)
    cu.ok("cuMemsetD8Async", buffer.ptr, 1, buffer.nbytes, stream)
    process = os.fork()
    if process == 0:
        {child}
    assert os.waitpid(process, 0)[1] == 0
stop.set()
for thread in threads: thread.join()
pool.validate()
recording.stop()
"""
    done = run(code, str(tmp_path / "run.arena"), timeout=60, ARENA_DRIVER="sim")
    assert (done.returncode, done.stderr) == (0, "")
    trace = arena.Trace.read(tmp_path / "run.arena")
    assert trace.problem == ""
    assert sum(event.size == MIB for event in trace) >= 5
    assert trace.replay(cap="64MiB").fits


def test_a_forked_child_that_tries_to_record_touches_no_file(tmp_path: Path) -> None:
    (tmp_path / "there.arena").write_text("precious")
    code = f"""{START}
process = os.fork()
if process == 0:
    for name in ("there.arena", "new.arena"):
        try:
            pool.record(os.path.join(sys.argv[1], name), overwrite=True)
        except arena.UsageError as error:
            print(str(error)[:48], flush=True)
    os._exit(0)
assert os.waitpid(process, 0)[1] == 0
"""
    done = run(code, str(tmp_path), ARENA_DRIVER="sim")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "this arena was created before the process was fo\n" * 2
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("there.arena", "precious")]


def test_an_exception_in_a_progress_callback_reaches_the_caller(tmp_path: Path, make: MakeArena) -> None:
    pool = make(cap="64MiB")
    with pool.record(tmp_path / "run.arena"):
        pool.allocate(5 * MIB).free()
    trace = arena.Trace.read(tmp_path / "run.arena")

    def fail(*arguments: object) -> None:
        raise RuntimeError("in a callback")

    before = sim.census()
    with pytest.raises(RuntimeError, match="in a callback"):
        arena.fit(trace, progress=fail)
    with pytest.raises(RuntimeError, match="in a callback"):
        trace.replay(progress=fail, device=0)
    after = sim.census()
    assert (after.handles, after.reservations, after.events) == (before.handles, before.reservations, before.events)
    assert trace.replay(device=0).fits


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_keyboard_interrupt_and_exit_pass_through_a_callback(make: MakeArena, error: type[BaseException]) -> None:
    pool = make(cap="16MiB")
    held = pool.allocate(12 * MIB)

    def stop(*arguments: object) -> None:
        raise error

    pool.on_oom(stop)
    with pytest.raises(error):
        pool.allocate(8 * MIB)
    assert check(pool).blocks == 1
    pool._on_oom.clear()
    with pytest.raises(OutOfMemoryError):  # the next request calls it as usual
        pool.allocate(8 * MIB)
    held.free()
    pool.allocate(8 * MIB).free()


def test_an_error_in_an_index_or_a_stream_object_reaches_the_caller(make: MakeArena) -> None:
    pool = make(cap="8MiB")

    class Broken:
        def __index__(self) -> int:
            raise RuntimeError("in __index__")

    class BrokenStream:
        def __cuda_stream__(self) -> tuple[int, int]:
            raise RuntimeError("in __cuda_stream__")

    class WrongStream:
        def __init__(self, answer: object) -> None:
            self.answer = answer

        def __cuda_stream__(self) -> object:
            return self.answer

    with pytest.raises(RuntimeError, match="in __index__"):
        pool.allocate(Broken())  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="in __cuda_stream__"):
        pool.allocate(1000, BrokenStream())
    for answer in ({}, (), (0,), (0, -1), 5, None):
        with pytest.raises(UsageError, match="is not a stream"):
            pool.allocate(1000, WrongStream(answer))
    assert check(pool).blocks == 0


@pytest.mark.parametrize("vmm", [True, False], ids=["virtual", "plain"])
def test_a_device_that_loses_memory_to_another_process_is_full_until_it_comes_back(
    make: MakeArena, work: Work, vmm: bool
) -> None:
    pool = make(vmm=vmm)
    held = [pool.allocate(GIB) for _ in range(2)]
    for value, buffer in enumerate(held, 1):
        work.fill(arena_slice(buffer), value)
    with sim.temporarily(other=8 * GIB - sim.used() - 64 * MIB):  # most of what is left
        with pytest.raises(OutOfMemoryError, match="device full") as caught:
            pool.allocate(GIB)
        assert "free memory that is in use outside this arena" in str(caught.value)
        assert pool.allocate(caught.value.largest).nbytes == caught.value.largest
        check(pool)
        held.pop().free()
        again = pool.allocate(GIB)  # the arena keeps what it has
        assert again.nbytes == GIB
        again.free()
    pool.allocate(4 * GIB).free()
    assert work.holds(arena_slice(held[0]), 1)
    check(pool)


def arena_slice(buffer: arena.Buffer) -> arena.Buffer:
    """The first MiB: enough to see whether the data is intact."""
    return type("Slice", (), {"ptr": buffer.ptr, "nbytes": MIB})()  # type: ignore[no-any-return]


def test_headroom_is_kept_out_of_what_another_process_leaves(make: MakeArena) -> None:
    pool = make(headroom="1GiB")
    with sim.temporarily(other="6GiB"):
        with pytest.raises(OutOfMemoryError, match="headroom kept"):
            pool.allocate(2 * GIB)
        pool.allocate(GIB).free()
        check(pool)
    pool.allocate(6 * GIB).free()


def test_an_error_of_queued_work_is_reported_and_breaks_nothing_else(make: MakeArena, cu: Cu) -> None:
    """Any later call may return an error of queued work. It is raised, and the process continues."""
    pool = make(cap="8MiB")
    buffer = pool.allocate(MIB)
    sim.fail("cuEventRecord", "CUDA_ERROR_LAUNCH_FAILED")
    stream = cu.stream()
    buffer.free()
    with pytest.raises(arena.DriverError, match="cuEventRecord failed: CUDA_ERROR_LAUNCH_FAILED"):
        pool.allocate(8 * MIB, stream)
    assert check(pool).blocks == 0
    pool.allocate(8 * MIB, stream).free()
