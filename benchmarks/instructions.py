"""Instructions of the hit path, counted by valgrind: they do not depend on how busy the machine is.

    make build/core_benchmark && python benchmarks/instructions.py [--record]

Counts the instructions of a pair of allocating and freeing, as the difference between two runs of different length. In
the core alone: for the same size over and over (hot), and for sizes that rarely repeat (mixed). From outside, for the
same size over and over: CuPy's `pool.malloc`, whose memory is dropped at once, and `pool.allocate` likewise, both with
the loop in Python around them, and the functions that PyTorch calls (torch).

Compares them with instructions.json, and fails if one has risen by more than 5 %. `--record` rewrites that file. Counts
recorded with another compiler, Python or CuPy are not compared, and the output says so.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import cupy

from arena import sim

ROOT = Path(__file__).parent.parent
PROGRAM = ROOT / "build/core_benchmark"
PROGRAMS = Path(__file__).parent
RECORD = PROGRAMS / "instructions.json"
FEW, MANY = 2_000, 22_000
FEW_CALLS, MANY_CALLS = 500, 2_500  # of the bindings
CORE, OUTSIDE = ("hot", "mixed"), ("malloc", "allocate", "torch")
CALLGRIND = ("valgrind", "--tool=callgrind")
MOST = 1.05


def collected(program: Path, question: str, pairs: int) -> int:
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [
                *CALLGRIND,
                f"--callgrind-out-file={folder}/out",
                str(program),
                sim.library(),
                "count",
                question,
                str(pairs),
            ],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "CUDASIM_MEMORY": "2GiB"},
        )
    found = re.search(r"Collected : (\d+)", done.stderr)
    if done.returncode != 0 or found is None:
        sys.exit(f"valgrind failed:\n{done.stderr}")
    return int(found[1])


def of_core(program: Path, question: str) -> float:
    return round((collected(program, question, MANY) - collected(program, question, FEW)) / (MANY - FEW), 1)


def of_bindings(question: str) -> float:
    """Counting is off but around the calls: to count all of a Python program would take minutes."""
    with tempfile.TemporaryDirectory() as folder:
        library = f"{folder}/count.so"
        subprocess.run(["cc", "-O1", "-shared", "-fPIC", str(PROGRAMS / "count.c"), "-o", library], check=True)
        run = [sys.executable, str(PROGRAMS / "count_calls.py"), library, question, str(FEW_CALLS), str(MANY_CALLS)]
        done = subprocess.run(
            [*CALLGRIND, "--instr-atstart=no", f"--callgrind-out-file={folder}/out", *run],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "CUDASIM_MEMORY": "2GiB", "ARENA_DRIVER": "sim", "PYTHONHASHSEED": "0"},
        )
        outputs = [Path(f"{folder}/out.{number}") for number in (1, 2)]
        if done.returncode != 0 or not all(output.exists() for output in outputs):
            sys.exit(f"valgrind failed:\n{done.stderr}")
        few, many = (int(re.findall(r"^totals: (\d+)", output.read_text(), re.M)[0]) for output in outputs)
    return round((many - few) / (MANY_CALLS - FEW_CALLS), 1)


def compiler(program: Path) -> str:
    """The compiler that built the program, from the note it left there."""
    return next(iter(re.findall(rb"GCC: \([^)]*\) [\d.]+|clang version [\d.]+", program.read_bytes())), b"?").decode()


def others_of(question: str, recorded: dict[str, Any], versions: dict[str, str]) -> set[str]:
    """What is not as recorded, of that which a count depends on."""
    counts = {"compiler"} | ({"python"} if question in ("malloc", "allocate") else set())
    counts |= {"cupy"} if question == "malloc" else set()
    return {name for name in counts if recorded[name] != versions[name]}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--program", type=Path, default=PROGRAM)
    parser.add_argument("--record", action="store_true", help="take the counts as those to compare with")
    options = parser.parse_args()
    if shutil.which("valgrind") is None:
        sys.exit("valgrind is not there: install it (Debian: apt-get install valgrind)")
    counts = {question: of_core(options.program, question) for question in CORE}
    counts |= {question: of_bindings(question) for question in OUTSIDE}
    versions = {
        "compiler": compiler(options.program),
        "python": platform.python_version(),
        "cupy": cupy.__version__,
    }
    found = {**versions, "instructions a pair": counts}
    if options.record:
        RECORD.write_text(json.dumps(found, indent=1) + "\n")
        print(f"wrote {RECORD}")
        return 0
    recorded = json.loads(RECORD.read_text())
    others = {question: others_of(question, recorded, versions) for question in counts}
    for name in sorted(set().union(*others.values())):
        print(f"recorded with {name} {recorded[name]}, this is {versions[name]}: not compared where it counts")
    risen = False
    for question, count in counts.items():
        before = recorded["instructions a pair"][question]
        risen |= count > MOST * before and not others[question]
        print(f"{question:<10}{count:>10.1f} instructions a pair, recorded {before:.1f}: {count / before - 1:+.1%}")
    if risen:
        print(f"risen by more than {MOST - 1:.0%}. If that is worth it: python benchmarks/instructions.py --record")
    return int(risen)


if __name__ == "__main__":
    sys.exit(main())
