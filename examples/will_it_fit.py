"""Will it fit? Record a run once, then try it under other caps, on any machine.

python examples/will_it_fit.py [FOLDER]
"""

from __future__ import annotations

import sys
from pathlib import Path

import cupy

import arena

MIB = 1 << 20


def infer(prompts: int) -> None:
    cache = []
    for prompt in range(prompts):
        scratch = cupy.empty((8 + prompt % 5) * MIB, "u1")
        cache.append(cupy.empty((2 + prompt % 3) * MIB, "u1"))
        del scratch
        if len(cache) > 20:
            del cache[prompt % 20]


def main(folder: Path) -> None:
    path = folder / "infer.arena"
    pool = arena.Arena()
    with cupy.cuda.using_allocator(pool.malloc), pool.record(path, overwrite=True):
        infer(prompts=200)

    found = arena.fit(path)
    print(f"{found.peak_live / MIB:.0f} MiB live at the peak, {found.smallest_cap // MIB} MiB is the smallest cap")
    trace = arena.Trace.read(path)
    for cap in ("72MiB", "96MiB"):
        replayed = trace.replay(cap=cap)
        print(f"{cap}: {'fits' if replayed.fits else str(replayed.error).splitlines()[0]}")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path("."))
