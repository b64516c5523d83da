"""Recording, reading back, and replaying: what was recorded is what comes out, whatever happens to the file."""

from __future__ import annotations

import json
import os
import pickle
import random
import signal
import struct
import subprocess
import sys
import threading
import zlib
from pathlib import Path

import pytest

import arena
from arena import Trace, TraceError, UsageError, _core
from arena._cli import main
from arena._trace import container, read

from ..arena.conftest import MIB, MakeArena
from ..programs import ROOT, run
from ..simulated.cu import Cu


def busy(pool: arena.Arena, streams: list[int], steps: int, seed: int) -> list[arena.Buffer]:
    choose, live = random.Random(seed), list[arena.Buffer]()
    for step in range(steps):
        if step % 97 == 96:
            pool.trim()
        elif live and choose.random() < 0.48:
            live.pop(choose.randrange(len(live))).free()
        else:
            live.append(pool.allocate(choose.choice([10, 5000, 300_000, 3 * MIB]), choose.choice(streams)))
    return live


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


@pytest.mark.parametrize("vmm", [True, False], ids=["virtual", "plain"])
def test_a_replay_gives_the_account_of_the_run_at_every_step(
    make: MakeArena, cu: Cu, tmp_path: Path, vmm: bool
) -> None:
    pool = make(cap="96MiB", vmm=vmm, compact=True)
    streams = [0, cu.owned_stream()]
    accounts = []
    with pool.record(tmp_path / "run.arena"):
        choose, live = random.Random(3), list[arena.Buffer]()
        for _ in range(600):
            if live and choose.random() < 0.5:
                live.pop(choose.randrange(len(live))).free()
            else:
                live.append(pool.allocate(choose.choice([10, 5000, 300_000, 3 * MIB]), choose.choice(streams)))
            accounts.append(figures(pool.stats()))
    trace = Trace.read(tmp_path / "run.arena")
    other = make(cap="96MiB", vmm=vmm)
    replay = _core.Replay(trace._core, other._open, 1)
    played = []
    for event in trace:
        replay.step(1)
        if event.kind in ("allocate", "free"):
            played.append(figures(other.stats()))
    assert played == accounts
    del replay
    live.clear()


def figures(stats: arena.Stats) -> tuple[int, ...]:
    return tuple(getattr(stats, name) for name in ("requested", "live", "reserved", "stranded", "spare", "compactable"))


def test_a_replay_says_whether_where_and_why_it_does_not_fit(make: MakeArena, tmp_path: Path) -> None:
    pool = make(cap="64MiB")
    with pool.record(tmp_path / "run.arena"):
        kept = [pool.allocate(4 * MIB) for _ in range(8)]
    trace = Trace.read(tmp_path / "run.arena")
    done = trace.replay(cap="32MiB")
    assert (done.fits, done.error, done.peak_live) == (True, None, 32 * MIB)
    assert done.priced_ms is not None
    assert done.samples[-1][1].live == 32 * MIB
    told: list[tuple[int, int]] = []
    done = trace.replay(cap="20MiB", progress=lambda played, total: told.append((played, total)))
    assert not done.fits
    assert done.error is not None
    assert (done.error.verdict, done.report.verdict, done.error.requested) == ("cap reached", "cap reached", 4 * MIB)
    assert done.peak_live == 20 * MIB
    assert told[-1] == (done.events, len(trace))
    assert len(kept) == 8


@pytest.mark.parametrize("name", ["vgg", "server"])
def test_recorded_programs_replay_under_their_caps(name: str) -> None:
    trace = Trace.read(ROOT / "benchmarks/traces" / f"{name}.csv.gz")
    unbounded = trace.replay(device="sim:8GiB")
    tight = trace.replay(device="sim:8GiB", cap=unbounded.peak_live * 12 // 10, compact=True)
    assert tight.fits
    assert tight.peak_live == unbounded.peak_live
    assert not trace.replay(device="sim:8GiB", cap=unbounded.peak_live * 9 // 10, compact=True).fits


def test_a_file_that_was_cut_anywhere_is_read_up_to_its_last_whole_chunk(make: MakeArena, tmp_path: Path) -> None:
    pool = make(cap="2GiB")
    path, cut = tmp_path / "run.arena", tmp_path / "cut.arena"
    with pool.record(path):
        busy(pool, [0], 3000, 1)
    whole, data = Trace.read(path), path.read_bytes()
    counts = set()
    for length in range(max(len(data) - 1024, 200), len(data)):
        cut.write_bytes(data[:length])
        trace = Trace.read(cut)
        assert trace.problem
        counts.add(len(trace))
        assert [trace[i] for i in (0, -1) if len(trace)] == [whole[i] for i in (0, len(trace) - 1) if len(trace)]
    assert max(counts) <= len(whole)
    for length in (0, 5, 8, 15, 40):
        cut.write_bytes(data[:length])
        with pytest.raises(TraceError):
            Trace.read(cut)


@pytest.mark.parametrize("chunks", [1, 3])
def test_a_recording_that_was_cut_in_its_last_chunk_says_so_and_commands_need_some_of_it(
    make: MakeArena, tmp_path: Path, chunks: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def call(*arguments: str) -> tuple[int, str]:
        monkeypatch.setattr("sys.argv", ["arena", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        return int(ended.value.code or 0), capsys.readouterr().err

    path, records = str(tmp_path / "run.arena"), struct.pack("<QQQQ", 0, 1, 0, 0) + b"\x81\x00\x00\x05\x00"
    data = container.header({}) + container.chunk(b"EVTS", records) * chunks
    Path(path).write_bytes(data[:-3])
    trace = Trace.read(path)
    assert len(trace) == chunks - 1
    assert trace.problem.endswith(": the file ends in a chunk")
    for command in (
        ["replay", path],
        ["replay", "--compare", path, path],
        ["fit", path],
        ["convert", path, path + ".csv"],
    ):
        code, said = call(*command)
        if chunks == 1:
            assert (code, said) == (1, f"arena: {path} has no events that could be read: {trace.problem}\n")
        else:
            assert (code, said) == (0, f"arena: {path}: {trace.problem}\n")


def test_a_byte_that_was_changed_is_noticed(make: MakeArena, tmp_path: Path) -> None:
    pool = make(cap="64MiB")
    path = tmp_path / "run.arena"
    with pool.record(path):
        busy(pool, [0], 300, 1)
    data = bytearray(path.read_bytes())
    header = 16 + int.from_bytes(data[12:16], "little")
    for place in range(header + 4, len(data), 7):
        data[place] ^= 0x20
        path.write_bytes(data)
        assert Trace.read(path).problem
        data[place] ^= 0x20


@pytest.mark.parametrize("seed", range(20))
def test_records_of_nonsense_are_refused_with_the_place(seed: int) -> None:
    choose, trace, refused = random.Random(seed), _core.Trace(), 0
    for _ in range(200):
        try:
            trace.add_chunk(0, 0, choose.randbytes(choose.randrange(200)))
        except TraceError as error:
            refused += str(error).startswith("byte ")
    assert refused > 100
    for index in range(len(trace)):
        trace.event(index)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "is no trace: it is empty"),
        (b"PK\3\4 something else", "is no trace: it is neither"),
        (b"ARENATRC\x02\0\0\0\0\0\0\0", "is of version 2; this arena reads 1"),
        (b"ARENATRC\x01\0\0\0\xff\xff\xff\xff{}", "has no whole header"),
        (b"# arena-trace 1\na,1,x,0\n", "line 2: 'a,1,x,0' cannot be read"),
        (b"# arena-trace 1\na,1,5,99999999\n", "line 2"),
        (b"# arena-trace 1\na,-1,5,0\n", "line 2"),
        (b"# arena-trace 1\nq\n", "not a, f, x or s"),
        (b"# arena-trace 9\n", "its first line is not"),
        (b"\x1f\x8b broken", "cannot be unpacked"),
    ],
)
def test_a_file_that_is_no_trace_is_refused_with_the_reason(tmp_path: Path, content: bytes, text: str) -> None:
    path = tmp_path / "x"
    path.write_bytes(content)
    with pytest.raises(TraceError, match=text):
        Trace.read(path)
    with pytest.raises(TraceError, match="cannot be read"):
        Trace.read(tmp_path / "missing")


def test_a_chunk_that_unpacks_to_much_more_is_refused() -> None:
    assert container.unpack(zlib.compress(bytes(container.MOST + 1))) is None
    assert container.unpack(zlib.compress(b"x")) == b"x"


def test_a_file_that_unpacks_to_more_than_there_is_memory_for_is_not_read_on(
    make: MakeArena, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However small it is: the same bytes again and again take next to nothing."""
    pool, path = make(cap="8MiB"), tmp_path / "run.arena"
    with pool.record(path):
        for _ in range(3000):
            pool.allocate(512).free()
    whole = Trace.read(path)
    whole.save(tmp_path / "run.trace.gz")
    monkeypatch.setattr(read, "memory_left", lambda: 96 * 1000)
    trace = Trace.read(path)
    assert (len(trace), len(whole)) == (1000, 6001)
    assert trace.problem == "chunk at event 1000: the trace would take more than the 93.75 KiB of memory left"
    with pytest.raises(TraceError, match="line 1002: 'a,500,512,0' cannot be read: the trace would take more than"):
        Trace.read(tmp_path / "run.trace.gz")


@pytest.mark.parametrize(
    ("tag", "data"), [(container.STEPS, [[0, ""]] * 11), (container.LINES, {str(i): [] for i in range(11)})]
)
def test_steps_and_lines_take_no_more_memory_than_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tag: bytes, data: object
) -> None:
    path = tmp_path / "run.arena"
    path.write_bytes(container.header({}) + container.chunk(tag, json.dumps(data).encode()))
    assert "more than" not in Trace.read(path).problem
    monkeypatch.setattr(read, "memory_left", lambda: 256 * 10)
    assert "more than 10 lines and steps" in Trace.read(path).problem


def test_nothing_is_overwritten_unless_told(make: MakeArena, tmp_path: Path) -> None:
    pool, path = make(cap="8MiB"), tmp_path / "run.arena"
    path.write_text("precious")
    with pytest.raises(UsageError, match=r"run\.arena exists"):
        pool.record(path)
    assert path.read_text() == "precious"
    with pool.record(path, overwrite=True) as recording:
        pass
    recording.stop()
    assert Trace.read(path).problem == ""
    with pytest.raises(UsageError, match="there is no folder"):
        pool.record(tmp_path / "no" / "run.arena")


def test_a_second_recording_is_refused_while_one_is_under_way(make: MakeArena, tmp_path: Path) -> None:
    pool = make(cap="8MiB")
    with pool.record(tmp_path / "run.arena"):
        pool.allocate(1000).free()
        with pytest.raises(UsageError, match=r"other\.arena cannot be recorded: the arena is, to .*run\.arena; stop"):
            pool.record(tmp_path / "other.arena")
        pool.allocate(2000).free()
    assert not (tmp_path / "other.arena").exists()
    sizes = [event.size for event in Trace.read(tmp_path / "run.arena") if event.kind == "allocate"]
    assert sizes == [1000, 2000]  # the first goes on
    with pool.record(tmp_path / "other.arena"):
        pass


def test_a_recording_that_cannot_begin_leaves_no_file_and_may_be_tried_again(
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
    monkeypatch.setattr(sys, "argv", [path])  # no text, which a program may do
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
    assert f"RuntimeWarning: the recording {path} ended: [Errno 27]" in done.stderr
    trace = Trace.read(path)
    assert trace.problem
    assert len(trace) < 200_000


def test_a_file_that_cannot_be_begun_is_an_error(make: MakeArena) -> None:
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
    assert trace.problem == "the recording was not ended: the last events may be missing"
    assert len(trace) >= 4000


def test_the_end_of_the_interpreter_ends_a_recording(tmp_path: Path) -> None:
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


def test_many_threads_are_recorded_in_the_order_in_which_the_arena_served_them(make: MakeArena, tmp_path: Path) -> None:
    pool = make(cap="64MiB")

    def work() -> None:
        for _ in range(500):
            pool.allocate(1000).free()

    with pool.record(tmp_path / "run.arena"):
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
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


LOG = """Thread,Time,Action,Pointer,Size,Stream
140737353,23:59:59.999000,allocate,0x7f1000000000,1024,0
140737354,00:00:00.000500,allocate,0x7f1000000400,4096,0x55d0c0
140737353,00:00:00.001000,free,0x7f1000000000,1024,0
140737353,00:00:00.001500,allocate,0x7f1000000000,512,0
140737353,00:00:00.002000,allocate failure,(nil),99999999999,0
140737354,00:00:00.002500,free,0x7f1000000400,4096,0x55d0c0
140737354,00:00:00.003000,free,0x7f2000000000,77,0
"""


def test_rmms_log_is_read(tmp_path: Path) -> None:
    path = tmp_path / "rmm.csv"
    path.write_text(LOG)
    trace = Trace.read(path)
    kinds = [(event.kind, event.size, event.thread, event.stream, round(event.time * 1e6)) for event in trace]
    assert kinds == [
        ("allocate", 1024, 0, 0, 0),
        ("allocate", 4096, 1, 1, 1500),
        ("free", 0, 0, 0, 2000),
        ("allocate", 512, 0, 0, 2500),
        ("failure", 99999999999, 0, 0, 3000),
        ("free", 0, 1, 0, 3500),
    ]
    done = trace.replay(device="sim:1GiB")
    assert (done.fits, done.events, done.stats.live, done.peak_live) == (False, 5, 4608, 5120)  # it ended by a failure


def test_a_trace_is_written_as_rmms_log_and_read_back(make: MakeArena, cu: Cu, tmp_path: Path) -> None:
    pool = make(cap="2GiB")
    with pool.record(tmp_path / "run.arena"):
        busy(pool, [0, cu.stream()], 500, 4)
    trace = Trace.read(tmp_path / "run.arena")
    again = Trace.read(trace.save(tmp_path / "run.csv"))

    def essence(trace: Trace) -> list[tuple[str, int, int]]:
        return [(e.kind, e.size, e.stream) for e in trace if e.kind == "allocate"]

    assert essence(again) == essence(trace)
    assert again.replay(device="sim:8GiB").stats.peak_live == trace.replay(device="sim:8GiB").stats.peak_live
    with pytest.raises(UsageError, match=r"does not end with \.arena, "):
        trace.save(tmp_path / "run.txt")


@pytest.mark.parametrize(
    "line",
    ["1,12:00:00.0,allocate,0x1", "1,noon,allocate,0x10,5,0", "1,12:00:00.0,juggle,0x10,5,0", "1,12:00:00.0,free,x,5,0",
     "1,12:00:00.0,allocate,0x10,-5,0", "1,12:00:00.0,allocate,0x1ffffffffffffffffff,5,0"],
)  # fmt: skip
def test_a_line_of_a_log_that_cannot_be_read_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "rmm.csv"
    path.write_text(LOG + line + "\n")
    with pytest.raises(TraceError, match="line 9: "):
        Trace.read(path)


def test_a_recording_is_asked_for_by_the_environment(tmp_path: Path) -> None:
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
    assert "run.arena exists; give another name" in again.stderr.splitlines()[-1]


def frames(line: int) -> list[dict[str, object]]:
    return [{"filename": "/src/train.py", "line": line, "name": "step"}]


HISTORY = [
    {"action": "segment_alloc", "addr": 4096, "size": 2 * MIB, "stream": 0, "time_us": 90, "frames": []},
    {"action": "alloc", "addr": 4096, "size": 1000, "stream": 0, "time_us": 100, "frames": frames(88)},
    {"action": "alloc", "addr": 8192, "size": 2000, "stream": 77, "time_us": 150, "frames": []},
    {"action": "free_requested", "addr": 4096, "size": 1000, "stream": 0, "time_us": 200, "frames": []},
    {"action": "free_completed", "addr": 4096, "size": 1000, "stream": 0, "time_us": 210, "frames": []},
    {"action": "oom", "addr": 0, "size": 1 << 40, "stream": 0, "time_us": 300, "frames": frames(99)},
]


def test_the_history_of_a_snapshot_of_pytorch_is_read(tmp_path: Path) -> None:
    path = tmp_path / "snapshot.pickle"
    data = {"segments": [], "device_traces": [[], HISTORY], "allocator_settings": {}, "external_annotations": []}
    path.write_bytes(pickle.dumps(data))
    trace = Trace.read(path)
    assert [(e.kind, e.size, e.stream, round(e.time * 1e6)) for e in trace] == [
        ("reserved", 2 * MIB, 0, 0),
        ("allocate", 1000, 0, 10),
        ("allocate", 2000, 1, 60),
        ("free", 0, 0, 110),
        ("failure", 1 << 40, 0, 210),
    ]
    assert trace.lines[trace[1].line] == (("/src/train.py", 88, "step"),)
    assert trace.replay(device="sim:1GiB").peak_live == 1024 + 2048


class Evil:
    def __reduce__(self) -> object:
        return os.system, ("echo owned > /tmp/arena-owned",)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (Evil(), "only plain data is read from a pickle"),
        ({"device_traces": [[Evil()]]}, "only plain data is read from a pickle"),
        ([1, 2], "is no snapshot of PyTorch"),
        ({"segments": []}, "it has no device_traces"),
        ({"device_traces": [[], []]}, "has no history"),
        ({"device_traces": [[{"action": "alloc"}]]}, "entry 0 of device 0 cannot be read"),
        ({"device_traces": [[5]]}, "entry 0 of device 0"),
        ({"device_traces": [[{"action": "alloc", "addr": 1, "size": -5}]]}, "entry 0 of device 0"),
    ],
)
def test_a_pickle_is_read_as_plain_data_only(tmp_path: Path, data: object, text: str) -> None:
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps(data))
    with pytest.raises(TraceError, match=text):
        Trace.read(path)
    assert not Path("/tmp/arena-owned").exists()
    path.write_bytes(pickle.dumps(data)[:-2])
    with pytest.raises(TraceError):
        Trace.read(path)
