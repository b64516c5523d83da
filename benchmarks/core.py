"""What the core costs without Python: pairs of allocate and free, on the simulated driver.

    make build/core_benchmark && python benchmarks/core.py [--json FILE]

Runs the program built from core.cpp, and prints nanoseconds per pair, the best of several rounds:

- the same size over and over, always a cache hit (hot);
- the same with up to a million live blocks, or free holes, of other sizes (crowded), and with up to 64 streams in turn;
- sizes that rarely repeat, with 16, 256 and 4,096 live blocks (mixed);
- pairs per second of one thread, and of two on two streams, which needs a machine with two free cores;
- 1 GiB taken granule by granule, and returned, beside the same driver calls alone (slow);
- what an event costs while a recording is running.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from arena import sim

ROOT = Path(__file__).parent.parent
PROGRAM = ROOT / "build/core_benchmark"
Rows = list[dict[str, Any]]


def ask(program: Path, *questions: str) -> Rows:
    done = subprocess.run([program, sim.library(), *questions], capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def bounds(rows: Rows) -> list[tuple[str, float, str, bool]]:
    """(what, the figure, the bound, whether it holds)."""
    by = lambda question, **wanted: [  # noqa: E731
        row for row in rows if row["question"] == question and all(row[k] == v for k, v in wanted.items())
    ]
    hot = max(row["ns"] for row in by("hot"))
    found = [("a hot pair, ns", hot, "≤ 30", hot <= 30)]
    for what in ("live", "holes"):
        alone = by("crowded", what=what, count=0)[0]["ns"]
        for count in (10_000, 1_000_000):
            ratio = by("crowded", what=what, count=count)[0]["ns"] / alone
            found.append((f"with {count:,} {what}, ×", ratio, "≤ 1.5", ratio <= 1.5))
    one, two = (row["pairs_per_second"] for row in by("threads"))
    found.append(("two threads, ×", two / one, "≥ 1.6", two / one >= 1.6))
    for row in by("slow"):
        share = row["driver_us"] / row["arena_us"]
        found.append((f"{row['what']}: share of the driver", share, "≥ 0.8", share >= 0.8))
    (recording,) = by("recording")
    more = recording["on_ns"] - recording["off_ns"]
    found.append(("recording, ns an event", more, "≤ 100", more <= 100))
    return found


def show(rows: Rows) -> None:
    for row in rows:
        facts = [f"{value:,.1f} {key}" if isinstance(value, float) else f"{key} {value}" for key, value in row.items()]
        print("  ".join(facts[1:]).join((f"{row['question']:<10}", "")))
    print()
    for what, figure, bound, kept in bounds(rows):
        print(f"{what:<32}{figure:>8.2f}   {bound:<6} {'kept' if kept else 'BROKEN'}")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--program", type=Path, default=PROGRAM)
    parser.add_argument("--json", type=Path, help="write the figures there as well")
    options = parser.parse_args()
    rows = ask(options.program)
    show(rows)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
        print(f"wrote {options.json}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
