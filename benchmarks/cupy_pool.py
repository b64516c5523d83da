"""How far the model of CuPy's pool that `arena demo` uses can be trusted.

    python benchmarks/cupy_pool.py [TRACE ...]

Prints for each trace the smallest device that the model needs ÷ the peak of live bytes, beside the figure of another
model (traces/README.md), and the range over twelve random orders: of several free chunks of one size, CuPy takes any.
"""

from __future__ import annotations

import sys
from pathlib import Path

import arena
from arena._demo.cupy_pool import smallest_device

STEP = 1 << 19
OTHER_MODEL = {"vgg": 1.050, "gpt2": 1.094, "generate": 1.159, "science": 1.401, "pipeline": 1.526, "server": 1.313}


def peak_live(trace: arena.Trace) -> int:
    return trace.replay(device="sim:8GiB").peak_live


def main() -> int:
    print(f"{'trace':<10}{'lowest':>8}{'other':>8}{'by chance':>17}{'MiB':>14}")
    for name in sys.argv[1:] or OTHER_MODEL:
        trace = arena.Trace.read(Path(__file__).parent / f"traces/{name}.csv.gz")
        events, peak = list(trace), peak_live(trace)
        lowest = smallest_device(events, peak, 2 * peak, STEP) / peak
        chance = [smallest_device(events, peak, 2 * peak, STEP, seed) for seed in range(12)]
        low, high = min(chance), max(chance)
        ratios, sizes = f"{low / peak:.3f} to {high / peak:.3f}", f"{low >> 20} to {high >> 20}"
        print(f"{name:<10}{lowest:>8.3f}{OTHER_MODEL[name]:>8.3f}{ratios:>17}{sizes:>14}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
