"""How threads slow each other down: pairs of allocate and free in Python, with one thread, and with two on two streams.

    python benchmarks/threads.py [--rounds N] [--json FILE]

Each thread uses its own stream, the driver's per-thread default stream, and the same size over and over: always a cache
hit. Figures are the best of many short rounds, in some of which nothing else may use the cores. With a GIL, two threads
take turns and do no more than one; on a free-threaded Python with two free cores, they should do 1.6 times as much. The
output says which it was.

The method is bound once, as by a library that is given an allocator, or looked up for each call. In the second case,
threads of free-threaded Python 3.13 slow each other down, most likely because each call counts a reference to the one
arena.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import threading
import time
from collections.abc import Callable
from itertools import repeat
from pathlib import Path
from typing import Any

import arena

PER_THREAD_STREAM = 2  # CU_STREAM_PER_THREAD
SIZE = 4096
BOUND = 1.6
Work = Callable[[arena.Arena, int], None]


def has_gil() -> bool:
    return bool(getattr(sys, "_is_gil_enabled", lambda: True)())


def call_bound(pool: arena.Arena, count: int) -> None:
    allocate = pool.allocate
    for _ in repeat(None, count):
        allocate(SIZE, PER_THREAD_STREAM).free()


def call_by_name(pool: arena.Arena, count: int) -> None:
    for _ in repeat(None, count):
        pool.allocate(SIZE, PER_THREAD_STREAM).free()


WAYS: dict[str, Work] = {"allocate = pool.allocate": call_bound, "pool.allocate": call_by_name}


def pairs_per_second(work: Work, pool: arena.Arena, threads: int, count: int) -> float:
    begin, times = threading.Barrier(threads), list[float]()

    def run() -> None:
        work(pool, 100)  # the block, and everything else that happens once
        begin.wait()
        times.append(time.perf_counter())
        work(pool, count)
        times.append(time.perf_counter())

    workers = [threading.Thread(target=run) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return threads * count / (max(times) - min(times))


def measure(rounds: int, count: int) -> dict[str, Any]:
    best = {way: {"one": 0.0, "two": 0.0} for way in WAYS}
    with arena.Arena(cap="1GiB", device="sim:2GiB") as pool:
        for _ in range(rounds):
            for way, work in WAYS.items():
                for name, threads in (("one", 1), ("two", 2)):
                    best[way][name] = max(best[way][name], pairs_per_second(work, pool, threads, count))
    return {"python": platform.python_version(), "gil": has_gil(), "ways": best}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--pairs", type=int, default=10_000, help="of each thread in a round")
    parser.add_argument("--json", type=Path, help="write the figures there as well")
    options = parser.parse_args()
    found = measure(options.rounds, options.pairs)
    print(f"Python {found['python']}, {'with a GIL' if found['gil'] else 'free-threaded'}; pairs a second\n")
    print(f"{'':<26}{'one thread':>14}{'two threads':>14}{'ratio':>8}")
    for way, row in found["ways"].items():
        ratio = row["two"] / row["one"]
        bound = "" if found["gil"] else f"   bound {BOUND}: {'kept' if ratio >= BOUND else 'BROKEN'}"
        print(f"{way:<26}{row['one']:>14,.0f}{row['two']:>14,.0f}{ratio:>8.2f}{bound}")
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")
        print(f"wrote {options.json}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
