"""An arena on a fresh simulated driver with the race checker on. Each test must leave nothing behind."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import arena
from arena import sim

from ..simulated.conftest import fresh
from ..simulated.cu import Cu

MIB, GIB = 1 << 20, 1 << 30
MakeArena = Callable[..., arena.Arena]


def check(pool: arena.Arena, *, highest_cap: int = 0) -> arena.Stats:
    """Check every invariant: the account adds up, matches the driver's own count, and stays under the cap."""
    pool.validate()
    s = pool.stats()
    assert s.reserved == s.requested + s.rounding + s.pending + s.captured + s.releasable + s.stranded + s.spare
    assert s.requested <= s.live <= s.reserved
    assert s.reserved == sim.used()
    assert sim.peak() == s.peak_reserved <= max(s.cap, highest_cap)
    return s


@pytest.fixture
def cu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cu]:
    """The driver beneath the arena, with the primary context of device 0 current."""
    for name in ("CAP", "RESERVE", "HEADROOM", "GROWTH"):
        monkeypatch.delenv(f"ARENA_{name}", raising=False)
    monkeypatch.delenv("CUPY_GPU_MEMORY_LIMIT", raising=False)
    fresh()
    driver = Cu()
    driver.start()
    yield driver
    sim.configure(races=True)
    found = sim.races()
    fresh()
    assert found == [], "\n".join(map(str, found))


@pytest.fixture
def make(cu: Cu, monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeArena]:
    """Makes arenas on device 0. At the end of the test everything must be back with the driver."""
    monkeypatch.setattr(arena._core, "default_driver", lambda: arena.Driver.open("sim"))
    made: list[arena.Arena] = []

    def make_one(**settings: Any) -> arena.Arena:
        made.append(arena.Arena(**settings))
        return made[-1]

    yield make_one
    cu.cuCtxSynchronize_v2(0)
    while made:
        made.pop().close()
    gc.collect()
    census = sim.census()
    left = (sim.used(), census.handles, census.mappings, census.reservations, census.events)
    assert left == (0, 0, 0, 0, 0)


class Work:
    """What a program does with buffers: fill them on streams, and check that they still hold that value."""

    def __init__(self, cu: Cu) -> None:
        self.cu = cu

    def fill(self, buffer: arena.Buffer, value: int, stream: int = 0) -> None:
        self.cu.ok("cuMemsetD8Async", buffer.ptr, value, buffer.nbytes, stream)

    def holds(self, buffer: arena.Buffer, value: int, stream: int = 0) -> bool:
        self.cu.ok("cuStreamSynchronize", stream)
        return self.cu.read(buffer.ptr, buffer.nbytes) == bytes([value]) * buffer.nbytes


@pytest.fixture
def work(cu: Cu) -> Work:
    return Work(cu)
