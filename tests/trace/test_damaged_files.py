"""Truncated, corrupt and oversized files: readable events are kept, and everything else is refused with a reason."""

from __future__ import annotations

import json
import random
import struct
import zlib
from pathlib import Path

import pytest

from arena import Trace, TraceError, _core
from arena._cli import main
from arena._trace import container, read

from ..arena.conftest import MakeArena
from .samples import random_work


def test_a_truncated_file_is_read_up_to_its_last_complete_chunk(make: MakeArena, tmp_path: Path) -> None:
    pool = make(cap="2GiB")
    path, cut = tmp_path / "run.arena", tmp_path / "cut.arena"
    with pool.record(path):
        random_work(pool, [0], 3000, 1)
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
def test_a_recording_truncated_in_its_last_chunk_says_so_and_commands_need_some_events(
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
    assert trace.problem.endswith(": the file ends within a chunk")
    for command in (
        ["replay", path],
        ["replay", "--compare", path, path],
        ["fit", path],
        ["convert", path, path + ".csv"],
    ):
        code, said = call(*command)
        if chunks == 1:
            assert (code, said) == (1, f"arena: {path} has no readable events: {trace.problem}\n")
        else:
            assert (code, said) == (0, f"arena: {path}: {trace.problem}\n")


def test_a_changed_byte_is_noticed(make: MakeArena, tmp_path: Path) -> None:
    pool = make(cap="64MiB")
    path = tmp_path / "run.arena"
    with pool.record(path):
        random_work(pool, [0], 300, 1)
    data = bytearray(path.read_bytes())
    header = 16 + int.from_bytes(data[12:16], "little")
    for place in range(header + 4, len(data), 7):
        data[place] ^= 0x20
        path.write_bytes(data)
        assert Trace.read(path).problem
        data[place] ^= 0x20


@pytest.mark.parametrize("seed", range(20))
def test_random_records_are_refused_with_their_position(seed: int) -> None:
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
        (b"", "is not a trace: it is empty"),
        (b"PK\3\4 something else", "is not a trace: it is neither"),
        (b"ARENATRC\x02\0\0\0\0\0\0\0", "has version 2; this arena reads version 1"),
        (b"ARENATRC\x01\0\0\0\xff\xff\xff\xff{}", "has no complete header"),
        (b"# arena-trace 1\na,1,x,0\n", "line 2: 'a,1,x,0' cannot be read"),
        (b"# arena-trace 1\na,1,5,99999999\n", "line 2"),
        (b"# arena-trace 1\na,-1,5,0\n", "line 2"),
        (b"# arena-trace 1\nq\n", "it does not start with a, f, x or s"),
        (b"# arena-trace 9\n", "its first line is not"),
        (b"\x1f\x8b broken", "cannot be decompressed"),
    ],
)
def test_a_file_that_is_no_trace_is_refused_with_the_reason(tmp_path: Path, content: bytes, text: str) -> None:
    path = tmp_path / "x"
    path.write_bytes(content)
    with pytest.raises(TraceError, match=text):
        Trace.read(path)
    with pytest.raises(TraceError, match="cannot be read"):
        Trace.read(tmp_path / "missing")


def test_a_chunk_that_unpacks_to_far_more_is_refused() -> None:
    assert container.unpack(zlib.compress(bytes(container.MOST + 1))) is None
    assert container.unpack(zlib.compress(b"x")) == b"x"


def test_reading_stops_before_a_file_unpacks_to_more_than_the_free_memory(
    make: MakeArena, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However small the file is: repeated bytes compress to almost nothing."""
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
def test_steps_and_lines_take_no_more_than_the_free_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tag: bytes, data: object
) -> None:
    path = tmp_path / "run.arena"
    path.write_bytes(container.header({}) + container.chunk(tag, json.dumps(data).encode()))
    assert "more than" not in Trace.read(path).problem
    monkeypatch.setattr(read, "memory_left", lambda: 256 * 10)
    assert "more than 10 lines and steps" in Trace.read(path).problem
