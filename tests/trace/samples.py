"""Random work to record, a comparison of traces, and a PyTorch snapshot to read."""

from __future__ import annotations

import random
from typing import Any

import arena
from arena import Trace

from ..arena.conftest import MIB


def random_work(pool: arena.Arena, streams: list[int], steps: int, seed: int) -> list[arena.Buffer]:
    """Allocate, free and trim at random, and return the buffers that are live at the end."""
    choose, live = random.Random(seed), list[arena.Buffer]()
    for step in range(steps):
        if step % 97 == 96:
            pool.trim()
        elif live and choose.random() < 0.48:
            live.pop(choose.randrange(len(live))).free()
        else:
            live.append(pool.allocate(choose.choice([10, 5000, 300_000, 3 * MIB]), choose.choice(streams)))
    return live


def raw(trace: Trace) -> list[tuple[int, ...]]:
    return [trace._core.event(index) for index in range(len(trace))]


def same(one: Trace, other: Trace) -> bool:
    """Whether two traces are equal in everything they hold."""
    scopes = {event.block for event in one if event.kind == "scope_begin"}
    return (
        raw(one) == raw(other)
        and (one.lines, one.steps, one.facts, one.problem) == (other.lines, other.steps, other.facts, other.problem)
        and [one.scope_name(scope) for scope in scopes] == [other.scope_name(scope) for scope in scopes]
        and [one._core.handle_of(i) for i in range(one._core.streams)]
        == [other._core.handle_of(i) for i in range(other._core.streams)]
    )


def snapshot(**changes: Any) -> dict[str, Any]:
    """A snapshot as torch.cuda.memory._dump_snapshot writes it, with a history that began late."""
    frames = [{"filename": "train.py", "line": 8, "name": "step"}, {"filename": "train.py", "line": 90, "name": "main"}]

    def entry(action: str, addr: int, size: int, time: int, **more: Any) -> dict[str, Any]:
        return {
            "action": action,
            "addr": addr,
            "size": size,
            "stream": 0,
            "time_us": time,
            "compile_context": "N/A",
            **more,
        }

    blocks = [
        {"address": 0, "size": 1024, "requested_size": 1000, "state": "active_allocated", "frames": frames},
        {"address": 1024, "size": 1024, "requested_size": 0, "state": "inactive", "frames": []},
        {"address": 2048, "size": 512, "requested_size": 300, "state": "active_allocated", "frames": []},
        {"address": 2560, "size": 2 * MIB - 2560, "requested_size": 9, "state": "active_pending_free", "frames": []},
    ]
    segment = {"device": 0, "address": 0, "total_size": 2 * MIB, "stream": 0, "segment_type": "small", "blocks": blocks}
    history = [
        entry("free_requested", 4096, 512, 1000, frames=frames),  # live before the history began
        entry("free_completed", 4096, 512, 1001),
        entry("segment_map", MIB, MIB, 1002),
        entry("alloc", 2048, 300, 1003, frames=frames),
        entry("snapshot", 0, 0, 1004),
        entry("alloc", 8192, 700, 1005, stream=77),
        entry("segment_unmap", MIB, MIB, 1006),
        {"action": "oom", "device_free": 5, "size": 1 << 35, "stream": 77, "time_us": 1007},
        entry("free_requested", 8192, 700, 1008),
        entry("segment_alloc", 9 * MIB, MIB, 1009),
    ]
    notes = [
        {"device": 0, "time_us": 1003, "name": "forward", "stage": "START"},
        {"device": 1, "time_us": 1003, "name": "elsewhere", "stage": "START"},
        {"device": 0, "time_us": 1006, "name": "forward", "stage": "END"},
        {"device": 0, "time_us": 1006, "name": "backward", "stage": "START"},
    ]
    data = {
        "segments": [segment],
        "device_traces": [history, []],
        "allocator_settings": {"expandable_segments": True},
        "external_annotations": notes,
    }
    return {**data, **changes}
