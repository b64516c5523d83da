"""A replay sees exactly the arena of the recorded run, however and whenever either was inspected."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

import arena
from arena import Trace, _core

from ..arena.conftest import MIB, MakeArena
from ..simulated.cu import Cu

SIZES = (1, 512, 5000, 40_000, 300_000, 2 * MIB, 3 * MIB + 1, 9 * MIB)
PLAYED = ("allocate", "free", "record_stream", "trim", "compact", "scope_begin", "scope_end")
CAP = "96MiB"


class Program:
    """Allocate and free on several streams, in scopes, and trim. ``looked`` is what was seen, by event."""

    def __init__(self, pool: arena.Arena, streams: list[Any], seed: int) -> None:
        self.pool, self.streams = pool, streams
        self.choose, self.look = random.Random(seed), random.Random(seed + 1000)
        self.live: list[arena.Buffer] = []
        self.scopes: list[arena.Scope] = []

    def step(self) -> None:
        chance = self.choose.random()
        if chance < 0.02:
            self.pool.trim(compact=self.choose.random() < 0.5)
        elif chance < 0.05:
            self.scope()
        elif chance < 0.08 and self.live:
            self.choose.choice(self.live).record_stream(self.choose.choice(self.streams))
        elif chance < 0.5 and self.live:
            self.live.pop(self.choose.randrange(len(self.live))).free()
        else:
            self.take()

    def scope(self) -> None:
        if self.scopes and self.choose.random() < 0.5:
            self.scopes.pop().__exit__(None, None, None)
        else:
            self.scopes.append(self.pool.scope(f"scope {len(self.scopes)}"))
            self.scopes[-1].__enter__()

    def take(self) -> None:
        size, stream = self.choose.choice(SIZES), self.choose.choice(self.streams)
        try:
            self.live.append(self.pool.allocate(size, stream))
        except arena.OutOfMemoryError:
            for _ in range(len(self.live) // 2):
                self.live.pop(self.choose.randrange(len(self.live))).free()

    def end(self) -> None:
        while self.scopes:
            self.scopes.pop().__exit__(None, None, None)


def figures(pool: arena.Arena) -> dict[str, int]:
    """What does not depend on when the device is done: pending memory becomes releasable by itself."""
    stats = pool.stats()
    names = ("requested", "live", "reserved", "stranded", "spare", "compactable", "blocks", "maps")
    found = {name: int(getattr(stats, name)) for name in (*names, "rebacked", "peak_live", "peak_reserved")}
    return {**found, "idle": stats.pending + stats.releasable}


def look(pool: arena.Arena, choose: random.Random) -> None:
    """Inspect the arena in any way at any time."""
    ways = (pool.stats, pool.snapshot, pool.report, pool.metrics, pool.validate)
    if choose.random() < 0.2:
        choose.choice(ways)()


@pytest.mark.parametrize("vmm", [True, False], ids=["virtual", "plain"])
@pytest.mark.parametrize("seed", range(4))
def test_the_account_matches_the_run_at_every_step_with_or_without_inspection(
    make: MakeArena, cu: Cu, tmp_path: Path, seed: int, vmm: bool
) -> None:
    pool = make(cap=CAP, vmm=vmm, compact=True)
    program = Program(pool, [0, cu.owned_stream(), cu.owned_stream()], seed)
    seen: dict[int, dict[str, int]] = {}
    with pool.record(tmp_path / "run.arena") as recording:
        for step in range(800):
            program.step()
            look(pool, program.look)
            if step % 7 == seed:  # not at every step: inspecting must not be what makes them agree
                seen[recording.events] = figures(pool)
        program.end()
    trace = Trace.read(tmp_path / "run.arena")
    other = make(cap=CAP, vmm=vmm, compact=True)
    replay, choose = _core.Replay(trace._core, other._open, 1), random.Random(seed + 2000)
    for number, event in enumerate(trace, 1):
        assert replay.step(1) or number == len(trace)
        if event.kind in PLAYED:
            look(other, choose)
        if number in seen:
            assert figures(other) == seen[number], f"after event {number - 1}, {event}"
    assert replay.misfit is None
    del replay
    program.live.clear()
