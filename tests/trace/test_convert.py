"""Every format, there and back, event by event; what a format has no word for is lost, and nothing else."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import pickle
import random
import struct
import threading
from pathlib import Path
from typing import Any

import pytest

import arena
from arena import Trace, TraceError, UsageError, _core
from arena._trace import _file
from arena._trace._read import KINDS

from ..arena.conftest import MIB, MakeArena
from ..programs import ROOT
from ..simulated.cu import Cu

NAMES = ("pipeline", "vgg")


def raw(trace: Trace) -> list[tuple[int, ...]]:
    return [trace._core.event(index) for index in range(len(trace))]


def same(one: Trace, other: Trace) -> bool:
    """In all that a trace has."""
    scopes = {event.block for event in one if event.kind == "scope_begin"}
    return (
        raw(one) == raw(other)
        and (one.lines, one.steps, one.facts, one.problem) == (other.lines, other.steps, other.facts, other.problem)
        and [one.scope_name(scope) for scope in scopes] == [other.scope_name(scope) for scope in scopes]
        and [one._core.handle_of(i) for i in range(one._core.streams)]
        == [other._core.handle_of(i) for i in range(other._core.streams)]
    )


@pytest.fixture
def recorded(make: MakeArena, cu: Cu, tmp_path: Path) -> Trace:
    """A trace with events of every kind, of several threads, streams, lines and nested scopes."""
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
        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
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
    """A chunk knows nothing of the one before; lines and steps are spread over them."""
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
    trace.lines = {n: (arena._snapshot.Line(f"/a/{n}.py", n, "f"),) for n in range(1, 500)}
    path = trace.save(tmp_path / "long.arena")
    with path.open("rb") as file:
        _file.read_header(file, "")
        tags = [chunk.tag for chunk in _file.read_chunks(file) if not isinstance(chunk, str)]
    assert tags.count(b"EVTS") > 4
    assert tags.count(b"STEP") > 4
    assert same(trace, Trace.read(path))


def test_blocks_of_any_number_are_kept(tmp_path: Path) -> None:
    trace = Trace()
    for kind, block in (("allocate", 7), ("allocate", 3), ("free", 9), ("free", 3), ("allocate", 1 << 50)):
        trace._append(kind, 5, 0, block, 10 if kind == "allocate" else 0, 0)
    assert raw(Trace.read(trace.save(tmp_path / "odd.arena"))) == raw(trace)


def test_a_trace_that_was_cut_is_not_whole_after_it_was_converted(recorded: Trace, tmp_path: Path) -> None:
    recorded.problem = "byte 77: the file ends in a chunk"
    again = Trace.read(recorded.save(tmp_path / "again.arena"))
    assert again.problem == "the recording was not ended: the last events may be missing"
    assert raw(again) == raw(recorded)


@pytest.mark.parametrize("name", NAMES)
def test_texts_go_through_every_format_and_come_back(name: str, tmp_path: Path) -> None:
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


def test_a_text_keeps_blocks_sizes_streams_and_names(recorded: Trace, tmp_path: Path) -> None:
    again = Trace.read(recorded.save(tmp_path / "run.trace"))
    kept = [e for e in recorded if e.kind in ("allocate", "free")]
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
    assert any(e.kind == "record_stream" for e in again)  # a free that waits for another stream than its own


def test_a_packed_log_is_rmms_only_when_told(recorded: Trace, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"run\.csv\.gz' could be RMM's log or arena-trace 1; tell which"):
        recorded.save(tmp_path / "run.csv.gz")
    packed = recorded.save(tmp_path / "run.csv.gz", to="rmm")
    assert raw(Trace.read(packed)) == raw(Trace.read(recorded.save(tmp_path / "run.csv")))
    for name, to, text in (("x.arena.gz", "arena", "only text and RMM"), ("x.y", "json", "to='json' is no format")):
        with pytest.raises(UsageError, match=text):
            recorded.save(tmp_path / name, to=to)
    with pytest.raises(UsageError, match="cap= is for perfetto"):
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
def test_the_logs_of_several_versions_of_rmm_are_read_alike(version: str, tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text(LOGS[version], newline="")
    trace = Trace.read(path)
    assert [(e.kind, e.thread, e.block, e.size, e.stream, round(e.time * 1e6)) for e in trace] == [
        ("allocate", 0, 0, 256, 0, 0),
        ("allocate", 1, 1, 512, 1, 1),
        ("allocate", 0, 2, 512, 2, 2),  # the default stream of another thread is another
        ("failure", 0, 0, 9999, 3, 3),
        ("record_stream", 0, 0, 0, 3, 4),  # freed in another stream
        ("free", 0, 0, 0, 0, 4),
        ("free", 1, 1, 0, 0, 5),
    ]
    assert [trace._core.handle_of(stream) for stream in range(4)] == [0, 2, 2, 0x55AA]
    again = Trace.read(trace.save(tmp_path / "again.csv"))
    assert raw(again) == raw(trace)


def test_an_address_that_is_given_again_was_freed(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("Thread,Time,Action,Pointer,Size,Stream\n" + "1,09:00:00.0,allocate,0x10,5,0\n" * 2)
    assert [(e.kind, e.block) for e in Trace.read(path)] == [("allocate", 0), ("free", 0), ("allocate", 1)]


def snapshot(**changes: Any) -> dict[str, Any]:
    """As torch.cuda.memory._dump_snapshot writes it, of a history that began late."""
    frames = [{"filename": "train.py", "line": 8, "name": "step"}, {"filename": "train.py", "line": 90, "name": "main"}]

    def entry(action: str, addr: int, size: int, time: int, **more: Any) -> dict[str, Any]:
        return {
            "action": action,
            "addr": addr,
            "size": size,
            "stream": 0,
            "time_us": time,
            "compile_context": "N/A",
            **more,
        }

    blocks = [
        {"address": 0, "size": 1024, "requested_size": 1000, "state": "active_allocated", "frames": frames},
        {"address": 1024, "size": 1024, "requested_size": 0, "state": "inactive", "frames": []},
        {"address": 2048, "size": 512, "requested_size": 300, "state": "active_allocated", "frames": []},
        {"address": 2560, "size": 2 * MIB - 2560, "requested_size": 9, "state": "active_pending_free", "frames": []},
    ]
    segment = {"device": 0, "address": 0, "total_size": 2 * MIB, "stream": 0, "segment_type": "small", "blocks": blocks}
    history = [
        entry("free_requested", 4096, 512, 1000, frames=frames),  # live before the history began
        entry("free_completed", 4096, 512, 1001),
        entry("segment_map", MIB, MIB, 1002),
        entry("alloc", 2048, 300, 1003, frames=frames),
        entry("snapshot", 0, 0, 1004),
        entry("alloc", 8192, 700, 1005, stream=77),
        entry("segment_unmap", MIB, MIB, 1006),
        {"action": "oom", "device_free": 5, "size": 1 << 35, "stream": 77, "time_us": 1007},
        entry("free_requested", 8192, 700, 1008),
        entry("segment_alloc", 9 * MIB, MIB, 1009),
    ]
    notes = [
        {"device": 0, "time_us": 1003, "name": "forward", "stage": "START"},
        {"device": 1, "time_us": 1003, "name": "elsewhere", "stage": "START"},
        {"device": 0, "time_us": 1006, "name": "forward", "stage": "END"},
        {"device": 0, "time_us": 1006, "name": "backward", "stage": "START"},
    ]
    data = {
        "segments": [segment],
        "device_traces": [history, []],
        "allocator_settings": {"expandable_segments": True},
        "external_annotations": notes,
    }
    return {**data, **changes}


@pytest.mark.parametrize("protocol", range(2, 6))
def test_a_snapshot_of_pytorch_whose_history_began_late(protocol: int, tmp_path: Path) -> None:
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps(snapshot(), protocol))
    trace = Trace.read(path)
    assert [(e.kind, e.block, e.size, e.stream, round(e.time * 1e6)) for e in trace] == [
        ("reserved", 0, MIB, 0, 0),  # 2 MiB at the end, and 1 MiB more than at the beginning
        ("allocate", 0, 512, 0, 0),  # freed in the history
        ("allocate", 1, 1000, 0, 0),  # live at the end
        ("free", 0, 0, 0, 0),
        ("reserved", 0, 2 * MIB, 0, 2),
        ("allocate", 2, 300, 0, 3),
        ("allocate", 3, 700, 1, 5),
        ("reserved", 0, MIB, 0, 6),
        ("failure", 0, 1 << 35, 1, 7),
        ("free", 3, 0, 0, 8),
        ("reserved", 0, 2 * MIB, 0, 9),
    ]
    assert trace.lines[trace[5].line] == (("train.py", 8, "step"), ("train.py", 90, "main"))
    assert trace.lines[trace[2].line] == trace.lines[trace[5].line]
    assert trace.steps == [(5, "forward"), (7, "backward")]
    assert same(trace, Trace.read(trace.save(tmp_path / "s.arena")))
    log = Trace.read(trace.save(tmp_path / "s.csv"))
    assert log.replay(device="sim:1GiB").stats.live == 1024 + 512


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"segments": [{"device": 0}]}, "cannot be read: KeyError"),
        ({"segments": 7}, "its segments cannot be read"),
        ({"external_annotations": [{"time_us": "noon", "name": "x"}]}, "cannot be read"),
        ({"device_traces": [[{"action": "alloc", "addr": 5}]]}, "entry 0 of device 0"),
        ({"device_traces": [[{"action": "alloc", "addr": 5, "size": 1 << 70}]]}, "device 0 cannot be read"),
    ],
)
def test_a_snapshot_that_is_wrong_is_refused_with_the_place(changes: Any, text: str, tmp_path: Path) -> None:
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps(snapshot(**changes)))
    with pytest.raises(TraceError, match=text):
        Trace.read(path)


HOSTILE_PICKLES = {
    "memo": b"\x80\x02]r\xff\xff\xff\x7f.",  # C's reader would take 32 GiB for this number
    "bytes": b"\x80\x04\x8e\xff\xff\xff\xff\xff\x00\x00\x00abc.",
    "array": b"\x80\x05\x96\xff\xff\xff\xff\x0f\x00\x00\x00abc.",
    "frame": b"\x80\x04\x95\xff\xff\xff\xff\xff\x00\x00\x00].",
    "text": b"\x80\x04X\xff\xff\xff\xffabc.",
}


@pytest.mark.parametrize("kind", HOSTILE_PICKLES)
def test_a_pickle_takes_no_more_memory_than_it_has_bytes(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(HOSTILE_PICKLES[kind])
    import tracemalloc

    tracemalloc.start()
    with pytest.raises(TraceError):
        Trace.read(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < MIB


def nested(levels: int) -> bytes:
    """A tuple that holds twice what holds twice what ..., in five bytes each."""
    return b")q\x00" + b"".join(b"h%c\x86q%c" % (level, level + 1) for level in range(levels))


TOO_MUCH_WORK = {
    "a key that holds all twice": b"\x80\x04}" + nested(60) + b"Ns.",
    "a key among others": b"\x80\x04}(K\x01N" + nested(60) + b"Nu.",
    "a key of a dict that is made at once": b"\x80\x04(" + nested(60) + b"Nd.",
    "a key that was kept, in a text": b"\x80\x04}" + nested(60) + b"p70\n0g70\nNs.",
    "a key that was kept as the next": b"\x80\x04}" + nested(60) + b"\x940h\x3dNs.",
    "a key twice on the stack": b"\x80\x04})" + b"2\x86" * 60 + b"Ns.",
    "a member of a set": b"\x80\x04\x8f(" + nested(60) + b"\x90.",
    "a member of a frozen set": b"\x80\x04(" + nested(60) + b"\x91.",
    "a frozen set in a key": b"\x80\x04}(" + b"K\x01" * 200 + b"\x91Ns.",
    "a key that lies deep": b"\x80\x04})" + b"\x85" * 1_000_000 + b"Ns.",
    "a long key many times": b"\x80\x04}(" + b"N" * 1000 + b"tq\x00(" + b"h\x00N" * 1000 + b"u.",
    "a number of many bytes": b"\x80\x04\x8b\x00\x01\x00\x00" + bytes(256) + b".",
}


@pytest.mark.parametrize("kind", TOO_MUCH_WORK)
def test_a_pickle_that_takes_long_to_hash_is_refused_before_it_is_read(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(TOO_MUCH_WORK[kind])
    with pytest.raises(TraceError, match=r"byte \d+: a (key of more than 100 parts|number of 256 bytes)"):
        Trace.read(path)


def test_an_index_of_a_pickle_is_of_digits_alone() -> None:
    _core.check_pickle(b"\x80\x04}p5\n.")
    for text in (b"+5", b" 5", b"5_0", b"-1"):
        with pytest.raises(TraceError, match="byte 3: an index that is no number"):
            _core.check_pickle(b"\x80\x04}p" + text + b"\n.")


def test_keys_of_a_few_parts_are_read() -> None:
    data = {(1, (2, 3)): 4, (1,) * 90: 5, frozenset({1, 2}): {(7, 8)}, "many": [(9,) * 10_000]}
    for protocol in range(6):
        _core.check_pickle(pickle.dumps(data, protocol))


@pytest.mark.parametrize("field", ["action", "addr", "size", "stream", "time_us"])
def test_a_value_that_holds_all_twice_is_refused_at_once(field: str, tmp_path: Path) -> None:
    endless: tuple[object, ...] = ()
    for _ in range(60):
        endless = (endless, endless)
    entry = {"action": "alloc", "addr": 1 << 20, "size": 1000, "stream": 0, "time_us": 1, "frames": []}
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps({"segments": [], "device_traces": [[{**entry, field: endless}]]}))
    with pytest.raises(TraceError, match="cannot be read: TypeError"):
        Trace.read(path)


def test_segments_do_not_share_their_blocks(tmp_path: Path) -> None:
    data = snapshot()
    data["segments"] = [{**data["segments"][0]}, {**data["segments"][0]}]
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps(data))
    with pytest.raises(TraceError, match="two segments have the same list of blocks"):
        Trace.read(path)


PLAIN = [1, -5, 1 << 40, 1 << 200, 1.5, None, True, "x" * 300, "ü", b"abc" * 200, (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4)]


@pytest.mark.parametrize("protocol", range(6))
def test_what_is_looked_at_before_a_pickle_is_read_knows_every_opcode_of_plain_data(protocol: int) -> None:
    data: dict[str, Any] = {"a": [*PLAIN, {1}, frozenset({2}), {}, [], ()], "again": PLAIN, "long": "y" * 70_000}
    for made in (pickle.dumps(data, protocol), pickle._dumps(data, protocol)):
        _core.check_pickle(made)
        for cut in (0, 1, 5, 50, 500, len(made) - 1):
            with pytest.raises(TraceError, match="byte "):
                _core.check_pickle(made[:cut])


def test_a_header_of_nonsense_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.arena"
    path.write_bytes(_file.header({"device": 5}))
    with pytest.raises(TraceError, match="has no whole header"):
        Trace.read(path)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"# arena-trace 1\na,1,5,0\na,1,5,0\n", "line 3: 'a,1,5,0' cannot be read: block 1 is live already"),
        (b"# arena-trace 1\na,1,5,0\nf,1\nf,1\n", "line 4: 'f,1' cannot be read: block 1 is not live"),
        (b"# arena-trace 1\n\xff\xfe\n", "line 2: .* is no text"),
        (b"# arena-trace 1\n" + b"a" * 70_000, "line 2: a line of more than 65536 bytes"),
        (gzip.compress(b"# arena-trace 1\n" + b"a,1,5,0\nf,1\n" * 10_000, mtime=0)[:-30], "cannot be unpacked"),
        (gzip.compress(b"ARENATRC", mtime=0), "its first line is not"),
        (gzip.compress(b"x" * (1 << 26), mtime=0), "line 1: a line of more than"),
        (b"Thread,Time,Action\n1,2,3\n", "its first line is not"),
    ],
)
def test_a_text_that_is_wrong_is_refused_with_the_line(content: bytes, text: str, tmp_path: Path) -> None:
    path = tmp_path / "x.trace"
    path.write_bytes(content)
    with pytest.raises(TraceError, match=text):
        Trace.read(path)


@pytest.mark.parametrize("tag", [b"LINE", b"STEP", b"EVTS"])
@pytest.mark.parametrize("data", [b"[1, 2]", b'{"a": 5}', b"[" * 100_000, b"\xff", b'{"1": [["f", "x", 2]]}', b"[[5]]"])
def test_a_chunk_of_nonsense_ends_the_trace_with_a_word(tag: bytes, data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "x.arena"
    good = struct.pack("<QQQQ", 0, 1, 0, 0) + b"\x81\x00\x00\x05\x00"
    path.write_bytes(_file.header({}) + _file.chunk(b"EVTS", good) + _file.chunk(tag, data))
    trace = Trace.read(path)
    assert len(trace) == 1
    assert trace.problem.startswith("chunk at event 1: ")


def test_every_trace_of_arbitrary_bytes_is_refused_or_read(tmp_path: Path) -> None:
    """Nothing but a TraceError comes out, whatever was done to a file."""
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
    chunks = list(_file.lines(lines))
    assert len(chunks) > 2
    file = io.BytesIO(b"".join(chunks))
    assert sum(len(json.loads(chunk.data)) for chunk in _file.read_chunks(file) if not isinstance(chunk, str)) == 2000
