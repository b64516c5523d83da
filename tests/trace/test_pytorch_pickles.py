"""PyTorch's snapshots are pickles: they are read as plain data, and never as anything else."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from arena import Trace, TraceError, _core

from ..arena.conftest import MIB
from .samples import same, snapshot


@pytest.mark.parametrize("protocol", range(2, 6))
def test_a_pytorch_snapshot_whose_history_began_late_is_read(protocol: int, tmp_path: Path) -> None:
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps(snapshot(), protocol))
    trace = Trace.read(path)
    assert [(e.kind, e.block, e.size, e.stream, round(e.time * 1e6)) for e in trace] == [
        ("reserved", 0, MIB, 0, 0),  # 2 MiB at the end, and 1 MiB more than at the start
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
    for read in (trace, log):  # nothing was allocated after the failure, so the run ended with it
        done = read.replay(device="sim:1GiB")
        assert (done.fits, done.stats.live) == (False, 1024 + 512 + 1024)
        assert done.ended_by is not None
        assert done.ended_by.requested == 1 << 35


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
def test_an_invalid_snapshot_is_refused_with_the_place(changes: Any, text: str, tmp_path: Path) -> None:
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps(snapshot(**changes)))
    with pytest.raises(TraceError, match=text):
        Trace.read(path)


HOSTILE_PICKLES = {
    "memo": b"\x80\x02]r\xff\xff\xff\x7f.",  # C's reader would allocate 32 GiB for this number
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


def test_a_pickle_index_consists_of_digits_alone() -> None:
    _core.check_pickle(b"\x80\x04}p5\n.")
    for text in (b"+5", b" 5", b"5_0", b"-1"):
        with pytest.raises(TraceError, match="byte 3: an index that is not a number"):
            _core.check_pickle(b"\x80\x04}p" + text + b"\n.")


def test_keys_with_a_few_parts_are_read() -> None:
    data = {(1, (2, 3)): 4, (1,) * 90: 5, frozenset({1, 2}): {(7, 8)}, "many": [(9,) * 10_000]}
    for protocol in range(6):
        _core.check_pickle(pickle.dumps(data, protocol))


@pytest.mark.parametrize("field", ["action", "addr", "size", "stream", "time_us"])
def test_a_value_that_doubles_at_every_level_is_refused_at_once(field: str, tmp_path: Path) -> None:
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
    with pytest.raises(TraceError, match="two segments share a list of blocks"):
        Trace.read(path)


PLAIN = [1, -5, 1 << 40, 1 << 200, 1.5, None, True, "x" * 300, "ü", b"abc" * 200, (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4)]


@pytest.mark.parametrize("protocol", range(6))
def test_the_scan_before_reading_knows_every_opcode_of_plain_data(protocol: int) -> None:
    data: dict[str, Any] = {"a": [*PLAIN, {1}, frozenset({2}), {}, [], ()], "again": PLAIN, "long": "y" * 70_000}
    for made in (pickle.dumps(data, protocol), pickle._dumps(data, protocol)):
        _core.check_pickle(made)
        for cut in (0, 1, 5, 50, 500, len(made) - 1):
            with pytest.raises(TraceError, match="byte "):
                _core.check_pickle(made[:cut])
