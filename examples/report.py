"""A program that leaves small blocks among large ones, and its report: in the terminal, and as a page.

python examples/report.py [FOLDER]
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

import arena


def load(pool: arena.Arena, choose: random.Random) -> list[arena.Buffer]:
    batch = []
    while len(batch) < 40:
        batch.append(pool.allocate(choose.choice([3 << 20, 5 << 20])))
    return batch


def remember(pool: arena.Arena) -> arena.Buffer:
    return pool.allocate(4096)


def main(folder: Path) -> None:
    arena.trace_lines(True)
    pool = arena.Arena(cap="512MiB", reserve="64MiB", headroom="1GiB", device="sim:8GiB")
    choose, cache = random.Random(1), []
    with pool.scope("epoch"):
        for _ in range(6):
            batch = load(pool, choose)
            cache.append(remember(pool))
            del batch
    batch = load(pool, choose)
    report = pool.report()
    print(report)
    page = report.save(folder / "report.html", overwrite=True)
    print(f"wrote {page}: open it in a browser ({len(batch)} arrays and {len(cache)} small blocks were live)")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path("."))
