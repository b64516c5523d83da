"""Traces from other tools: RMM's logs and PyTorch's memory snapshots."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest

from arena import Trace, TraceError, UsageError

from ..arena.conftest import MIB, MakeArena
from ..simulated.cu import Cu
from .samples import random_work

LOG = """Thread,Time,Action,Pointer,Size,Stream
140737353,23:59:59.999000,allocate,0x7f1000000000,1024,0
140737354,00:00:00.000500,allocate,0x7f1000000400,4096,0x55d0c0
140737353,00:00:00.001000,free,0x7f1000000000,1024,0
140737353,00:00:00.001500,allocate,0x7f1000000000,512,0
140737353,00:00:00.002000,allocate failure,(nil),99999999999,0
140737354,00:00:00.002500,free,0x7f1000000400,4096,0x55d0c0
140737354,00:00:00.003000,free,0x7f2000000000,77,0
"""


def test_an_rmm_log_is_read(tmp_path: Path) -> None:
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
    assert (done.fits, done.events, done.stats.live, done.peak_live) == (
        False,
        5,
        4608,
        5120,
    )  # it ended with a failure


def test_a_trace_is_written_as_an_rmm_log_and_read_back(make: MakeArena, cu: Cu, tmp_path: Path) -> None:
    pool = make(cap="2GiB")
    with pool.record(tmp_path / "run.arena"):
        random_work(pool, [0, cu.stream()], 500, 4)
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
def test_an_invalid_line_of_a_log_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "rmm.csv"
    path.write_text(LOG + line + "\n")
    with pytest.raises(TraceError, match="line 9: "):
        Trace.read(path)


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


def test_the_history_of_a_pytorch_snapshot_is_read(tmp_path: Path) -> None:
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
        ([1, 2], "is not a PyTorch snapshot"),
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
