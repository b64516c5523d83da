"""Every format, there and back, event by event. Only what a format cannot express is lost."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import pickle
import random
import struct
from pathlib import Path

import pytest

import arena
from arena import Trace, TraceError, UsageError
from arena._trace import container
from arena._trace.read import KINDS

from ..arena.conftest import MIB, MakeArena
from ..programs import ROOT
from ..simulated.cu import Cu
from ..threads import run_together
from .samples import raw, same, snapshot

NAMES = ("pipeline", "vgg")


@pytest.fixture
def recorded(make: MakeArena, cu: Cu, tmp_path: Path) -> Trace:
    """A trace with events of every kind, from several threads, streams, lines and nested scopes."""
    pool, choose = make(cap="96MiB", compact=True), random.Random(5)
    streams = [0, cu.stream(), cu.stream()]

    def work() -> None:
        for _ in range(50):
            pool.allocate(choose.choice([10, 5000, 300_000])).free()

    arena.trace_lines(True)
    with pool.record(tmp_path / "recorded.arena"):
        kept = []
        for number in range(100):
            with pool.scope(f"step ü {number}", budget="90MiB" if number % 2 else None), pool.scope("inner"):
                buffer = pool.allocate(choose.randrange(1, 200_000), choose.choice(streams))
                if number % 3 == 0:
                    buffer.record_stream(choose.choice(streams))
                kept.append(buffer)
        del kept[::2]
        run_together(*[work] * 3)
        with pytest.raises(arena.OutOfMemoryError):
            pool.allocate(200 * MIB)
        pool.reserve("8MiB")
        pool.trim()
        pool.trim(compact=True)
        pool.set_cap("64MiB")
    arena.trace_lines(False)
    kept.clear()
    return Trace.read(tmp_path / "recorded.arena")


def test_a_recording_may_begin_with_anything(make: MakeArena, tmp_path: Path) -> None:
    pool = make(cap="64MiB")
    with pool.record(tmp_path / "run.arena"), pool.scope("first"):
        pool.trim()
        pool.reserve("8MiB")
    kinds = [event.kind for event in Trace.read(tmp_path / "run.arena")]
    assert kinds == ["scope_begin", "trim", "reserve", "reserved", "scope_end"]


def test_arenas_own_format_keeps_everything(recorded: Trace, tmp_path: Path) -> None:
    assert {event.kind for event in recorded} == set(KINDS[1:])
    assert len(recorded.lines) > 2
    assert len({event.thread for event in recorded}) > 2
    recorded.steps.extend([(0, "first"), (7, "ü\n,"), (7, "twice"), (len(recorded), "after all")])
    again = Trace.read(recorded.save(tmp_path / "again.arena"))
    assert same(recorded, again)
    assert (tmp_path / "again.arena").read_bytes() == again.save(tmp_path / "third.arena").read_bytes()


def test_many_chunks_keep_everything(tmp_path: Path) -> None:
    """Chunks are independent; lines and steps are spread over them."""
    choose, trace = random.Random(1), Trace({"source": "a test"})
    live: list[int] = []
    for index in range(200_000):
        at = index * 1000 - choose.randrange(3000) if index > 5 else index  # a thread may be late
        if live and choose.random() < 0.45:
            trace._append("free", at, choose.randrange(3), live.pop(choose.randrange(len(live))), 0, 0)
        else:
            line = choose.randrange(500)
            live.append(trace._allocate(at, choose.randrange(3), choose.randrange(1 << 40), choose.randrange(9), line))
        if index % 1000 == 0:
            trace.steps.append((index, f"step {index}"))
    trace.lines = {n: (arena._inspect.snapshot.Line(f"/a/{n}.py", n, "f"),) for n in range(1, 500)}
    path = trace.save(tmp_path / "long.arena")
    with path.open("rb") as file:
        container.read_header(file, "")
        tags = [chunk.tag for chunk in container.read_chunks(file) if not isinstance(chunk, str)]
    assert tags.count(b"EVTS") > 4
    assert tags.count(b"STEP") > 4
    assert same(trace, Trace.read(path))


def test_blocks_of_any_number_are_kept(tmp_path: Path) -> None:
    trace = Trace()
    for kind, block in (("allocate", 7), ("allocate", 3), ("free", 9), ("free", 3), ("allocate", 1 << 50)):
        trace._append(kind, 5, 0, block, 10 if kind == "allocate" else 0, 0)
    assert raw(Trace.read(trace.save(tmp_path / "odd.arena"))) == raw(trace)


def test_a_truncated_trace_is_still_incomplete_after_conversion(recorded: Trace, tmp_path: Path) -> None:
    recorded.problem = "byte 77: the file ends within a chunk"
    again = Trace.read(recorded.save(tmp_path / "again.arena"))
    assert again.problem == "the recording has no end: the last events may be missing"
    assert raw(again) == raw(recorded)


@pytest.mark.parametrize("name", NAMES)
def test_names_survive_every_format(name: str, tmp_path: Path) -> None:
    source = ROOT / f"benchmarks/traces/{name}.csv.gz"
    trace = Trace.read(source)
    own = Trace.read(trace.save(tmp_path / "own.arena"))
    assert same(trace, own)
    original = gzip.decompress(source.read_bytes())
    assert own.save(tmp_path / "back.trace").read_bytes() == original
    packed = own.save(tmp_path / "back.csv.gz", to="text")
    assert gzip.decompress(packed.read_bytes()) == original
    log = Trace.read(own.save(tmp_path / "log.csv"))
    assert [event[3:5] for event in raw(log)] == [event[3:5] for event in raw(trace)]
    assert [e.stream for e in log if e.kind == "allocate"] == [e.stream for e in trace if e.kind == "allocate"]
    assert same(log, Trace.read(log.save(tmp_path / "log.arena")))


def test_the_text_format_keeps_blocks_sizes_streams_failures_and_names(recorded: Trace, tmp_path: Path) -> None:
    again = Trace.read(recorded.save(tmp_path / "run.trace"))
    kept = [e for e in recorded if e.kind in ("allocate", "free", "failure")]
    assert [(e.kind, e.block, e.size, e.stream) for e in again] == [(e.kind, e.block, e.size, e.stream) for e in kept]
    names = [recorded.scope_name(event.block) for event in recorded if event.kind == "scope_begin"]
    assert [label for _, label in again.steps] == names
    assert not again.timed
    assert not Trace.read(again.save(tmp_path / "again.arena")).timed
    assert recorded.timed


def test_rmms_log_keeps_threads_times_streams_and_failures(recorded: Trace, tmp_path: Path) -> None:
    again = Trace.read(recorded.save(tmp_path / "run.csv"))
    kinds = ("allocate", "free", "failure")
    before, after = ([e for e in trace if e.kind in kinds] for trace in (recorded, again))
    assert [(e.kind, e.block, e.size) for e in after] == [(e.kind, e.block, e.size) for e in before]
    assert [again._core.handle_of(e.stream) for e in after if e.kind != "free"] == [
        recorded._core.handle_of(e.stream) for e in before if e.kind != "free"
    ]
    assert all(abs(b.time - before[0].time - a.time) < 2e-6 for b, a in zip(before, after, strict=True))
    threads = list(dict.fromkeys(e.thread for e in before))
    assert [e.thread for e in after] == [threads.index(e.thread) for e in before]
    assert any(e.kind == "record_stream" for e in again)  # a free that waits for a stream that is not its own


def test_a_compressed_csv_is_an_rmm_log_only_if_requested(recorded: Trace, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"run\.csv\.gz' could be an RMM log or arena-trace 1; say which"):
        recorded.save(tmp_path / "run.csv.gz")
    packed = recorded.save(tmp_path / "run.csv.gz", to="rmm")
    assert raw(Trace.read(packed)) == raw(Trace.read(recorded.save(tmp_path / "run.csv")))
    for name, to, text in (("x.arena.gz", "arena", "only text and RMM"), ("x.y", "json", "to='json' is not a format")):
        with pytest.raises(UsageError, match=text):
            recorded.save(tmp_path / name, to=to)
    with pytest.raises(UsageError, match="cap= is only for perfetto"):
        recorded.save(tmp_path / "x.arena", cap="1GiB")
    with pytest.raises(UsageError, match="exists"):
        recorded.save(packed, to="rmm")
    assert not (tmp_path / "x.arena").exists()


def test_perfetto_gets_every_reason_and_the_steps(tmp_path: Path) -> None:
    trace = Trace.read(ROOT / "benchmarks/traces/vgg.csv.gz")
    data = json.loads(trace.save(tmp_path / "run.json", cap="1200MiB", device="sim:8GiB").read_bytes())
    events = data["traceEvents"]
    caps = {event["args"]["bytes"] for event in events if event["name"] == "cap"}
    assert caps == {1200 * MIB}
    stacks = [event["args"] for event in events if event["name"] == "reserved"]
    assert max(sum(stack.values()) for stack in stacks) <= 1200 * MIB
    marks = [event for event in events if event["ph"] == "i"]
    assert [event["name"] for event in marks] == [label for index, label in trace.steps if index < len(trace)]
    assert marks[3]["ts"] == pytest.approx(trace[trace.steps[3][0]].time * 1e6)
    with pytest.warns(UserWarning, match="the counters end at event"):
        trace.save(tmp_path / "short.json", cap="300MiB")


LOGS = {
    "newer": """Thread,Time,Action,Pointer,Size,Stream
4242,09:15:02.000001,allocate,0x7f0000000000,256,0
4243,09:15:02.000002,allocate,0x7f0000000100,512,0x2
4242,09:15:02.000003,allocate,0x7f0000000300,512,0x2
4242,09:15:02.000004,allocate failure,(nil),9999,0x55aa
4242,09:15:02.000005,free,0x7f0000000000,256,0x55aa
4243,09:15:02.000006,free,0x7f0000000100,512,0x2
""",
    "older": """Thread,Time,Action,Pointer,Size,Stream
4242,09:15:02:000001,allocate,0x7F0000000000,256,0
4243,09:15:02:000002,allocate,0x7F0000000100,512,0x2
4242,09:15:02:000003,allocate,0x7F0000000300,512,0x2
4242,09:15:02:000004,allocate failure,0x0,9999,0x55AA
4242,09:15:02:000005,free,0x7F0000000000,256,0x55AA
4243,09:15:02:000006,free,0x7F0000000100,512,0x2
""",
    "elsewhere": """Thread,Time,Action,Pointer,Size,Stream\r
4242,09:15:02.000001,allocate,00007F0000000000,256,0\r
4243,09:15:02.000002,allocate,00007F0000000100,512,0000000000000002\r
4242,09:15:02.000003,allocate,00007F0000000300,512,0000000000000002\r
4242,09:15:02.000004,allocate failure,0,9999,55AA\r
4242,09:15:02.000005,free,00007F0000000000,256,55AA\r
\r
4243,09:15:02.000006,free,00007F0000000100,512,2\r
""",
}


@pytest.mark.parametrize("version", LOGS)
def test_logs_of_several_rmm_versions_are_read_alike(version: str, tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text(LOGS[version], newline="")
    trace = Trace.read(path)
    assert [(e.kind, e.thread, e.block, e.size, e.stream, round(e.time * 1e6)) for e in trace] == [
        ("allocate", 0, 0, 256, 0, 0),
        ("allocate", 1, 1, 512, 1, 1),
        ("allocate", 0, 2, 512, 2, 2),  # the default stream of another thread is another stream
        ("failure", 0, 0, 9999, 3, 3),
        ("record_stream", 0, 0, 0, 3, 4),  # freed on another stream
        ("free", 0, 0, 0, 0, 4),
        ("free", 1, 1, 0, 0, 5),
    ]
    assert [trace._core.handle_of(stream) for stream in range(4)] == [0, 2, 2, 0x55AA]
    again = Trace.read(trace.save(tmp_path / "again.csv"))
    assert raw(again) == raw(trace)


def test_an_address_that_is_allocated_again_was_freed(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("Thread,Time,Action,Pointer,Size,Stream\n" + "1,09:00:00.0,allocate,0x10,5,0\n" * 2)
    assert [(e.kind, e.block) for e in Trace.read(path)] == [("allocate", 0), ("free", 0), ("allocate", 1)]


def test_an_invalid_header_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.arena"
    path.write_bytes(container.header({"device": 5}))
    with pytest.raises(TraceError, match="has no complete header"):
        Trace.read(path)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"# arena-trace 1\na,1,5,0\na,1,5,0\n", "line 3: 'a,1,5,0' cannot be read: block 1 is already live"),
        (b"# arena-trace 1\na,1,5,0\nf,1\nf,1\n", "line 4: 'f,1' cannot be read: block 1 is not live"),
        (b"# arena-trace 1\n\xff\xfe\n", "line 2: .* is not UTF-8 text"),
        (b"# arena-trace 1\n" + b"a" * 70_000, "line 2: a line of more than 65536 bytes"),
        (gzip.compress(b"# arena-trace 1\n" + b"a,1,5,0\nf,1\n" * 10_000, mtime=0)[:-30], "cannot be decompressed"),
        (gzip.compress(b"ARENATRC", mtime=0), "its first line is not"),
        (gzip.compress(b"x" * (1 << 26), mtime=0), "line 1: a line of more than"),
        (b"Thread,Time,Action\n1,2,3\n", "its first line is not"),
    ],
)
def test_an_error_in_a_text_is_reported_with_its_line(content: bytes, text: str, tmp_path: Path) -> None:
    path = tmp_path / "x.trace"
    path.write_bytes(content)
    with pytest.raises(TraceError, match=text):
        Trace.read(path)


@pytest.mark.parametrize("tag", [b"LINE", b"STEP", b"EVTS"])
@pytest.mark.parametrize("data", [b"[1, 2]", b'{"a": 5}', b"[" * 100_000, b"\xff", b'{"1": [["f", "x", 2]]}', b"[[5]]"])
def test_an_invalid_chunk_ends_the_trace_with_a_reason(tag: bytes, data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "x.arena"
    good = struct.pack("<QQQQ", 0, 1, 0, 0) + b"\x81\x00\x00\x05\x00"
    path.write_bytes(container.header({}) + container.chunk(b"EVTS", good) + container.chunk(tag, data))
    trace = Trace.read(path)
    assert len(trace) == 1
    assert trace.problem.startswith("chunk at event 1: ")


def test_arbitrary_bytes_are_refused_or_read(tmp_path: Path) -> None:
    """Only a TraceError is raised, whatever was done to a file."""
    choose, path = random.Random(2), tmp_path / "x"
    log = "".join(LOGS["newer"]).encode()
    text = b"# arena-trace 1 x\na,1,5,0\na,2,6,1\ns,now\nf,1\n"
    for seed in (log, text, gzip.compress(text, mtime=0), pickle.dumps(snapshot())):
        for _ in range(150):
            data = bytearray(seed)
            for _ in range(choose.randrange(1, 5)):
                data[choose.randrange(len(data))] = choose.randrange(256)
            path.write_bytes(data)
            with contextlib.suppress(TraceError):
                trace = Trace.read(path)
                again = Trace.read(trace.save(tmp_path / "again.arena", overwrite=True))
                assert raw(again) == raw(trace)


def test_a_recording_with_very_many_lines_can_be_read() -> None:
    lines = {number: [["x" * 1000, 1, "f"]] * 20 for number in range(2000)}
    chunks = list(container.lines(lines))
    assert len(chunks) > 2
    file = io.BytesIO(b"".join(chunks))
    assert (
        sum(len(json.loads(chunk.data)) for chunk in container.read_chunks(file) if not isinstance(chunk, str)) == 2000
    )
