"""What it costs to look: stats(), snapshots, reports, remembering lines, recording.

    python benchmarks/inspection.py

Best of several rounds on the simulated driver. Lines are compared with the same calls without, in one run.
"""

from __future__ import annotations

import platform
import random
import sys
import tempfile
import time
from collections.abc import Callable

import arena

BLOCKS = 100_000


def best(function: Callable[[], object], calls: int, rounds: int = 7) -> float:
    """Seconds a call."""
    found = []
    for _ in range(rounds):
        begin = time.perf_counter()
        for _ in range(calls):
            function()
        found.append((time.perf_counter() - begin) / calls)
    return min(found)


def fill(pool: arena.Arena) -> list[arena.Buffer]:
    """100,000 live blocks with about as many holes."""
    choose = random.Random(1)
    buffers = [pool.allocate(512 * choose.choice([1, 2, 5, 30, 100])) for _ in range(2 * BLOCKS)]
    choose.shuffle(buffers)
    del buffers[BLOCKS:]
    return buffers


def looking() -> None:
    pool = arena.Arena(device="sim:8GiB")
    empty = best(pool.stats, 5000)
    buffers = fill(pool)
    print(f"stats(), nothing live           {empty * 1e9:8.0f} ns")
    print(f"stats(), {len(buffers):,} blocks        {best(pool.stats, 5000) * 1e9:8.0f} ns")
    print(f"snapshot()                      {best(pool.snapshot, 1) * 1e3:8.0f} ms")
    snapshot = pool.snapshot()
    print(f"  with {len(snapshot.pieces):,} pieces")
    print(f"report() and its text           {best(lambda: str(pool.report()), 1, 3) * 1e3:8.0f} ms")


def lines() -> None:
    pool = arena.Arena(device="sim:8GiB")
    keep = pool.allocate(1000)

    def pair() -> None:
        pool.allocate(1000).free()

    found: dict[int, float] = {}
    for _ in range(3):  # in turns: the machine may be busy for a while
        for depth in (0, 1, 4, 16):
            arena.trace_lines(depth > 0, depth=max(1, depth))
            found[depth] = min(found.get(depth, 1.0), best(pair, 20_000, 3))
    arena.trace_lines(False)
    print(f"allocate() and free()           {found[0] * 1e9:8.0f} ns ({keep.nbytes} bytes)")
    for depth in (1, 4, 16):
        print(f"  with {depth:>2} lines: {(found[depth] - found[0]) * 1e9:>22.0f} ns more")


def recording() -> None:
    pool = arena.Arena(device="sim:8GiB")
    keep = pool.allocate(1000)

    def pair() -> None:
        pool.allocate(1000).free()

    off = on = 1.0
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(5):
            off = min(off, best(pair, 20_000, 3))
            with pool.record(f"{folder}/{turn}.arena"):
                on = min(on, best(pair, 20_000, 3))
        trace = arena.Trace.read(f"{folder}/0.arena")
    print(f"recording, an event             {(on - off) / 2 * 1e9:8.0f} ns more ({keep.nbytes} bytes)")
    begin = time.perf_counter()
    done = trace.replay(device="sim:8GiB")
    rate = done.events / (time.perf_counter() - begin)
    print(f"replaying it                    {rate / 1e6:8.1f} million events a second")


def main() -> int:
    print(f"Python {platform.python_version()}, arena {arena.__version__}, {platform.machine()}")
    looking()
    lines()
    recording()
    return 0


if __name__ == "__main__":
    sys.exit(main())
