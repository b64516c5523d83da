"""What threads cost each other: pairs of allocate and free through Python, of one thread, and of two on two streams.

    python benchmarks/threads.py [--rounds N] [--json FILE]

Each thread uses a stream of its own, the driver's per-thread default stream, and one size over and over: a block that
is there already. Figures are the best of several rounds. Where Python has a GIL, two threads take turns and do no more
than one; on a free-threaded Python, with two free cores, they must do 1.6 times as much. It says which it was.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import threading
import time
from itertools import repeat
from pathlib import Path
from typing import Any

import arena

PER_THREAD_STREAM = 2  # CU_STREAM_PER_THREAD
SIZE = 4096
BOUND = 1.6


def has_gil() -> bool:
    return bool(getattr(sys, "_is_gil_enabled", lambda: True)())


def work(pool: arena.Arena, count: int, begin: threading.Barrier, times: list[float]) -> None:
    for _ in range(100):  # the block, and all else that comes once
        pool.allocate(SIZE, PER_THREAD_STREAM).free()
    begin.wait()
    times.append(time.perf_counter())
    for _ in repeat(None, count):
        pool.allocate(SIZE, PER_THREAD_STREAM).free()
    times.append(time.perf_counter())


def pairs_per_second(pool: arena.Arena, threads: int, count: int) -> float:
    begin, times = threading.Barrier(threads), list[float]()
    workers = [threading.Thread(target=work, args=(pool, count, begin, times)) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return threads * count / (max(times) - min(times))


def measure(rounds: int, count: int) -> dict[str, Any]:
    best = {1: 0.0, 2: 0.0}
    with arena.Arena(cap="1GiB", device="sim:2GiB") as pool:
        for _ in range(rounds):
            for threads in best:
                best[threads] = max(best[threads], pairs_per_second(pool, threads, count))
    return {"python": platform.python_version(), "gil": has_gil(), "one": best[1], "two": best[2]}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--pairs", type=int, default=100_000, help="of each thread in a round")
    parser.add_argument("--json", type=Path, help="write the figures there as well")
    options = parser.parse_args()
    found = measure(options.rounds, options.pairs)
    ratio = found["two"] / found["one"]
    print(f"Python {found['python']}, {'with a GIL' if found['gil'] else 'free-threaded'}")
    print(f"one thread   {found['one']:>12,.0f} pairs a second")
    print(f"two threads  {found['two']:>12,.0f} pairs a second, {ratio:.2f} x", end="")
    print("" if found["gil"] else f", bound {BOUND}: {'kept' if ratio >= BOUND else 'BROKEN'}")
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")
        print(f"wrote {options.json}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
