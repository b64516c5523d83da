"""Instructions of the hit path, counted by valgrind: they do not depend on how busy the machine is.

    make build/core_benchmark && python benchmarks/instructions.py [--record]

Counts the instructions of a pair of allocate and free, for the same size over and over (hot) and for sizes that rarely
repeat (mixed), as the difference between two runs of different length. Compares them with instructions.json, and fails
if one has risen by more than 5 %. `--record` rewrites that file. Counts recorded with another compiler are not
compared, and the output says so.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from arena import sim

ROOT = Path(__file__).parent.parent
PROGRAM = ROOT / "build/core_benchmark"
RECORD = Path(__file__).parent / "instructions.json"
FEW, MANY = 2_000, 22_000
MOST = 1.05


def collected(program: Path, question: str, pairs: int) -> int:
    with tempfile.TemporaryDirectory() as folder:
        command = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={folder}/out"]
        done = subprocess.run(
            [*command, str(program), sim.library(), "count", question, str(pairs)],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "CUDASIM_MEMORY": "2GiB"},
        )
    found = re.search(r"Collected : (\d+)", done.stderr)
    if done.returncode != 0 or found is None:
        sys.exit(f"valgrind failed:\n{done.stderr}")
    return int(found[1])


def instructions(program: Path, question: str) -> float:
    return round((collected(program, question, MANY) - collected(program, question, FEW)) / (MANY - FEW), 1)


def compiler(program: Path) -> str:
    """The compiler that built the program, from the note it left there."""
    return next(iter(re.findall(rb"GCC: \([^)]*\) [\d.]+|clang version [\d.]+", program.read_bytes())), b"?").decode()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--program", type=Path, default=PROGRAM)
    parser.add_argument("--record", action="store_true", help="take the counts as those to compare with")
    options = parser.parse_args()
    if shutil.which("valgrind") is None:
        sys.exit("valgrind is not there: install it (Debian: apt-get install valgrind)")
    counts = {question: instructions(options.program, question) for question in ("hot", "mixed")}
    found = {"compiler": compiler(options.program), "instructions a pair": counts}
    if options.record:
        RECORD.write_text(json.dumps(found, indent=1) + "\n")
        print(f"wrote {RECORD}")
        return 0
    recorded = json.loads(RECORD.read_text())
    same = recorded["compiler"] == found["compiler"]
    if not same:
        print(f"recorded with {recorded['compiler']}, this is {found['compiler']}: not compared")
    risen = False
    for question, count in counts.items():
        before = recorded["instructions a pair"][question]
        risen |= count > MOST * before
        print(f"{question:<8}{count:>10.1f} instructions a pair, recorded {before:.1f}: {count / before - 1:+.1%}")
    if risen and same:
        print(f"risen by more than {MOST - 1:.0%}. If that is worth it: python benchmarks/instructions.py --record")
    return int(risen and same)


if __name__ == "__main__":
    sys.exit(main())
