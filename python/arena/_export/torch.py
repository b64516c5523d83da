"""A snapshot as PyTorch's memory snapshot: the pickle that its viewer and ``torch/cuda/_memory_viz.py`` read.

PyTorch reports one segment for each run of addresses that is backed throughout, so a segment with holes becomes
several. It has no word for memory that is mapped nowhere: ``spare`` is in the settings, and in no segment.
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

# The viewer in the browser reads protocols 2 to 4, and the default of Python 3.14 is 5.
_PROTOCOL = 4

# Both were freed by the program and cannot be reused yet.
_STATES = {"live": "active_allocated", "pending": "active_pending_free", "captured": "active_pending_free"}

_Frames = dict[tuple[Line, ...], list[dict[str, Any]]]


def write(snapshot: Snapshot, path: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
    """Write the pickle."""

    def chunks() -> Iterator[bytes]:  # not before the path was found to be good
        with no_collection():
            yield pickle.dumps(convert(snapshot), protocol=_PROTOCOL)

    return files.write(path, chunks(), overwrite=overwrite)


def convert(snapshot: Snapshot) -> dict[str, Any]:
    """Return what is pickled: builtin types only."""
    frames: _Frames = {}
    return {
        "segments": [_segment(snapshot, run, frames) for run in _runs(snapshot)],
        "device_traces": [[] for _ in range(snapshot.device + 1)],  # one for each device up to this one
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
    """The pieces of each segment, divided where nothing is mapped."""
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
        "stream": streams.pop() if len(streams) == 1 else 0,  # there a segment is of one stream, here of any
        "segment_type": "large",
        "segment_pool_id": (0, 0),
        "is_expandable": not snapshot.plain,
        "frames": [],
        "blocks": blocks,
    }


def _blocks(run: list[Piece], frames: _Frames) -> list[dict[str, Any]]:
    """Free neighbours are one block, as they are there."""
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
            block["requested_size"] = block["size"]  # by which the viewer draws it
    return blocks


def _frames(lines: tuple[Line, ...], known: _Frames) -> list[dict[str, Any]]:
    """Innermost first in both. Blocks of the same lines share a list, and so it is in the pickle once."""
    if lines not in known:
        known[lines] = [{"filename": file, "line": line, "name": function} for file, line, function in lines]
    return known[lines]
