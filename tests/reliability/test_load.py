"""Eight threads that keep an arena full: what fits never fails, the process does not grow, the account does not drift.

`ARENA_LOAD_SECONDS` sets the duration in C++; Python, whose threads overlap less, runs half as long: 20 by default, 60
in CI, 600 and more on demand (`make long`).
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import random
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import arena
from arena import OutOfMemoryError, sim

from ..arena.conftest import make as make
from ..simulated.conftest import fresh
from ..simulated.cu import Cu
from .model import rounded, up

ROOT = Path(__file__).parents[2]
SECONDS = float(os.environ.get("ARENA_LOAD_SECONDS", "20"))
THREADS = 8
GRANULE = 64 << 10  # small: as many of them as on a card, in less memory


def is_flat(warm_kib: int, end_kib: int) -> bool:
    return end_kib <= 1.15 * warm_kib + 4096


@pytest.fixture(scope="session")
def program() -> Path:
    """The threads run in C++: with the GIL between them they would hardly overlap."""
    built = ROOT / "build" / "arena_load"
    if not built.exists():
        (pytest.fail if os.environ.get("CI") else pytest.skip)("there is none: make build/arena_load")
    return built


def run(program: Path, seconds: float, missing: int = 0) -> dict[str, Any]:
    environment = {**os.environ, "CUDASIM_GRANULARITY": str(GRANULE), "CUDASIM_MEMORY": "1GiB"}
    command = [program, sim.library(), str(seconds), str(THREADS), str(missing)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.stdout, done.stderr
    return {**json.loads(done.stdout), "code": done.returncode, "text": done.stderr}


@pytest.mark.slow
@pytest.mark.timeout(600 + 2 * SECONDS)
def test_threads_at_99_percent_of_the_cap_always_get_what_fits(program: Path) -> None:
    found = run(program, SECONDS)
    print(found)
    assert (found["wrong"], found["overwritten"], found["code"]) == (0, 0, 0), found["text"]
    assert found["full"] > 0.985, found
    assert found["operations"] > 10_000 * SECONDS, found
    assert found["adds_up"], found
    assert found["peak_reserved"] <= found["cap"]
    assert (found["left_live"], found["left_reserved"]) == (0, 0)
    assert is_flat(found["warm_kib"], found["end_kib"]), found


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_load_test_notices_an_arena_that_has_less_than_it_should(program: Path) -> None:
    found = run(program, 2, missing=100)
    assert found["wrong"] > 0
    assert found["code"] == 1
    assert "out of memory" in found["text"]


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_forked_child_can_tell_its_threads_apart_whatever_its_parents_threads_did(program: Path) -> None:
    """A thread of the parent that started or ended during the fork used to leave a locked mutex behind."""
    assert subprocess.run([program, "forks", "1000"], check=False).returncode == 0


class Full:
    """The same from Python: the granules that blocks touch say what may be requested, and all of it is."""

    def __init__(self, pool: arena.Arena, granules: int, end: float) -> None:
        self.pool, self.granules, self.end = pool, granules, end
        self.lock = threading.Lock()
        self.counts: dict[int, int] = {}
        self.intended = self.allocations = 0
        self.full: list[float] = []
        self.live: dict[int, arena.Buffer] = {}
        self.found: list[BaseException] = []

    def work(self, seed: int, stream: int) -> None:
        chance = random.Random(seed)
        mine: list[arena.Buffer] = []
        try:
            while time.monotonic() < self.end:
                size = int(2 ** chance.uniform(4, 18))
                most = (rounded(size) - 512) // GRANULE + 2
                if chance.random() < 0.9 and self.admit(most):
                    mine.append(self.take(size, most, stream))
                elif mine:
                    self.give(mine.pop(chance.randrange(len(mine))))
        except BaseException as error:
            self.found.append(error)

    def admit(self, most: int) -> bool:
        with self.lock:
            self.full.append(len(self.counts) / self.granules)
            if len(self.full) > 1000:
                del self.full[:500]
            if len(self.counts) + self.intended + most > self.granules:
                return False
            self.intended += most
            return True

    def take(self, size: int, most: int, stream: int) -> arena.Buffer:
        buffer = self.pool.allocate(size, stream)
        with self.lock:
            self.allocations += 1
            for g in self.touched(buffer):
                self.counts[g] = self.counts.get(g, 0) + 1
            self.intended -= most
            assert self.live.setdefault(buffer.ptr, buffer) is buffer
        ctypes.c_uint64.from_address(buffer.ptr).value = id(buffer)
        return buffer

    def give(self, buffer: arena.Buffer) -> None:
        assert ctypes.c_uint64.from_address(buffer.ptr).value == id(buffer), "another block lies on it"
        with self.lock:
            del self.live[buffer.ptr]
        buffer.free()
        with self.lock:
            for g in self.touched(buffer):
                self.counts[g] -= 1
                if not self.counts[g]:
                    del self.counts[g]

    def touched(self, buffer: arena.Buffer) -> range:
        return range(buffer.ptr // GRANULE, up(buffer.ptr + buffer.size, GRANULE) // GRANULE)


def own_kib() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon:"))


@pytest.fixture
def cu(monkeypatch: pytest.MonkeyPatch) -> Any:
    fresh(memory="256MiB", granularity=GRANULE, races=False)  # the checker's history would be counted
    driver = Cu()
    driver.start()
    yield driver
    fresh()


@pytest.mark.slow
@pytest.mark.timeout(120 + SECONDS)
def test_python_threads_at_99_percent_of_the_cap_get_what_fits(make: Any, cu: Cu) -> None:
    granules = 1024
    pool = make(cap=granules * GRANULE, growth=GRANULE, compact=False)
    full = Full(pool, granules, time.monotonic() + SECONDS / 2)
    streams = [cu.stream() for _ in range(THREADS)]
    threads = [threading.Thread(target=full.work, args=(i, stream)) for i, stream in enumerate(streams)]
    for thread in threads:
        thread.start()
    time.sleep(SECONDS / 6)
    warm = own_kib()
    for thread in threads:
        thread.join()
    assert full.found == []
    assert is_flat(warm, own_kib())
    assert full.allocations > 1000
    assert sum(full.full) / len(full.full) > 0.97
    with contextlib.suppress(OutOfMemoryError):  # and it really is full
        pool.allocate(granules * GRANULE // 10)
        raise AssertionError("the arena is not full")
    pool.validate()
    stats = pool.stats()
    buffers = list(full.live.values())
    assert (stats.requested, stats.live) == (sum(b.nbytes for b in buffers), sum(b.size for b in buffers))
    assert (
        stats.reserved == stats.live + stats.pending + stats.captured + stats.releasable + stats.stranded + stats.spare
    )
    assert stats.peak_reserved == sim.peak() <= stats.cap
    for buffer in buffers:
        full.give(buffer)
    assert full.counts == {}
    assert pool.stats().live == 0
