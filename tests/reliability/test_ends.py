"""How work ends that nobody ended in an orderly way. More of it: tests/arena/test_ends.py, and docs/reliability.md."""

from __future__ import annotations

import os
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
def test_the_interpreter_ends_while_streams_still_work(end: str, vmm: bool) -> None:
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


def test_a_forked_child_that_would_record_touches_no_file(tmp_path: Path) -> None:
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


def test_an_exception_in_what_is_told_the_progress_is_the_callers(tmp_path: Path, make: MakeArena) -> None:
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
def test_what_is_no_error_passes_through_a_callback(make: MakeArena, error: type[BaseException]) -> None:
    pool = make(cap="16MiB")
    held = pool.allocate(12 * MIB)

    def stop(*arguments: object) -> None:
        raise error

    pool.on_oom(stop)
    with pytest.raises(error):
        pool.allocate(8 * MIB)
    assert check(pool).blocks == 1
    pool._on_oom.clear()
    with pytest.raises(OutOfMemoryError):  # and the next request calls as ever
        pool.allocate(8 * MIB)
    held.free()
    pool.allocate(8 * MIB).free()


def test_an_error_in_an_index_or_a_stream_object_is_the_callers(make: MakeArena) -> None:
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
def test_a_device_that_loses_memory_to_another_process_is_full_and_then_is_not(
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
        again = pool.allocate(GIB)  # what the arena has is still its own
        assert again.nbytes == GIB
        again.free()
    pool.allocate(4 * GIB).free()
    assert work.holds(arena_slice(held[0]), 1)
    check(pool)


def arena_slice(buffer: arena.Buffer) -> arena.Buffer:
    """The first MiB: enough to see whether data is where it was."""
    return type("Slice", (), {"ptr": buffer.ptr, "nbytes": MIB})()  # type: ignore[no-any-return]


def test_headroom_is_kept_from_what_another_process_leaves(make: MakeArena) -> None:
    pool = make(headroom="1GiB")
    with sim.temporarily(other="6GiB"):
        with pytest.raises(OutOfMemoryError, match="headroom kept"):
            pool.allocate(2 * GIB)
        pool.allocate(GIB).free()
        check(pool)
    pool.allocate(6 * GIB).free()


SAVE = """
def show(name, call):
    try:
        print(name, "wrote", call())
    except Exception as error:
        print(name, type(error).__name__, error)
    sys.stdout.flush()
buffer = pool.allocate(1000)
timeline = arena.Timeline(pool)
timeline.sample()
with pool.record(os.path.join(sys.argv[1], "before.arena")):
    for _ in range(2000): pool.allocate(1000).free()
trace = arena.Trace.read(os.path.join(sys.argv[1], "before.arena"))
report, snapshot = pool.report(), pool.snapshot()
str(report), report._repr_html_()  # all that is needed is imported
{before}
folder = sys.argv[2]
for name in ("r.html", "r.json", "r.txt"):
    show(name, lambda: report.save(os.path.join(folder, name)))
show("s.json", lambda: snapshot.save(os.path.join(folder, "s.json")))
show("s.pickle", lambda: snapshot.to_torch(os.path.join(folder, "s.pickle")))
show("t.json", lambda: timeline.save(os.path.join(folder, "t.json")))
for name in ("t.arena", "t.trace", "t.csv"):
    show(name, lambda: trace.save(os.path.join(folder, name)))
pool.validate()
pool.allocate(5 * MIB).free()
print("still works")
"""
NAMES = ["r.html", "r.json", "r.txt", "s.json", "s.pickle", "t.json", "t.arena", "t.trace", "t.csv"]


def test_a_full_disk_is_an_error_and_leaves_no_file(tmp_path: Path) -> None:
    """By a limit of the system on the size of files, which is as good as a disk that is full."""
    limit = "import signal\nsignal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
    limit += "resource.setrlimit(resource.RLIMIT_FSIZE, (64, 64))"
    (tmp_path / "full").mkdir()
    code = START + SAVE.format(before=limit)
    done = run(code, str(tmp_path), str(tmp_path / "full"), ARENA_DRIVER="sim")
    lines = done.stdout.splitlines()
    assert (done.returncode, done.stderr, lines[-1]) == (0, "", "still works")
    for name, line in zip(NAMES, lines, strict=False):
        assert line.startswith(f"{name} OSError [Errno 27] File too large: "), line
        assert line.endswith(f"{name}'"), line
    assert list((tmp_path / "full").iterdir()) == []


def test_a_recording_on_a_disk_that_fills_up_ends_with_a_warning(tmp_path: Path) -> None:
    code = f"""{START}
import signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
recording = pool.record(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for i in range(300_000): pool.allocate(1000 + i % 7 * 512).free()
    recording.stop()
print([str(w.message) for w in caught])
pool.validate()
"""
    done = run(code, str(tmp_path / "run.arena"), ARENA_DRIVER="sim")
    assert done.returncode == 0, done.stderr
    assert "File too large" in done.stdout + done.stderr
    trace = arena.Trace.read(tmp_path / "run.arena")
    assert trace.problem != ""


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


@needs_root
def test_a_folder_without_permission_is_an_error_with_its_name(tmp_path: Path) -> None:
    """As root there is none: the program becomes nobody before it writes."""
    (tmp_path / "closed").mkdir(mode=0o755)
    tmp_path.chmod(0o755)
    done = run(
        START + SAVE.format(before="os.setuid(65534)"), str(tmp_path), str(tmp_path / "closed"), ARENA_DRIVER="sim"
    )
    lines = done.stdout.splitlines()
    assert (done.returncode, done.stderr, lines[-1]) == (0, "", "still works")
    for name, line in zip(NAMES, lines, strict=False):
        assert line.startswith(f"{name} PermissionError [Errno 13] Permission denied: "), line
        assert line.endswith(f"{name}'"), line


@needs_root
def test_files_that_may_not_be_read_are_errors_with_their_names(tmp_path: Path) -> None:
    for name in ("r.json", "run.arena"):
        (tmp_path / name).write_text("{}")
        (tmp_path / name).chmod(0o600)
    tmp_path.chmod(0o755)
    code = f"""{START}
import contextlib, io
import arena._cli
arguments = sys.argv
sys.argv = ["arena", "report", "nowhere.json"]
with contextlib.suppress(SystemExit), contextlib.redirect_stderr(io.StringIO()):
    arena._cli.main()  # all that is needed is imported: nobody may not be allowed to read that
sys.argv = arguments
os.setuid(65534)
for read in (arena.load, arena.Trace.read):
    try:
        read(sys.argv[1] + "/r.json")
    except (OSError, arena.TraceError) as error:
        print(type(error).__name__, error)
try:
    pool.record(sys.argv[1] + "/run.arena", overwrite=True)
except OSError as error:
    print(type(error).__name__, error)
sys.argv = ["arena", "report", sys.argv[1] + "/r.json"]
arena._cli.main()
"""
    done = run(code, str(tmp_path), ARENA_DRIVER="sim")
    path = tmp_path / "r.json"
    assert done.stdout.splitlines() == [
        f"PermissionError [Errno 13] Permission denied: '{path}'",
        f"TraceError {path} cannot be read: Permission denied",
        f"PermissionError [Errno 13] Permission denied: '{tmp_path / 'run.arena'}'",
    ]
    assert (done.returncode, done.stderr) == (1, f"arena: {path}: Permission denied\n")


def test_a_folder_or_a_device_in_the_place_of_a_file_is_told(make: MakeArena, tmp_path: Path) -> None:
    pool = make(cap="8MiB")
    for call in (pool.report().save, pool.snapshot().save):
        (tmp_path / "x.json").mkdir(exist_ok=True)
        with pytest.raises(UsageError, match=r"x\.json is a folder"):
            call(tmp_path / "x.json", overwrite=True)
    for read in (arena.load, arena.Trace.read):
        with pytest.raises(UsageError, match="/dev/zero is a device"):
            read("/dev/zero")
    with pytest.raises(arena.TraceError, match="Is a directory"):
        arena.Trace.read(tmp_path)


def test_streams_that_end_in_an_error_of_the_device_end_nothing_else(make: MakeArena, cu: Cu) -> None:
    """An error of work that was queued comes from any later call: it is told, and the process goes on."""
    pool = make(cap="8MiB")
    buffer = pool.allocate(MIB)
    sim.fail("cuEventRecord", "CUDA_ERROR_LAUNCH_FAILED")
    stream = cu.stream()
    buffer.free()
    with pytest.raises(arena.DriverError, match="cuEventRecord failed: CUDA_ERROR_LAUNCH_FAILED"):
        pool.allocate(8 * MIB, stream)
    assert check(pool).blocks == 0
    pool.allocate(8 * MIB, stream).free()
