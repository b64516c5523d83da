"""PyTorch's snapshot and history of memory that comes from an arena, in PyTorch's format."""

from __future__ import annotations

from typing import Any

from .. import _core
from .._core import __version__
from .._export.torch import NO_POOL, PoolId, Pools, frames_of, segments_of
from .._inspect.lines import trace_lines
from .._inspect.snapshot import Line, Snapshot, no_collection

__all__ = ["frames_at", "record", "take"]

_DEPTH = 16  # lines that are kept of each allocation; PyTorch keeps all, and those of C++

_Frames = dict[tuple[Line, ...], list[dict[str, Any]]]


def record(enabled: str | None, context: str | None, most: int, *, clears: bool) -> None:
    """Keep a history: ``torch.cuda.memory._record_memory_history()``, with its arguments."""
    if enabled not in (None, "state", "all"):
        raise RuntimeError(f"expected enabled to be one of None, 'state' or 'all', got {enabled!r}")
    if enabled is None:
        _core.stop_torch_history()
        return
    if context is not None:
        trace_lines(True, depth=_DEPTH)
    _core.start_torch_history(most if enabled == "all" else 0, clears=clears)


def take(pool: PoolId, count: int, *, with_history: bool = True) -> dict[str, Any]:
    """Return the memory of a pool, or all of it for ``(0, 0)``, on all of ``count`` devices."""
    frames: _Frames = {}
    with no_collection():
        segments = [segment for device in range(count) for segment in _segments(device, frames)]
        if pool != NO_POOL:
            segments = [segment for segment in segments if segment["segment_pool_id"] == pool]
        return {
            "segments": segments,
            "device_traces": _history(count, frames) if with_history else [[] for _ in range(count)],
            "external_annotations": [],
            "allocator_settings": {"allocator": f"arena {__version__}", "expandable_segments": True},
            "host_segments": [],
            "host_traces": [],
        }


def frames_at(address: int) -> list[dict[str, Any]] | None:
    """Return the lines that allocated a block, innermost first; None if they are not known."""
    return frames_of(tuple(_core.torch_lines(address)), {}) or None


def _segments(device: int, frames: _Frames) -> list[dict[str, Any]]:
    pools = _core.torch_pools()
    found = []
    for core in _core.torch_arenas(device):
        mine = [(pool, is_own, ranges) for pool, arena, is_own, ranges in pools if arena == core.id]
        everything = next((pool for pool, is_own, _ in mine if is_own), NO_POOL)
        ranges = [(address, size, pool) for pool, _, parts in mine for address, size in parts]
        snapshot = Snapshot._of(device, core.id, core.snapshot(False), may_move=False, moving="")
        found += segments_of(snapshot, Pools(ranges, everything), frames)
    return found


def _history(count: int, frames: _Frames) -> list[list[dict[str, Any]]]:
    traces: list[list[dict[str, Any]]] = [[] for _ in range(count)]
    for action, device, address, size, stream, lines, time in _core.torch_history():
        entry = {"action": action, "size": size, "stream": stream, "time_us": time, "pool_id": NO_POOL}
        entry["device_free" if action == "oom" else "addr"] = address
        entry["frames"] = frames_of(tuple(lines), frames)
        if device < count:
            traces[device].append(entry)
    return traces
