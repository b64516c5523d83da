"""Converts a snapshot to PyTorch's format: the pickle that its viewer and ``torch/cuda/_memory_viz.py`` read.

In PyTorch a segment is contiguously backed, so a segment with holes becomes several. PyTorch has no concept of unmapped
memory: ``spare`` is in the settings, and in no segment.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .._core import __version__
from .._inspect.snapshot import Line, Piece, Snapshot, no_collection
from .._util import files

__all__ = ["convert", "write"]

# The viewer in the browser reads protocols 2 to 4; the default of Python 3.14 is 5.
_PROTOCOL = 4

# Pending and captured memory was freed by the program, but cannot be reused yet.
_STATES = {"live": "active_allocated", "pending": "active_pending_free", "captured": "active_pending_free"}

_Frames = dict[tuple[Line, ...], list[dict[str, Any]]]


def write(snapshot: Snapshot, path: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
    """Write the pickle."""

    def chunks() -> Iterator[bytes]:  # runs only after the path was checked
        with no_collection():
            yield pickle.dumps(convert(snapshot), protocol=_PROTOCOL)

    return files.write(path, chunks(), overwrite=overwrite)


def convert(snapshot: Snapshot) -> dict[str, Any]:
    """Convert to built-in types only."""
    frames: _Frames = {}
    return {
        "segments": [_segment(snapshot, run, frames) for run in _runs(snapshot)],
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


def _runs(snapshot: Snapshot) -> Iterator[list[Piece]]:
    """The pieces of each segment, split where nothing is mapped."""
    starts = {segment.address for segment in snapshot.segments}
    run: list[Piece] = []
    for piece in snapshot.pieces:
        if run and (piece.address != run[-1].address + run[-1].size or piece.address in starts):
            yield run
            run = []
        run.append(piece)
    if run:
        yield run


def _segment(snapshot: Snapshot, run: list[Piece], frames: _Frames) -> dict[str, Any]:
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
        "segment_pool_id": (0, 0),
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
                    "frames": _frames(piece.lines, frames),
                }
            )
    for block in blocks:
        if block["state"] == "active_pending_free":
            block["requested_size"] = block["size"]  # the viewer draws blocks by this
    return blocks


def _frames(lines: tuple[Line, ...], known: _Frames) -> list[dict[str, Any]]:
    """Frames, innermost first in both formats. Blocks with the same lines share one list, which is pickled once."""
    if lines not in known:
        known[lines] = [{"filename": file, "line": line, "name": function} for file, line, function in lines]
    return known[lines]
