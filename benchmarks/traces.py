"""How little memory, and how little driver time, real programs need with the arena.

    python benchmarks/traces.py [TRACE ...] [--json FILE]

Replays recorded traces of real programs (see traces/README.md) through arena.Arena on the simulated driver and prints,
for each: the smallest cap that works ÷ the peak of live bytes, and the priced driver time at a cap of 1.2 × that peak,
each beside the best of CuPy's pool, PyTorch with and without expandable segments, TensorFlow's BFC and RMM's two pools.
Twice: without moving live data, as in programs with threads, and with moving, as in single-threaded programs. The
streams of a trace are idle streams here: this measures memory and driver calls, not overlap.
"""

from __future__ import annotations

import argparse
import ctypes
import gzip
import json
import math
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import arena
from arena import sim

MIB = 1 << 20
GRANULE = 2 * MIB
FOLDER = Path(__file__).with_name("traces")

# Smallest cap ÷ peak live of the best of the others, and priced milliseconds of PyTorch's expandable segments at a cap
# of 1.2 × live (None: it does not fit). How they were found: traces/README.md.
BASELINES: dict[str, tuple[float, float | None]] = {
    "vgg": (1.031, 14.3),
    "gpt2": (1.030, 29.4),
    "generate": (1.068, 14.3),
    "science": (1.091, 6.9),
    "pipeline": (1.284, None),
    "server": (1.209, None),
}


@dataclass(frozen=True)
class Trace:
    name: str
    events: list[tuple[int, int, int]]  # (id, bytes or -1 for a free, stream)
    peak: int  # of live bytes, rounded to 512


@dataclass(frozen=True)
class Result:
    trace: str
    peak_live: int
    moving: bool
    smallest_cap: float
    priced_ms: float
    second_half_ms: float
    maps: int
    rebacked: int
    waits: int
    seconds: float


def read(path: Path) -> Trace:
    events, sizes, live, peak = [], {}, 0, 0
    with gzip.open(path, "rt") as lines:
        for line in lines:
            kind, *fields = line.rstrip("\n").split(",")
            if kind == "a":
                number, size, stream = int(fields[0]), int(fields[1]), int(fields[2])
                sizes[number] = max(512, -(-size // 512) * 512)
                live += sizes[number]
                peak = max(peak, live)
                events.append((number, size, stream))
            elif kind == "f":
                live -= sizes.pop(int(fields[0]))
                events.append((int(fields[0]), -1, 0))
    return Trace(path.name.split(".")[0], events, peak)


class Replayer:
    """Runs traces on one simulated device, each time in a new arena."""

    def __init__(self) -> None:
        sim.configure(memory="80GiB", prices="a100")
        self.driver = arena.Driver.open("sim")
        lib = ctypes.CDLL(str(sim.library()))
        context, self.streams = ctypes.c_void_p(), [ctypes.c_void_p() for _ in range(2)]
        lib.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
        lib.cuCtxSetCurrent(context)
        for stream in self.streams:
            lib.cuStreamCreate(ctypes.byref(stream), 1)

    def run(self, trace: Trace, cap: int, moving: bool) -> tuple[arena.Stats, float, float] | None:
        """The figures, the priced time and that of the second half; nothing if it does not fit."""
        sim.reset_counts()
        core = arena._core.Arena(self.driver, 0, cap=cap, reserve=0, headroom=0, growth=64 * MIB, moves=moving)
        streams = [stream.value or 0 for stream in self.streams]
        blocks: dict[int, arena.Buffer] = {}
        half, middle = 0.0, len(trace.events) // 2
        for step, (number, size, stream) in enumerate(trace.events):
            if size < 0:
                core.free(blocks.pop(number))
            else:
                try:
                    blocks[number] = core.allocate(size, streams[stream], moving)
                except arena.OutOfMemoryError:
                    return None
            if step == middle:
                half = sim.clock()
        return core.stats(), sim.clock() / 1000, (sim.clock() - half) / 1000

    def smallest_cap(self, trace: Trace, moving: bool) -> int:
        low, high = trace.peak // GRANULE, trace.peak * 2 // GRANULE
        while low < high:
            middle = (low + high) // 2
            if self.run(trace, middle * GRANULE, moving) is None:
                low = middle + 1
            else:
                high = middle
        return low * GRANULE

    def measure(self, trace: Trace, moving: bool) -> Result:
        cap = self.smallest_cap(trace, moving)
        begin = time.perf_counter()
        found = self.run(trace, trace.peak * 12 // 10, moving)
        seconds = time.perf_counter() - begin
        if found is None:
            raise SystemExit(f"{trace.name} does not fit under a cap of 1.2 × its peak of live bytes")
        stats, priced, second = found
        return Result(
            trace=trace.name,
            peak_live=trace.peak,
            moving=moving,
            smallest_cap=cap / trace.peak,
            priced_ms=priced,
            second_half_ms=second,
            maps=stats.maps,
            rebacked=stats.rebacked,
            waits=stats.waits,
            seconds=seconds,
        )


def geometric_mean(values: list[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


def show(results: list[Result]) -> None:
    print(f"{'':<10}{'peak live':>11}{'smallest cap ÷ live':>22}{'priced ms at 1.2 × live':>26}")
    print(f"{'trace':<10}{'MiB':>11}{'arena':>12}{'best':>10}{'arena':>13}{'PyTorch':>13}{'2nd half':>10}")
    for r in results:
        best, pytorch = BASELINES.get(r.trace, (math.nan, None))
        other = f"{pytorch:.1f}" if pytorch is not None else "no fit"
        print(
            f"{r.trace:<10}{r.peak_live // MIB:>11}{r.smallest_cap:>12.3f}{best:>10.3f}"
            f"{r.priced_ms:>13.1f}{other:>13}{r.second_half_ms:>10.1f}"
        )
    known = [r for r in results if r.trace in BASELINES]
    if known:
        ours = geometric_mean([r.smallest_cap for r in known])
        best = geometric_mean([BASELINES[r.trace][0] for r in known])
        print(f"{'mean':<10}{'':>11}{ours:>12.3f}{best:>10.3f}", end="")
        ratios = [r.priced_ms / p for r in known if (p := BASELINES[r.trace][1]) is not None]
        print(f"      {geometric_mean(ratios):.2f} × PyTorch's where it fits" if ratios else "")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("traces", nargs="*", type=Path, help="files to replay (default: all in benchmarks/traces)")
    parser.add_argument("--json", type=Path, help="write the figures there as well")
    options = parser.parse_args()
    paths = options.traces or [FOLDER / f"{name}.csv.gz" for name in BASELINES]
    replayer = Replayer()
    traces = [read(path) for path in paths]
    results = []
    for moving, title in ((False, "without moving live data"), (True, "moving live data where nothing else helps")):
        print(title)
        results += (found := [replayer.measure(trace, moving) for trace in traces])
        show(found)
        print()
    if options.json:
        options.json.write_text(json.dumps([asdict(result) for result in results], indent=1) + "\n")
        print(f"wrote {options.json}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
