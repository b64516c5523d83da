"""PyTorch's memory snapshot: checked against its documented fields, and with PyTorch's own reader.

The reader is ``torch/cuda/_memory_viz.py``; see the fixture for where it comes from.
"""

from __future__ import annotations

import contextlib
import dataclasses
import pickle
import pickletools
import random
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import arena
from arena import _core, sim
from arena._export import torch

from ..arena.conftest import MIB, MakeArena, Work
from ..simulated.cu import Cu

SEGMENT = {
    "device": int, "address": int, "total_size": int, "allocated_size": int, "active_size": int,
    "requested_size": int, "stream": int, "segment_type": str, "segment_pool_id": tuple, "is_expandable": bool,
    "frames": list, "blocks": list,
}  # fmt: skip
BLOCK = {"address": int, "size": int, "requested_size": int, "state": str, "frames": list}
FRAME = {"filename": str, "line": int, "name": str}


@contextlib.contextmanager
def lines_traced() -> Iterator[None]:
    before = _core.traced_depth()
    _core.trace_lines(4)
    try:
        yield
    finally:
        _core.trace_lines(before)


def busy(pool: arena.Arena, cu: Cu) -> list[arena.Buffer]:
    """Leave live blocks of many sizes on two streams, and gaps of every kind between them."""
    choose, live, stream = random.Random(5), [], cu.stream()
    with lines_traced():
        for _ in range(300):
            if live and choose.random() < 0.5:
                live.pop(choose.randrange(len(live))).free()
            else:
                live.append(pool.allocate(choose.choice([10, 5000, 300_000, 3 * MIB]), choose.choice([0, stream])))
    return live


def read(path: Path) -> Any:
    return pickle.loads(path.read_bytes())


def fields_are(data: dict[str, Any], fields: dict[str, type]) -> bool:
    return {name: type(value) for name, value in data.items()} == fields


@pytest.mark.parametrize("vmm", [True, False], ids=["virtual", "plain"])
def test_every_field_is_present_and_has_its_type(make: MakeArena, cu: Cu, tmp_path: Path, vmm: bool) -> None:
    pool = make(cap="256MiB", vmm=vmm)
    live = busy(pool, cu)
    data = read(pool.snapshot().to_torch(tmp_path / "s.pickle"))
    assert {name: type(value) for name, value in data.items()} == {
        "segments": list, "device_traces": list, "allocator_settings": dict, "external_annotations": list,
    }  # fmt: skip
    assert data["device_traces"] == [[]]
    assert data["segments"]
    for segment in data["segments"]:
        assert fields_are(segment, SEGMENT)
        assert segment["is_expandable"] is vmm
        assert segment["segment_type"] in ("large", "small")
        assert segment["blocks"]
        for block in segment["blocks"]:
            assert fields_are(block, BLOCK)
            assert block["state"] in ("active_allocated", "active_pending_free", "inactive")
            assert all(fields_are(frame, FRAME) for frame in block["frames"])
    del live


@pytest.mark.parametrize("vmm", [True, False], ids=["virtual", "plain"])
def test_the_blocks_tile_the_segments_and_add_up_to_the_account(make: MakeArena, cu: Cu, vmm: bool) -> None:
    pool = make(cap="256MiB", reserve="128MiB", vmm=vmm)
    live = busy(pool, cu)
    snapshot = pool.snapshot()
    data = torch.convert(snapshot)
    stats = snapshot.stats
    for segment in data["segments"]:
        end = segment["address"]
        for block in segment["blocks"]:
            assert block["address"] == end
            end += block["size"]
        assert end == segment["address"] + segment["total_size"]

    def total(field: str) -> int:
        return sum(segment[field] for segment in data["segments"])

    assert total("total_size") == stats["reserved"] - stats["spare"]
    assert total("allocated_size") == stats["live"]
    assert total("active_size") == stats["live"] + stats["pending"]
    assert total("requested_size") == stats["requested"] + stats["pending"]
    assert data["allocator_settings"]["spare"] == stats["spare"]
    blocks = [block for segment in data["segments"] for block in segment["blocks"]]
    assert {b["address"] for b in blocks if b["state"] == "active_allocated"} == {buffer.ptr for buffer in live}
    if stats["pending"] == 0:
        assert max(b["size"] for b in blocks if b["state"] == "inactive") == snapshot.largest_free


def test_a_segment_with_a_hole_becomes_two(make: MakeArena) -> None:
    pool = make(cap="64MiB", growth="2MiB")
    first, middle, last = (pool.allocate(4 * MIB) for _ in range(3))
    middle.free()
    pool.trim()
    snapshot = pool.snapshot()
    assert len(snapshot.segments) == 1
    one, two = torch.convert(snapshot)["segments"]
    assert (one["address"], one["total_size"]) == (first.ptr, 4 * MIB)
    assert (two["address"], two["total_size"]) == (last.ptr, 4 * MIB)


def test_plain_segments_that_touch_stay_separate(make: MakeArena) -> None:
    pool = make(cap="64MiB", vmm=False)
    pool.allocate(4 * MIB).free()
    snapshot = pool.snapshot()
    (segment,), (piece,) = snapshot.segments, snapshot.pieces
    end = segment.address + segment.size
    two = dataclasses.replace(
        snapshot,
        device=1,
        segments=[segment, segment._replace(address=end)],
        pieces=[piece, piece._replace(address=end)],
    )
    data = torch.convert(two)
    assert [converted["address"] for converted in data["segments"]] == [segment.address, end]
    assert data["device_traces"] == [[], []]


def test_a_block_that_a_stream_still_uses_is_pending_and_drawn(make: MakeArena, cu: Cu, work: Work) -> None:
    pool = make(cap="64MiB")
    stream = cu.stream()
    with sim.temporarily(delay=50_000):
        with pool.allocate(8 * MIB, stream) as buffer:
            work.fill(buffer, 1, stream)
        (segment,) = torch.convert(pool.snapshot())["segments"]
        cu.ok("cuStreamSynchronize", stream)
    (block,) = segment["blocks"]
    assert block["state"] == "active_pending_free"
    assert block["requested_size"] == block["size"] == segment["active_size"] == segment["requested_size"]
    assert segment["allocated_size"] == 0


def test_a_segment_names_its_stream_if_it_has_one(make: MakeArena, cu: Cu) -> None:
    pool = make(cap="64MiB")
    stream = cu.stream()
    one = pool.allocate(1000, stream)
    assert [segment["stream"] for segment in torch.convert(pool.snapshot())["segments"]] == [stream]
    two = pool.allocate(1000, 0)
    assert [segment["stream"] for segment in torch.convert(pool.snapshot())["segments"]] == [0]
    del one, two


def test_source_lines_are_the_frames_innermost_first(make: MakeArena) -> None:
    pool = make(cap="64MiB")

    def inner() -> arena.Buffer:
        return pool.allocate(1000)

    def outer() -> arena.Buffer:
        return inner()

    with lines_traced():
        buffer = outer()
    block = torch.convert(pool.snapshot())["segments"][0]["blocks"][0]
    frames = [frame for frame in block["frames"] if frame["filename"] == __file__]
    assert [frame["name"].rpartition(".")[2] for frame in frames[:2]] == ["inner", "outer"]
    assert [frame["line"] for frame in frames[:2]] == [f.__code__.co_firstlineno + 1 for f in (inner, outer)]
    del buffer


# What the viewer in the browser can read: its unpickler knows protocols 2 to 4, and these of the opcodes that plain
# data needs.
OPCODES = {
    "PROTO", "FRAME", "STOP", "MARK", "MEMOIZE", "BINGET", "LONG_BINGET", "EMPTY_DICT", "EMPTY_LIST", "EMPTY_TUPLE",
    "SETITEM", "SETITEMS", "APPEND", "APPENDS", "TUPLE1", "TUPLE2", "TUPLE3", "NEWTRUE", "NEWFALSE", "NONE", "BININT",
    "BININT1", "BININT2", "LONG1", "SHORT_BINUNICODE", "BINUNICODE",
}  # fmt: skip


def test_the_pickle_uses_only_what_the_viewer_in_the_browser_can_read(make: MakeArena, cu: Cu, tmp_path: Path) -> None:
    pool = make(cap="256MiB")
    live = busy(pool, cu)
    snapshot = pool.snapshot()
    data = snapshot.to_torch(tmp_path / "s.pickle").read_bytes()
    used = {(code.name, argument if code.name == "PROTO" else None) for code, argument, _ in pickletools.genops(data)}
    assert ("PROTO", 4) in used
    assert {name for name, _ in used} <= OPCODES
    del live


def test_an_empty_arena_can_be_written(make: MakeArena, tmp_path: Path, memory_viz: ModuleType) -> None:
    data = read(make(cap="64MiB").snapshot().to_torch(tmp_path / "s.pickle"))
    assert data["segments"] == []
    assert "total_reserved: 0.0B" in memory_viz.segsum(data)


def test_a_snapshot_overwrites_only_on_request(make: MakeArena, tmp_path: Path) -> None:
    snapshot, target = make(cap="64MiB").snapshot(), tmp_path / "s.pickle"
    assert snapshot.to_torch(target) == target
    with pytest.raises(arena.UsageError, match=f"{target} already exists"):
        snapshot.to_torch(str(target))
    snapshot.to_torch(target, overwrite=True)


@pytest.mark.parametrize("vmm", [True, False], ids=["virtual", "plain"])
def test_pytorchs_reader_counts_what_the_account_says(
    make: MakeArena, cu: Cu, tmp_path: Path, memory_viz: ModuleType, vmm: bool
) -> None:
    pool = make(cap="256MiB", vmm=vmm)
    live = busy(pool, cu)
    snapshot = pool.snapshot()
    data = read(snapshot.to_torch(tmp_path / "s.pickle"))
    text = memory_viz.segsum(data)  # it raises if its own sums do not add up
    stats = snapshot.stats
    assert f"segments: {len(data['segments'])}\n" in text
    assert f"total_reserved: {memory_viz.Bytes(stats['reserved'] - stats['spare'])}\n" in text
    assert f"total_allocated: {memory_viz.Bytes(stats['requested'])}\n" in text
    assert memory_viz.trace(data) == ""
    del live


def test_pytorchs_reader_makes_flame_graphs_of_the_lines(
    make: MakeArena, cu: Cu, tmp_path: Path, memory_viz: ModuleType
) -> None:
    pool = make(cap="256MiB")
    live = busy(pool, cu)
    snapshot = pool.snapshot()
    data = read(snapshot.to_torch(tmp_path / "s.pickle"))
    for graph in (memory_viz.memory, memory_viz.segments):
        rows = [row.rsplit(" ", 1) for row in graph(data, format_flamegraph=lambda text: text).splitlines()]
        assert sum(int(size) for _, size in rows) == snapshot.stats["reserved"] - snapshot.stats["spare"]
        asked = sum(int(size) for stack, size in rows if ";active_allocated;" in stack and "busy" in stack)
        assert asked == snapshot.stats["requested"]
    del live


def test_pytorchs_reader_compares_two_snapshots(
    make: MakeArena, tmp_path: Path, memory_viz: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    pool = make(cap="64MiB", vmm=False)
    before = torch.convert(pool.snapshot())
    buffer = pool.allocate(4 * MIB)
    after = torch.convert(pool.snapshot())
    memory_viz.compare(before["segments"], after["segments"], format_flamegraph=lambda text: text)
    assert capsys.readouterr().out == f"only_before = []\nonly_after = [{buffer.ptr}]\n"


def test_pytorchs_reader_makes_its_pages(make: MakeArena, tmp_path: Path, memory_viz: ModuleType) -> None:
    pool = make(cap="64MiB")
    buffer = pool.allocate(1000)
    data = read(pool.snapshot().to_torch(tmp_path / "s.pickle"))
    assert "Allocator State History" in memory_viz.segment_plot(data)
    del buffer
