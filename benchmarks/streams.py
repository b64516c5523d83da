"""What several streams cost: waits between them, requests that need more memory, and hits on an explicit stream.

    python benchmarks/streams.py [--rounds N] [--seed N] [--against PYTHON] [--json FILE]

Runs on the simulated driver. Three questions:

- Two independent streams with work in flight, far below the cap: how many of 4,000 allocations made one stream wait for
  the other? None should. The price is shown beside it: how much more is reserved than is live.
- What does a request that needs more memory cost with 4,000 known streams, compared with one? At most twice as much. In
  time, the best of several rounds, and in driver calls. `all used`: there is no free memory. `pending`: there is some,
  and a stream still works on it.
- What does a hit cost on an explicit stream, compared with the default stream?

Each is measured for streams passed as numbers and as objects. `--against` names a Python with another build of arena,
to compare with in the same run.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import platform
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from itertools import repeat
from pathlib import Path
from typing import Any

import arena
from arena import sim

KIB, MIB = 1 << 10, 1 << 20
MANY = 4_000
ALLOCATIONS = 4_000
BOUND = 2.0  # of what a growing request costs with many streams, compared with one
Figures = dict[str, Any]


class Stream:
    """A stream that ends with its object, as in CuPy and cuda-core."""

    def __init__(self, driver: Any) -> None:
        self.driver, self.handle = driver, ctypes.c_void_p()
        driver.cuStreamCreate(ctypes.byref(self.handle), 1)  # non-blocking

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.handle.value or 0

    def __del__(self) -> None:
        self.driver.cuStreamDestroy_v2(self.handle)


class Bench:
    """One simulated device, with its primary context current."""

    def __init__(self, rounds: int, seed: int) -> None:
        self.rounds, self.seed = rounds, seed
        sim.configure(memory="80GiB")
        self.driver = ctypes.CDLL(str(sim.library()))
        context = ctypes.c_void_p()
        self.driver.cuInit(0)
        self.driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
        self.driver.cuCtxSetCurrent(context)

    def streams(self, count: int, kind: str) -> tuple[list[Stream], list[Any]]:
        """The owners of new streams, and what is passed to the arena."""
        owners = [Stream(self.driver) for _ in range(count)]
        return owners, list(owners) if kind == "object" else [owner.__cuda_stream__()[1] for owner in owners]

    def count_waits(self, kind: str) -> Figures:
        """Two streams, each with its own blocks, and a queue of work that the device never finishes."""
        rng = random.Random(self.seed)
        owners, passed = self.streams(2, kind)
        live: list[list[arena.Buffer]] = [[], []]
        pool = arena.Arena(cap="64GiB")
        with sim.temporarily(delay=100):
            for step in range(ALLOCATIONS):
                mine, stream = live[step % 2], passed[step % 2]
                buffer = pool.allocate(rng.choice((rng.randrange(512, 64 * KIB), rng.randrange(MIB, 4 * MIB))), stream)
                self.fill(buffer, owners[step % 2])
                mine.append(buffer)
                if len(mine) > 16:
                    mine.pop(rng.randrange(16)).free()
            stats = pool.stats()
            self.driver.cuCtxSynchronize()
        return {
            "waits": stats.waits,
            "driver_calls": stats.driver_calls,
            "reserved": stats.peak_reserved / stats.peak_live,
        }

    def grow(self, known: int, kind: str, state: str) -> Figures:
        """Requests one after the other, each for new memory, while that many streams have a live block."""
        owners, passed = self.streams(known, kind)
        pool = arena.Arena(cap="64GiB", growth="2MiB", compact=False)
        held = [pool.allocate(512, stream) for stream in passed]
        best, calls, count = float("inf"), 0, 50
        for _ in range(self.rounds):
            if state == "pending":
                with sim.temporarily(delay=200_000), pool.allocate(6 * MIB, passed[0]) as busy:
                    held.append(pool.allocate(2 * MIB))  # behind it, so that the request needs another place
                    self.fill(busy, owners[0])
            sim.reset_counts()
            begin = time.perf_counter()
            taken = [pool.allocate(8 * MIB) for _ in range(count)]
            best = min(best, (time.perf_counter() - begin) / count * 1e6)
            calls = sim.calls()
            for buffer in taken:
                buffer.free()
            self.driver.cuCtxSynchronize()
            pool.trim()
        del held, owners
        return {"us": best, "calls": calls / count}

    def fill(self, buffer: arena.Buffer, owner: Stream) -> None:
        self.driver.cuMemsetD8Async(ctypes.c_uint64(buffer.ptr), 0, ctypes.c_size_t(512), owner.handle)

    def hit(self, stream: Any) -> float:
        pool = arena.Arena(cap="1GiB")
        return min(self.time_hits(pool.allocate, stream) for _ in range(10 * self.rounds))

    @staticmethod
    def time_hits(allocate: Callable[[int, Any], arena.Buffer], stream: Any, count: int = 2_000) -> float:
        begin = time.perf_counter()
        for _ in repeat(None, count):
            allocate(4096, stream).free()
        return (time.perf_counter() - begin) / count * 1e9

    def measure(self) -> Figures:
        owner = Stream(self.driver)
        return {
            "versions": f"arena {arena.__version__}, Python {platform.python_version()}",
            "waits": {kind: self.count_waits(kind) for kind in ("number", "object")},
            "grow": {
                f"{state}, {kind}": {str(known): self.grow(known, kind, state) for known in (1, MANY)}
                for state in ("all used", "pending")
                for kind in ("number", "object")
            },
            "hit": {
                "default stream": self.hit(0),
                "number": self.hit(owner.__cuda_stream__()[1]),
                "object": self.hit(owner),
            },
        }


def ratio_of(row: Figures) -> float:
    return float(row[str(MANY)]["us"] / row["1"]["us"])


def show(name: str, found: Figures) -> None:
    print(f"\n{name}: {found['versions']}")
    for kind, row in found["waits"].items():
        print(
            f"  two streams, as {kind}s: {row['waits']:,} of {ALLOCATIONS:,} allocations waited; "
            f"{row['driver_calls']:,} driver calls; {row['reserved']:.2f} of the peak of live bytes reserved"
        )
    print(f"  {'a request that grows':<28}{'1 stream':>12}{f'{MANY:,}':>12}{'ratio':>8}{'calls':>8}{f'{MANY:,}':>8}")
    for what, row in found["grow"].items():
        one, many = row["1"], row[str(MANY)]
        kept = "kept" if ratio_of(row) <= BOUND else "BROKEN"
        print(
            f"  {what:<28}{one['us']:>9.1f} us{many['us']:>9.1f} us{ratio_of(row):>8.2f}"
            f"{one['calls']:>8.1f}{many['calls']:>8.1f}   bound {BOUND:g}: {kept}"
        )
    default = found["hit"]["default stream"]
    for what, ns in found["hit"].items():
        print(f"  a hit, {what:<21}{ns:>9.0f} ns{ns / default:>20.2f}")


def ask(python: str, arguments: Sequence[str]) -> Figures:
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "figures.json"
        command = [python, __file__, *arguments, "--json", str(target)]
        subprocess.run(command, env={**os.environ, "ARENA_DRIVER": "sim"}, check=False, stdout=subprocess.DEVNULL)
        found: Figures = json.loads(target.read_text())["arena"]
        return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--against", help="a Python with another build of arena")
    parser.add_argument("--json", type=Path, help="write the figures there as well")
    options = parser.parse_args()
    os.environ["ARENA_DRIVER"] = "sim"
    print(f"{platform.machine()}, Linux {platform.release()}, {os.cpu_count()} cores; simulated driver", end="")
    print(f"; seed {options.seed}; times are the best of {options.rounds} rounds")
    found: Figures = {"seed": options.seed, "arena": Bench(options.rounds, options.seed).measure()}
    show("arena", found["arena"])
    if options.against:
        found["against"] = ask(options.against, ["--rounds", str(options.rounds), "--seed", str(options.seed)])
        show(options.against, found["against"])
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")
        print(f"\nwrote {options.json}")
    return 0 if all(ratio_of(row) <= BOUND for row in found["arena"]["grow"].values()) else 1


if __name__ == "__main__":
    sys.exit(main())
