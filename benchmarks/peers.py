"""PyTorch's real allocator beside arena, on the same programs in dry runs.

    python benchmarks/peers.py [PROGRAM ...] [--json FILE]

Needs PyTorch with CUDA beside arena: `make test-torch` makes such an environment in build/torch. For each program
(torch_programs.py) and allocator it prints what was reserved at most with memory for all, the smallest device on which
the program runs, both ÷ the peak of live bytes, and the driver's calls for memory and their price at 1.2 × that peak. The
CUDA context is left out. Each run is in a process of its own; the simulated card is an A100.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

import arena
import arena.torch
from arena import sim

CARD = "a100-80"
MIB = 1 << 20
ALLOCATORS = {
    "arena": "arena",
    "PyTorch": "PyTorch's own",
    "expandable": "PyTorch's, expandable segments",
}
ENOUGH = 64 << 30
STEP = 2 * MIB  # devices differ by that, or by 1/400 of the peak of live bytes
ROOM = 1.2
Row = dict[str, Any]


def run_here(program: str, allocator: str, memory: int) -> Row:
    """Run a program on a device that has so much beside the context."""
    import torch

    from torch_programs import PROGRAMS

    sim.configure(memory=memory + sim.card(CARD).context, prices="a100")
    if allocator == "arena":
        arena.torch.use()
    elif allocator == "expandable":
        torch.cuda.memory._set_allocator_settings("expandable_segments:True")
    torch.cuda.init()
    sim.reset_counts()
    try:
        PROGRAMS[program]()
        torch.cuda.synchronize()
    except torch.OutOfMemoryError:
        return {"fits": False}
    except RuntimeError as error:
        if "unable to find an engine" in str(error):  # a convolution for which there was not enough memory
            return {"fits": False}
        raise
    calls = sum(count for name, count in sim.call_table().items() if is_about_memory(name))
    found: Row = {"fits": True, "calls": calls, "priced_ms": sim.clock() / 1000}
    if allocator == "arena":
        stats = arena.default_arena().stats()
        return {**found, "live": stats.peak_live, "reserved": stats.peak_reserved}
    live, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    return {**found, "live": live, "reserved": reserved}


def is_about_memory(function: str) -> bool:
    """What allocators call: not copies, nor what PyTorch calls for its work in any case."""
    return function.startswith("cuMem") and not function.startswith(("cuMemcpy", "cuMemset", "cuMemHost"))


def run(program: str, allocator: str, memory: int) -> Row:
    with tempfile.TemporaryFile("w+") as answer, tempfile.TemporaryFile("w+") as errors:
        child = os.fork()
        if child == 0:
            code = 1
            os.dup2(errors.fileno(), 2)  # PyTorch warns of each request that fails
            try:
                json.dump(run_here(program, allocator, memory), answer)
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


def smallest(program: str, allocator: str, live: int, reserved: int) -> int:
    """The smallest device, by bisection. With what it reserved when there was enough it surely runs."""
    step = max(STEP, live // 400 // STEP * STEP)
    low, high = live // step, -(-reserved // step)
    while high - low > 1:
        middle = (low + high) // 2
        if run(program, allocator, middle * step)["fits"]:
            high = middle
        else:
            low = middle
    return high * step


def measure(program: str) -> Row:
    large = {allocator: run(program, allocator, ENOUGH) for allocator in ALLOCATORS}
    live = large["arena"]["live"]
    found: Row = {"live": live, "allocators": {}}
    for allocator, row in large.items():
        tight = run(program, allocator, round(ROOM * live / STEP) * STEP)
        found["allocators"][allocator] = {
            "reserved": row["reserved"] / live,
            "smallest": smallest(program, allocator, live, row["reserved"]) / live,
            "calls": tight.get("calls"),
            "priced_ms": tight.get("priced_ms"),
        }
        show(program, found, allocator)
    return found


def show(program: str, found: Row, allocator: str) -> None:
    row = found["allocators"][allocator]
    first = f"{program:<12}{found['live'] / MIB:>9,.0f}"
    calls = f"{row['calls']:>8,}{row['priced_ms']:>9.1f}" if row["calls"] is not None else f"{'does not fit':>17}"
    print(f"{first}  {ALLOCATORS[allocator]:<32}{row['reserved']:>9.3f}{row['smallest']:>10.3f}{calls}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("programs", nargs="*", metavar="PROGRAM")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    options = parser.parse_args()
    with sim.dryrun(card=CARD):
        import torch

        import torch_programs

        print(f"arena {arena.__version__}, PyTorch {torch.__version__}, Python {platform.python_version()},", end=" ")
        print(f"{platform.system()} {platform.machine()}; {CARD}, simulated; seed {torch_programs.SEED}")
        head = f"{'program':<12}{'live, MiB':>9}  {'allocator':<32}{'reserved':>9}{'smallest':>10}"
        print(f"{head}{'calls':>8}{'ms':>9}")
        gc.freeze()
        found = {name: measure(name) for name in options.programs or torch_programs.PROGRAMS}
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
