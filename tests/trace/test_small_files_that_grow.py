"""Small files that unpack to much, or that make a reader work for hours, are refused; counts and ratios are bounded."""

from __future__ import annotations

import gzip
import json
import pickle
import struct
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import arena
from arena import Trace, TraceError, _core
from arena._trace import container, read, rows, unpacking

HEAD = b"# arena-trace 1\n"
LOG = b"Thread,Time,Action,Pointer,Size,Stream\n"
TRACE_OF = {"text": (HEAD, b"a,1,512,0\n"), "log": (LOG, b"1,09:05:00.25,allocate,0x10,5,0x2\n")}


def packed(path: Path, text: bytes) -> Path:
    path.write_bytes(gzip.compress(text, 9))
    return path


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of the lines that were left to Python."""
    found: list[int] = []
    original = rows.Rows.__next__

    def count(self: rows.Rows) -> tuple[int, str]:
        number, line = original(self)
        found.append(number)
        return number, line

    monkeypatch.setattr(rows.Rows, "__next__", count)
    return found


@pytest.mark.parametrize("kind", TRACE_OF)
@pytest.mark.parametrize("idle", [b"\n", b"\r\n", b"# as a comment\n"], ids=["blank", "returns", "comments"])
def test_a_million_rows_without_an_event_cost_python_nothing(
    kind: str, idle: bytes, tmp_path: Path, counted: list[int]
) -> None:
    """Three kilobytes of them took ten seconds."""
    head, event = TRACE_OF[kind]
    if kind == "log" and idle.startswith(b"#"):
        idle = b" \t \n"
    many = 1_000_000
    path = packed(tmp_path / "run.gz", head + idle * many + event + idle)
    assert path.stat().st_size < 64 << 10
    assert len(Trace.read(path)) == 1
    assert len(counted) < 10
    packed(path, head + idle * many + b"wrong\n")
    with pytest.raises(TraceError, match=f"line {many + 2}: 'wrong' cannot be read"):
        Trace.read(path)


def test_failed_requests_are_read_by_the_compiled_reader(tmp_path: Path, counted: list[int]) -> None:
    path = packed(tmp_path / "run.trace.gz", HEAD + b"x,1024,3\r\n" * 100_000)
    trace = Trace.read(path)
    assert len(counted) < 10
    assert (len(trace), trace[-1].kind, trace[-1].size, trace[-1].stream) == (100_000, "failure", 1024, 3)
    assert trace[-1].time == pytest.approx(100_001e-6)


@pytest.mark.parametrize(("kind", "row"), [("text", b"a, 1, 512, 0\nf, 1\n"), ("log", b"1,9:5:0,allocate\n")])
def test_rows_for_python_are_limited_in_number(
    kind: str, row: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "MOST_LEFT", 1000)
    path = packed(tmp_path / "run.gz", TRACE_OF[kind][0] + row * 100_000)
    with pytest.raises(TraceError, match=r"line (\d+)") as caught:
        Trace.read(path)
    number = int(str(caught.value).split("line ")[1].split(":")[0])
    assert number < 5000
    # As many as there are events, at least.
    few = TRACE_OF["text"][0] + b"".join(b"a,%d,512,0\nf, %d\n" % (n, n) for n in range(5000))
    assert len(Trace.read(packed(path, few))) == 10_000


def test_steps_are_read_by_the_compiled_reader(tmp_path: Path, counted: list[int]) -> None:
    row = "s,épée 日本\r\na,{},512,0\n"
    text = HEAD.decode() + "".join(row.format(number) for number in range(50_000)) + "s,last"
    trace = Trace.read(packed(tmp_path / "run.trace.gz", text.encode()))
    assert len(counted) < 10
    assert trace.steps == [*((number, "épée 日本") for number in range(50_000)), (50_000, "last")]
    with pytest.raises(TraceError, match="is not UTF-8 text"):
        Trace.read(packed(tmp_path / "run.trace.gz", HEAD + b"s,\xff\n"))


@pytest.mark.parametrize("kind", TRACE_OF)
def test_a_text_may_unpack_to_a_bounded_multiple_of_its_size(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unpacking.Unpacked.__init__, "__defaults__", (1 << 20,))
    head, _ = TRACE_OF[kind]
    path = packed(tmp_path / "run.gz", head + b"\n" * (64 << 20))
    with pytest.raises(TraceError, match=r"of the file unpack to .* more than 256 times as much"):
        Trace.read(path)
    plain = tmp_path / "run.txt"
    plain.write_bytes(head + b"\n" * (1 << 22))
    Trace.read(plain)


def own(path: Path, *chunks: bytes) -> Path:
    path.write_bytes(container.header({}) + b"".join(chunks))
    return path


def test_a_recording_may_unpack_to_a_bounded_multiple_of_its_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unpacking.Unpacked.__init__, "__defaults__", (1 << 20,))
    data = zlib.compress(b"{" + b" " * (8 << 20) + b"}", 9)
    for tag in (b"LINE", b"ELSE"):
        chunk = container.HEAD.pack(tag, len(data), zlib.crc32(data)) + data
        trace = Trace.read(own(tmp_path / "run.arena", chunk))
        assert "more than 256 times as much" in trace.problem
    monkeypatch.undo()
    trace = Trace.read(own(tmp_path / "run.arena", *[chunk] * 20))  # 16 MiB of texts are free
    assert "more than 256 times as much" in trace.problem


def test_notes_that_replace_each_other_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read, "MOST_NOTES", 1000)
    one = container.chunk(b"LINE", json.dumps({"1": [], "2": [], "3": []}).encode())
    trace = Trace.read(own(tmp_path / "run.arena", *[one] * 1000))
    assert "1,001 lines, but only 0 events" in trace.problem
    events = container.chunk(b"EVTS", struct.pack("<QQQQ", 0, 1, 0, 0) + b"\x81\x00\x00\x05\x00")
    trace = Trace.read(own(tmp_path / "run.arena", *[one, events] * 1000))
    assert (len(trace), trace.problem) == (1000, "the recording has no end: the last events may be missing")


def seconds(work: Callable[[], object]) -> float:
    """The shortest of three times."""

    def once() -> float:
        began = time.perf_counter()
        work()
        return time.perf_counter() - began

    return min(once() for _ in range(3))


BUCKETS = 85229  # how many a hash table of the C++ library has for 42,044 to 85,229 keys
MANY = 60_000


# The last ones collide only after the table has grown, when nothing more is added.
@pytest.mark.parametrize("many", [MANY, BUCKETS // 2 - 50])
def test_block_numbers_chosen_to_collide_take_no_longer(many: int) -> None:
    def read_all(step: int) -> None:
        keys = [*range(0, many * step, step), *range(1, 100)]
        text = b"".join(b"a,%d,512,0\n" % key for key in keys) + b"".join(b"f,%d\n" % key for key in keys)
        trace = _core.Trace()
        assert _core.TextRows(trace).read(text, 0, 0)[0] == len(text)
        assert len(trace) == 2 * len(keys)

    usual = seconds(lambda: read_all(200))
    assert seconds(lambda: read_all(BUCKETS)) < 20 * usual


@pytest.mark.parametrize("many", [MANY, BUCKETS // 2 - 50])
def test_addresses_in_a_log_chosen_to_collide_take_no_longer(many: int) -> None:
    def read_all(step: int) -> None:
        keys = [*range(0, many * step, step), *range(1, 100)]
        row = b"1,09:05:00.25,%s,0x%x,5,0x2\n"
        text = b"".join(row % (action, key) for action in (b"allocate", b"free") for key in keys)
        trace = _core.Trace()
        assert _core.RmmRows(trace).read(text, 0, 0)[0] == len(text)
        assert len(trace) == 2 * len(keys)

    usual = seconds(lambda: read_all(200))
    assert seconds(lambda: read_all(BUCKETS)) < 20 * usual


def test_block_numbers_of_a_recording_chosen_to_collide_take_no_longer() -> None:
    def find(keys: range) -> None:
        trace = _core.Trace()
        for key in keys:
            trace.add(1, 0, 0, key, 512, 0, 0)
        began = time.perf_counter()
        trace.failures()
        spent.append(time.perf_counter() - began)

    spent: list[float] = []
    for keys in (range(0, 3 * MANY, 3), range(0, MANY * BUCKETS, BUCKETS)):
        find(keys)
    assert spent[1] < 10 * spent[0]


def snapshot(path: Path, **more: Any) -> Path:
    entry = {"action": "alloc", "addr": 512, "size": 1000, "stream": 0, "time_us": 1, "frames": []}
    data = {"segments": [], "device_traces": [[entry]], "external_annotations": [], **more}
    path.write_bytes(pickle.dumps(data))
    return path


def test_long_labels_that_many_notes_share_are_not_compared(tmp_path: Path) -> None:
    def read_all(length: int) -> float:
        names = ["x" * length + mark for mark in "ab"]
        notes = [{"time_us": 5, "name": names[number % 2], "stage": "START"} for number in range(2000)]
        path = snapshot(tmp_path / "s.pickle", external_annotations=notes)
        return seconds(lambda: Trace.read(path))

    assert read_all(1_000_000) < 20 * read_all(10)


PRIME = (1 << 61) - 1  # Python's hash of a number is its remainder
ODD_KEYS = {
    "long numbers": {PRIME * (number + 8): None for number in range(2000)},
    "tuples": dict.fromkeys((-1 - (number & 1), number) for number in range(2000)),
    "members of a set": {(number, -1) for number in range(2000)},
}


@pytest.mark.parametrize("kind", ODD_KEYS)
@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_keys_that_may_collide_are_limited_in_number(kind: str, protocol: int) -> None:
    if kind == "members of a set" and protocol < 4:
        pytest.skip("older protocols make sets by a function, which is refused")
    with pytest.raises(TraceError, match="more than 1000 keys that are tuples, sets or numbers of more than 64 bits"):
        _core.check_pickle(pickle.dumps(ODD_KEYS[kind], protocol))


@pytest.mark.parametrize("field", ["addr", "size", "time_us", "stream"])
def test_numbers_of_more_than_64_bits_are_refused(field: str, tmp_path: Path) -> None:
    entry = {"action": "alloc", "addr": 512, "size": 1000, "stream": 0, "time_us": 1, "frames": [], field: 1 << 64}
    path = snapshot(tmp_path / "s.pickle", device_traces=[[entry]])
    with pytest.raises(TraceError, match="is not a number of up to 64 bits"):
        Trace.read(path)


def test_no_member_of_an_archive_is_skipped(tmp_path: Path) -> None:
    """An archive may have many parts, each of which is unpacked and counted."""
    path = tmp_path / "run.trace.gz"
    path.write_bytes(gzip.compress(HEAD) + gzip.compress(b"a,1,512,0\n") * 1 + gzip.compress(b"") * 1000)
    assert len(Trace.read(path)) == 1
    assert zlib.decompress(path.read_bytes()[:200], 31) == HEAD


def test_a_saved_block_over_millions_of_granules_is_shown_as_fast_as_one_over_few(tmp_path: Path) -> None:
    pool = arena.Arena(device="sim:1GiB")
    kept = pool.allocate(1 << 20)
    data = json.loads(pool.snapshot().save(tmp_path / "s.json").read_text())
    kept.free()

    def report(granule: int) -> None:
        size = 1 << 31
        block = [1 << 40, size - 512, "live", size - 512, 0, 1, "", False, [], None, ""]
        free = [(1 << 40) + size - 512, 512, "stranded", 0, 0, 0, "", False, [], None, ""]
        data.update(granule=granule, segments=[[1 << 40, size]], handles=[[1 << 40, size]], pieces=[block, free])
        path = tmp_path / "large.json"
        path.write_text(json.dumps(data))
        made = arena.Report.of(arena.load(path))
        assert made.pins[0].holds_back == 512
        assert sum(cell.count for cell in made.segments[0].cells) == size // granule
        assert sum(cell.live for cell in made.segments[0].cells) == size - 512

    assert seconds(lambda: report(512)) < 20 * seconds(lambda: report(2 << 20))
