"""PyTorch's real allocator and CuPy's real pool beside arena, on the same programs in dry runs.

    python benchmarks/peers.py torch|cupy [PROGRAM ...] [--json FILE]

Needs PyTorch with CUDA or CuPy beside arena: `make test-torch` makes an environment for the first in build/torch. For
each program (torch_programs.py, cupy_programs.py) and allocator it prints what was reserved at most with memory for
all, and the smallest device on which the program runs, both ÷ the peak of live bytes; and, on a device with 1.2 × that
peak, the driver's calls for memory and the price of all its calls. The CUDA context is left out. Each run is in a
process of its own; the simulated card is an A100.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import os
import platform
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

import arena
from arena import sim

CARD = "a100-80"
MIB = 1 << 20
ENOUGH = 64 << 30
STEP = 2 * MIB  # devices differ by that, or by 1/400 of the peak of live bytes
ROOM = 1.2
Row = dict[str, Any]


def run_here(framework: Any, program: str, allocator: str, memory: int) -> Row:
    """Run a program on a device that has so much beside the context."""
    sim.configure(memory=memory + sim.card(CARD).context, prices="a100")
    framework.begin(allocator)
    sim.reset_counts()
    try:
        framework.PROGRAMS[program]()
    except Exception as error:
        if framework.is_out_of_memory(error):
            return {"fits": False}
        raise
    calls = sum(count for name, count in sim.call_table().items() if is_about_memory(name))
    found: Row = {"fits": True, "calls": calls, "priced_ms": sim.clock() / 1000}
    if allocator == "arena":
        stats = arena.default_arena().stats()
        return {**found, "live": stats.peak_live, "reserved": stats.peak_reserved}
    return {**found, "reserved": framework.reserved()}


def is_about_memory(function: str) -> bool:
    """What allocators call: not copies, nor what PyTorch calls for its work in any case."""
    return function.startswith("cuMem") and not function.startswith(("cuMemcpy", "cuMemset", "cuMemHost"))


def run(framework: Any, program: str, allocator: str, memory: int) -> Row:
    with tempfile.TemporaryFile("w+") as answer, tempfile.TemporaryFile("w+") as errors:
        child = os.fork()
        if child == 0:
            code = 1
            os.dup2(errors.fileno(), 2)  # PyTorch warns of requests that fail
            try:
                json.dump(run_here(framework, program, allocator, memory), answer)
                answer.flush()
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        status = os.waitpid(child, 0)[1]
        answer.seek(0)
        errors.seek(0)
        if status:
            raise SystemExit(f"{program} with {allocator} ended early:\n{errors.read()}")
        found: Row = json.load(answer)
        return found


def smallest(framework: Any, program: str, allocator: str, live: int, reserved: int) -> int:
    """The smallest device, by bisection. With what it reserved when there was enough it surely runs."""
    step = max(STEP, live // 400 // STEP * STEP)
    low, high = live // step, -(-reserved // step)
    while high - low > 1:
        middle = (low + high) // 2
        if run(framework, program, allocator, middle * step)["fits"]:
            high = middle
        else:
            low = middle
    return high * step


def measure(framework: Any, program: str) -> Row:
    large = {allocator: run(framework, program, allocator, ENOUGH) for allocator in framework.ALLOCATORS}
    live = large["arena"]["live"]
    found: Row = {"live": live, "allocators": {}}
    for allocator, row in large.items():
        tight = run(framework, program, allocator, round(ROOM * live / STEP) * STEP)
        found["allocators"][allocator] = figures = {
            "reserved": row["reserved"] / live,
            "smallest": smallest(framework, program, allocator, live, row["reserved"]) / live,
            "calls": tight.get("calls"),
            "priced_ms": tight.get("priced_ms"),
        }
        show(program, live, framework.ALLOCATORS[allocator], figures)
    return found


def show(program: str, live: int, name: str, row: Row) -> None:
    calls = f"{row['calls']:,} | {row['priced_ms']:.1f}" if row["calls"] is not None else "does not fit |"
    print(
        f"| {program} | {live / MIB:,.0f} | {name} | {row['reserved']:.3f} | {row['smallest']:.3f} | {calls} |",
        flush=True,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("framework", choices=("torch", "cupy"))
    parser.add_argument("programs", nargs="*", metavar="PROGRAM")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    options = parser.parse_args()
    with sim.dryrun(card=CARD):
        framework: Any = importlib.import_module(f"{options.framework}_programs")
        machine = f"Python {platform.python_version()}, {platform.system()} {platform.machine()}"
        print(f"arena {arena.__version__}, {framework.VERSION}, {machine}; {CARD}, simulated; seed {framework.SEED}\n")
        print("| program | live, MiB | allocator | reserved | smallest | calls | ms |")
        print("|---|--:|---|--:|--:|--:|--:|")
        gc.freeze()
        found = {name: measure(framework, name) for name in options.programs or framework.PROGRAMS}
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
