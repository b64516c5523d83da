"""PyTorch's snapshots and history of memory that comes from an arena."""

from __future__ import annotations

import json
import pickle
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.cuda import _memory_viz

import arena

from .tensors import MIB, mebibytes

memory = torch.cuda.memory


def blocks(snapshot: dict[str, Any]) -> dict[int, dict[str, Any]]:
    return {
        block["address"]: block
        for segment in snapshot["segments"]
        for block in segment["blocks"]
        if block["state"] == "active_allocated"
    }


def test_a_snapshot_has_every_block_and_adds_up(pool: arena.Arena) -> None:
    held = [mebibytes(3), torch.empty(100, device="cuda")]
    snapshot = memory._snapshot()
    found = blocks(snapshot)
    assert {x.data_ptr() for x in held} == set(found)
    assert found[held[1].data_ptr()]["requested_size"] == 400
    assert sum(segment["total_size"] for segment in snapshot["segments"]) <= pool.stats().reserved
    assert sum(segment["allocated_size"] for segment in snapshot["segments"]) == torch.cuda.memory_allocated()
    assert torch.cuda.memory_snapshot() == snapshot["segments"]


def test_pytorchs_own_tools_accept_it(pool: arena.Arena, tmp_path: Path) -> None:
    memory._record_memory_history(max_entries=1000)
    held = [mebibytes(3), mebibytes(1)]
    held.pop(0)
    snapshot = memory._snapshot()
    for picture in (_memory_viz.memory, _memory_viz.segments):
        assert picture(snapshot, format_flamegraph=lambda lines: lines)  # PyTorch's would download a program
    assert "4 entries" in _memory_viz.trace(snapshot)
    assert "<html" in _memory_viz.trace_plot(snapshot)
    assert "<html" in _memory_viz.segment_plot(snapshot)
    json.dumps(snapshot)
    file = tmp_path / "snapshot.pickle"
    memory._dump_snapshot(str(file))
    assert pickle.loads(file.read_bytes())["segments"] == snapshot["segments"]
    memory._record_memory_history(None)


def test_the_arenas_reader_accepts_it(pool: arena.Arena, tmp_path: Path) -> None:
    memory._record_memory_history()
    held = [mebibytes(size) for size in (1, 2, 3)]
    del held[0]
    with pytest.raises(torch.OutOfMemoryError):
        mebibytes(1000)
    file = tmp_path / "snapshot.pickle"
    memory._dump_snapshot(str(file))
    trace = arena.Trace.read(file)
    assert sum(1 for event in trace if event.kind == "allocate") == 3
    assert sum(1 for event in trace if event.kind == "free") == 1
    assert sum(1 for event in trace if event.kind == "failure") == 1
    (failure,) = (entry for entry in memory._snapshot()["device_traces"][0] if entry["action"] == "oom")
    assert (failure["device_free"], failure["size"]) == (torch.cuda.mem_get_info()[0], 1000 * MIB)
    assert any("test_snapshots" in line.file for lines in trace.lines.values() for line in lines)


def test_a_history_has_what_happened_and_where(pool: arena.Arena) -> None:
    assert not torch._C._cuda_isHistoryEnabled()
    before = mebibytes(1)
    memory._record_memory_history(max_entries=1000)
    assert torch._C._cuda_isHistoryEnabled()
    x = torch.empty(1000, device="cuda")  # this line
    address = x.data_ptr()
    del x
    entries = memory._snapshot()["device_traces"][0]
    assert [entry["action"] for entry in entries] == ["alloc", "free_requested", "free_completed"]
    assert {(entry["addr"], entry["size"]) for entry in entries} == {(address, 4000)}
    frame = entries[0]["frames"][0]
    assert frame["filename"].endswith("test_snapshots.py")
    assert "this line" in Path(frame["filename"]).read_text().splitlines()[frame["line"] - 1]
    memory._record_memory_history(None)
    assert memory._snapshot()["device_traces"] == [[]]
    del before


def test_a_history_keeps_the_last_events_only(pool: arena.Arena) -> None:
    memory._record_memory_history(max_entries=5)
    for _ in range(10):
        mebibytes(1)
    assert len(memory._snapshot()["device_traces"][0]) == 5
    memory._record_memory_history(None)
    assert memory._snapshot()["device_traces"] == [[]]
    memory._record_memory_history("state")
    x = mebibytes(1)
    snapshot = memory._snapshot()
    assert snapshot["device_traces"] == [[]]
    assert blocks(snapshot)[x.data_ptr()]["frames"]
    memory._record_memory_history(None)


def test_a_history_can_be_cleared_when_it_is_started_again(pool: arena.Arena) -> None:
    if "clear_history" not in signature(memory._record_memory_history_impl).parameters:
        pytest.skip("this PyTorch does not clear a history")
    memory._record_memory_history()
    mebibytes(1)
    memory._record_memory_history(clear_history=False)
    assert len(memory._snapshot()["device_traces"][0]) == 3
    memory._record_memory_history(clear_history=True)
    assert memory._snapshot()["device_traces"] == [[]]
    memory._record_memory_history(None)


def test_the_lines_of_one_tensor_are_known(pool: arena.Arena) -> None:
    if not hasattr(memory, "_allocation_traceback"):
        pytest.skip("this PyTorch does not ask for the lines of one tensor")
    memory._record_memory_history()
    x = mebibytes(1)
    frames = memory._allocation_traceback(x.untyped_storage().data_ptr())
    assert frames is not None
    assert frames[-1]["filename"]
    assert memory._allocation_traceback(1) is None
    memory._record_memory_history(None)


def test_what_was_freed_is_not_live_in_a_snapshot(pool: arena.Arena) -> None:
    x = mebibytes(20)
    address = x.data_ptr()
    del x
    snapshot = memory._snapshot()
    assert address not in blocks(snapshot)
    assert sum(segment["total_size"] for segment in snapshot["segments"]) >= 20 * MIB
