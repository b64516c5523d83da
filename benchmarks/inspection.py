"""What inspection costs: stats(), snapshots, reports, tracing lines, recording.

    python benchmarks/inspection.py [--json FILE]

Best of several rounds on the simulated driver. Calls with traced lines are compared with the same calls without, in one
run.
"""

from __future__ import annotations

import argparse
import itertools
import json
import platform
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import arena

BLOCKS = 100_000
Figure = tuple[str, float, str]
"""What, how much, and in which unit."""


def best(function: Callable[[], object], calls: int, rounds: int = 7) -> float:
    """Seconds per call."""
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


def looking() -> Iterator[Figure]:
    pool = arena.Arena(device="sim:8GiB")
    yield "stats(), nothing live", best(pool.stats, 5000) * 1e9, "ns"
    buffers = fill(pool)
    yield f"stats(), {len(buffers):,} blocks", best(pool.stats, 5000) * 1e9, "ns"
    yield "snapshot()", best(pool.snapshot, 1) * 1e3, "ms"
    yield "its pieces", len(pool.snapshot().pieces), ""
    yield "report() and its text", best(lambda: str(pool.report()), 1, 3) * 1e3, "ms"


def lines() -> Iterator[Figure]:
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
    keep.free()
    yield "allocate() and free()", found[0] * 1e9, "ns"
    for depth in (1, 4, 16):
        yield f"with {depth} lines, more", (found[depth] - found[0]) * 1e9, "ns"


def recording() -> Iterator[Figure]:
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
    keep.free()
    yield "recording, more an event", (on - off) / 2 * 1e9, "ns"
    seconds = best(lambda: trace.replay(device="sim:8GiB"), 1, 3)
    yield "replaying it, events a second", len(trace) / seconds / 1e6, "million"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path, help="write the figures there as well")
    options = parser.parse_args()
    print(f"Python {platform.python_version()}, arena {arena.__version__}, {platform.machine()}")
    figures = []
    for figure in itertools.chain(looking(), lines(), recording()):
        figures.append(figure)
        what, value, unit = figure
        print(f"{what:<32}{value:>10,.1f} {unit}")
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n")
        print(f"wrote {options.json}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
