"""Converts a snapshot to PyTorch's format: the pickle that its viewer and ``torch/cuda/_memory_viz.py`` read.

In PyTorch a segment is contiguously backed, so a segment with holes becomes several. PyTorch has no concept of unmapped
memory: ``spare`` is in the settings, and in no segment.
"""

from __future__ import annotations

import bisect
import os
import pickle
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from .._core import __version__
from .._inspect.snapshot import Line, Piece, Snapshot, no_collection
from .._util import files

__all__ = ["PoolId", "Pools", "convert", "frames_of", "segments_of", "write"]

# The viewer in the browser reads protocols 2 to 4; the default of Python 3.14 is 5.
_PROTOCOL = 4

# Pending and captured memory was freed by the program, but cannot be reused yet.
_STATES = {"live": "active_allocated", "pending": "active_pending_free", "captured": "active_pending_free"}

_Frames = dict[tuple[Line, ...], list[dict[str, Any]]]

PoolId = tuple[int, int]
NO_POOL: PoolId = (0, 0)


class Pools:
    """Which memory belongs to PyTorch's pools. A pool that has ``everything`` has all of the arena."""

    def __init__(self, ranges: Iterable[tuple[int, int, PoolId]] = (), everything: PoolId = NO_POOL) -> None:
        self._everything = everything
        self._ranges = sorted(ranges)  # (address, size, pool)
        self._starts = [start for start, _, _ in self._ranges]

    def at(self, address: int) -> PoolId:
        """Return the id of the pool that an address belongs to."""
        index = bisect.bisect_right(self._starts, address) - 1
        if index >= 0:
            start, size, pool = self._ranges[index]
            if address < start + size:
                return pool
        return self._everything


def write(snapshot: Snapshot, path: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
    """Write the pickle."""

    def chunks() -> Iterator[bytes]:  # runs only after the path was checked
        with no_collection():
            yield pickle.dumps(convert(snapshot), protocol=_PROTOCOL)

    return files.write(path, chunks(), overwrite=overwrite)


def convert(snapshot: Snapshot) -> dict[str, Any]:
    """Convert to built-in types only."""
    return {
        "segments": segments_of(snapshot, Pools(), {}),
        "device_traces": [[] for _ in range(snapshot.device + 1)],  # one per device, up to this one
        "allocator_settings": {
            "allocator": f"arena {__version__}",
            "expandable_segments": not snapshot.plain,
            "granule": snapshot.granule,
            "cap": snapshot.stats["cap"],
            "headroom": snapshot.stats["headroom"],
            "spare": snapshot.stats["spare"],
        },
        "external_annotations": [],
    }


def segments_of(snapshot: Snapshot, pools: Pools, frames: _Frames) -> list[dict[str, Any]]:
    """Convert the segments. ``frames`` are those of earlier calls, to be shared."""
    return [_segment(snapshot, run, pools, frames) for run in _runs(snapshot, pools)]


def _runs(snapshot: Snapshot, pools: Pools) -> Iterator[list[Piece]]:
    """The pieces of each segment, split where nothing is mapped, and between pools."""
    starts = {segment.address for segment in snapshot.segments}
    run: list[Piece] = []
    for piece in snapshot.pieces:
        if run and (
            piece.address != run[-1].address + run[-1].size
            or piece.address in starts
            or pools.at(piece.address) != pools.at(run[-1].address)
        ):
            yield run
            run = []
        run.append(piece)
    if run:
        yield run


def _segment(snapshot: Snapshot, run: list[Piece], pools: Pools, frames: _Frames) -> dict[str, Any]:
    blocks = _blocks(run, frames)
    active = [block for block in blocks if block["state"] != "inactive"]
    streams = {piece.stream for piece in run if piece.state == "live"}
    return {
        "device": snapshot.device,
        "address": run[0].address,
        "total_size": sum(block["size"] for block in blocks),
        "allocated_size": sum(block["size"] for block in blocks if block["state"] == "active_allocated"),
        "active_size": sum(block["size"] for block in active),
        "requested_size": sum(block["requested_size"] for block in active),
        "stream": streams.pop() if len(streams) == 1 else 0,  # PyTorch's segments belong to one stream
        "segment_type": "large",
        "segment_pool_id": pools.at(run[0].address),
        "is_expandable": not snapshot.plain,
        "frames": [],
        "blocks": blocks,
    }


def _blocks(run: list[Piece], frames: _Frames) -> list[dict[str, Any]]:
    """The blocks of a run. Free neighbours become one block, as in PyTorch."""
    blocks: list[dict[str, Any]] = []
    for piece in run:
        state = _STATES.get(piece.state, "inactive")
        if blocks and state != "active_allocated" and blocks[-1]["state"] == state:
            blocks[-1]["size"] += piece.size
        else:
            blocks.append(
                {
                    "address": piece.address,
                    "size": piece.size,
                    "requested_size": piece.requested,
                    "state": state,
                    "frames": frames_of(piece.lines, frames),
                }
            )
    for block in blocks:
        if block["state"] == "active_pending_free":
            block["requested_size"] = block["size"]  # the viewer draws blocks by this
    return blocks


def frames_of(lines: tuple[Line, ...], known: _Frames) -> list[dict[str, Any]]:
    """Convert lines to frames, innermost first. Blocks with the same lines share one list, which is pickled once."""
    if lines not in known:
        known[lines] = [{"filename": file, "line": line, "name": function} for file, line, function in lines]
    return known[lines]
