"""Traces with millions of events: read in seconds, in little memory, from any text format."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from arena import Trace, TraceError
from arena._trace import container
from arena._trace import rows as _rows

from ..programs import run

PAIRS = 2_000_000


def write_own(path: Path) -> None:
    pair = bytes([1, 0, 0x80, 4, 0, 2, 0, 1])  # 512 bytes are allocated and freed
    many = PAIRS // 2
    with path.open("wb") as file:
        container.write_header(file, {})
        for first in (0, many):
            container.write_chunk(
                file, container.EVENTS, struct.pack("<QQQQ", 2 * first, 2 * many, first, 0) + pair * many
            )
        container.write_chunk(file, container.END, b"{}")


def write_text(path: Path) -> None:
    path.write_bytes(gzip.compress(b"# arena-trace 1 pairs\n" + b"a,0,512,0\nf,0\n" * PAIRS))


def write_log(path: Path) -> None:
    rows = b"1,09:00:00.5,allocate,0x200,512,0x0\n1,09:00:00.5,free,0x200,512,0x0\n"
    path.write_bytes(gzip.compress(b"Thread,Time,Action,Pointer,Size,Stream\n" + rows * PAIRS, 6))


@pytest.mark.parametrize("write", [write_own, write_text, write_log])
def test_a_small_file_of_four_million_events_is_read_in_seconds_and_little_memory(
    write: Callable[[Path], None], tmp_path: Path
) -> None:
    path = tmp_path / "many"
    write(path)
    assert path.stat().st_size < 1_000_000
    code = """
import sys, time
import arena
def used():  # not by getrusage(), whose highest may be that of the process which forked
    with open("/proc/self/status") as file:
        return next(int(row.split()[1]) >> 10 for row in file if row.startswith("VmHWM:"))
before = used()
trace = arena.Trace.read(sys.argv[1])
print(len(trace), trace.problem == "", time.process_time(), used() - before)
"""
    events, whole, seconds, mebibytes = run(code, str(path), check=True).stdout.split()
    assert (int(events), whole) == (2 * PAIRS, "True")
    assert float(seconds) < 4  # measured: 0.2 to 0.7 (row by row in Python, a text takes 15)
    assert int(mebibytes) < 80  # measured: 23 to 37 (unpacked, at 40 bytes an event, it would be 153)


def test_rows_in_an_unusual_notation_are_read_all_the_same(tmp_path: Path) -> None:
    rows = [
        "a,5,100,0", " a,6,1,0"[1:], "f,5", "", "# a comment", "s,step one", "a, 5 ,+200,1", "a,7,1_000,0\r",
        "f,007", "a,18446744073709551615,3,0", "f,6",
    ]  # fmt: skip
    path = tmp_path / "odd.trace"
    path.write_text("# arena-trace 1 odd\n" + "\n".join(rows), newline="")  # the last line has no newline
    trace = Trace.read(path)
    assert [(event.kind, event.block, event.size, event.stream) for event in trace] == [
        ("allocate", 0, 100, 0),
        ("allocate", 1, 1, 0),
        ("free", 0, 0, 0),
        ("allocate", 2, 200, 1),
        ("allocate", 3, 1000, 0),
        ("free", 3, 0, 0),
        ("allocate", 4, 3, 0),
        ("free", 1, 0, 0),
    ]
    assert trace.steps == [(3, "step one")]
    assert [round(event.time * 1e6) for event in trace][:3] == [2, 3, 4]  # a line is a microsecond


@pytest.mark.parametrize(
    ("row", "text"),
    [
        ("a,1,5,0", "block 1 is already live"),
        ("f,9", "block 9 is not live"),
        ("f,-9", "block -9 is not live"),
        ("a,-1,5,0", "block -1 is below 0"),
        ("a,18446744073709551616,5,0", "block 18446744073709551616 is above"),
        ("a,2,5,1048576", "stream 1048576 of at most"),
        ("a,2,5", "not enough values"),
        ("x,2", "not enough values"),
        ("x,5,1048576", "stream 1048576 of at most"),
        ("y,2", "it does not start with a, f, x or s"),
    ],
)
def test_an_invalid_row_is_named(tmp_path: Path, row: str, text: str) -> None:
    path = tmp_path / "wrong.trace"
    path.write_text(f"# arena-trace 1\na,1,5,0\n{row}\nf,1\n")
    with pytest.raises(TraceError, match=f"line 3: '{row}' cannot be read: {text}"):
        Trace.read(path)


def test_log_rows_in_an_unusual_notation_are_read_all_the_same(tmp_path: Path) -> None:
    same = (
        "1,09:05:00.25,allocate,0x10,5,0x2\n1,09:05:01.5,allocate failure,(nil),7,0x0\n2,09:05:02.0,free,0x10,5,0x2\n"
    )
    odd = "1,9:05:00:25,allocate,10,+5,2\r\n 1,09:05:01.5,allocate failure,,7, 0\n\n2,09:05:02.0,free,0X10,5,2"
    found = []
    for number, rows in enumerate((same, odd)):
        path = tmp_path / f"{number}.csv"
        path.write_text("Thread,Time,Action,Pointer,Size,Stream\n" + rows, newline="")
        found.append([tuple(event) for event in Trace.read(path)])
    assert [
        (kind, round(time * 1e9), thread, block, size, stream)
        for kind, time, thread, block, size, stream, _ in found[0]
    ] == [
        ("allocate", 0, 0, 0, 5, 0),
        ("failure", 1_250_000_000, 0, 0, 7, 1),
        ("record_stream", 1_750_000_000, 1, 0, 0, 2),  # each thread has its own default stream
        ("free", 1_750_000_000, 1, 0, 0, 0),
    ]
    assert found[1] == found[0]


@pytest.mark.parametrize("part", [1, 7, 1 << 20])
def test_rows_may_be_split_anywhere_between_two_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: int
) -> None:
    monkeypatch.setattr(_rows, "PART", part)
    path = tmp_path / "parts.trace.gz"
    path.write_bytes(gzip.compress(b"# arena-trace 1\n" + b"".join(b"a,%d,10,0\ns,x\n" % i for i in range(50))))
    trace = Trace.read(path)
    assert (len(trace), len(trace.steps)) == (50, 50)
    path.write_bytes(gzip.compress(b"# arena-trace 1\na,1,5,0\n" + b"x" * (_rows.MOST_ROW + 1)))
    with pytest.raises(TraceError, match="line 3: a line of more than 65536 bytes"):
        Trace.read(path)
