"""Bugs found by fuzzing, or by reading the code that it could not reach. Each was a crash or an endless loop."""

from __future__ import annotations

import json
import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import arena
from arena._trace import container

from . import corpus


def own_trace(path: Path, *chunks: tuple[bytes, bytes]) -> Path:
    path.write_bytes(container.header({}) + b"".join(container.chunk(tag, data) for tag, data in chunks))
    return path


def events(records: bytes, next_block: int = 0) -> tuple[bytes, bytes]:
    return container.EVENTS, struct.pack("<QQQQ", 0, 0, next_block, 0) + records


ALLOCATE = b"\x01\x00\x0a\x00"  # 10 bytes on stream 0


def scope_begin(number: int) -> bytes:
    return b"\x0a\x00" + bytes([number & 0x7F | 0x80, number >> 7 & 0x7F | 0x80, number >> 14]) + b"\x00\x01s"


def test_a_block_that_is_allocated_twice_is_replayed(tmp_path: Path) -> None:
    trace = arena.Trace.read(own_trace(tmp_path / "a", events(2 * ALLOCATE), events(2 * ALLOCATE)))
    done = trace.replay(device="sim:1GiB")
    assert done.fits
    assert done.report.account["live"] == done.stats.peak_live == 1024
    for name in ("again.trace", "again.csv"):
        again = arena.Trace.read(trace.save(tmp_path / name))
        assert [event.kind for event in again] == 2 * ["allocate"] + 2 * ["free", "allocate"]
        assert again.replay(device="sim:1GiB").stats.peak_live == 1024


def test_a_name_that_is_no_text_is_refused(tmp_path: Path) -> None:
    trace = arena.Trace.read(own_trace(tmp_path / "a", events(ALLOCATE + b"\x0a\x00\x01\x00\x01\xff")))
    assert len(trace) == 1
    assert "a name that is not valid UTF-8" in trace.problem


def test_scopes_nest_at_most_a_thousand_deep(tmp_path: Path) -> None:
    trace = arena.Trace.read(own_trace(tmp_path / "a", events(b"".join(map(scope_begin, range(200_000))))))
    assert len(trace) == 200_000
    with pytest.raises(arena.UsageError, match="1000 deep"):
        trace.replay(device="sim:1GiB")


@pytest.mark.parametrize(
    ("tag", "data"),
    [
        (container.LINES, b'{"1": [["a.py", Infinity, "f"]]}'),
        (container.LINES, b'{"-1": [["a.py", 1, "f"]]}'),
        (container.LINES, b'{"4294967296": [["a.py", 1, "f"]]}'),
        (container.STEPS, b'[[-3, "step"]]'),
        (container.STEPS, b'[[Infinity, "step"]]'),
    ],
)
def test_invalid_line_and_step_numbers_are_reported(tmp_path: Path, tag: bytes, data: bytes) -> None:
    trace = arena.Trace.read(own_trace(tmp_path / "a", events(ALLOCATE), (tag, data)))
    assert trace.problem.startswith("chunk at event 1")
    assert trace.replay(device="sim:1GiB").fits


def test_a_pickle_with_an_endless_name_is_refused(tmp_path: Path) -> None:
    name: list[Any] = []
    for _ in range(64):  # as text it would have 2^64 brackets
        name = [name, name]
    entry = {"action": "alloc", "addr": 512, "size": 10, "frames": [{"filename": name, "line": 1, "name": "f"}]}
    path = tmp_path / "a.pickle"
    path.write_bytes(pickle.dumps({"device_traces": [[entry]]}))
    with pytest.raises(arena.TraceError, match="a list instead of a string"):
        arena.Trace.read(path)


def change(target: str, path: Path, edit: Callable[[dict[str, Any]], None]) -> Path:
    data = json.loads(corpus.inputs("saved")[target])
    edit(data)
    path.write_text(json.dumps(data))
    return path


@pytest.mark.parametrize(
    ("edit", "text"),
    [
        (lambda data: data.update(account=7), "report.account should be dict"),
        (lambda data: data["account"].pop("spare"), "report.account.spare should be a number"),
        (lambda data: data["device"].pop("total"), "report.device.total should be int"),
        (lambda data: data.update(granule=-1), "report.granule should be a number of bytes, not -1"),
        (lambda data: data.update(request=10**400), "report.request should be int"),
    ],
)
def test_an_invalid_report_is_refused(tmp_path: Path, edit: Callable[[dict[str, Any]], None], text: str) -> None:
    with pytest.raises(arena.UsageError, match=text):
        arena.load(change("report", tmp_path / "a.json", edit))


@pytest.mark.parametrize(
    ("edit", "text"),
    [
        (lambda data: data["stats"].pop("live"), "live"),
        (lambda data: data.update(device=-1), "snapshot.device=-1 is not"),
        (lambda data: data.update(device=(1 << 64) - 1), "snapshot.device=18446744073709551615 is not"),
        (lambda data: data.update(granule=0), "snapshot.granule=0, but"),
        (lambda data: data.update(segments=[[0, 1 << 63]], granule=512), "more than"),
        (lambda data: data["pieces"][0].__setitem__(0, 5), "0x5 is in no segment"),
        (lambda data: data["pieces"].append(data["pieces"][0]), "overlaps another piece"),
        (lambda data: data["pieces"][0].__setitem__(2, "lively"), "lively"),
        (lambda data: data.update(stats=[]), "snapshot.stats should be dict"),
        (lambda data: data.update(stats=None), "snapshot.stats should be dict"),
    ],
)
def test_an_invalid_snapshot_is_refused(tmp_path: Path, edit: Callable[[dict[str, Any]], None], text: str) -> None:
    with pytest.raises(arena.UsageError, match=text):
        arena.load(change("snapshot", tmp_path / "a.json", edit))
