"""Run all benchmarks, and write docs/benchmarks.md and its pictures.

    python benchmarks/all.py [--cupy-python PYTHON] [--free-threaded-python PYTHON] [--out FOLDER]

Each question has its own script; this runs them and writes their results. CuPy's own pool needs a CUDA runtime: if the
CuPy of this Python has none, name another Python that has one, and arena. The thread benchmark without a GIL needs a
free-threaded Python with arena.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt

import arena
import core
import cupy_malloc
import streams
import threads
import traces

ROOT = Path(__file__).parent.parent


def run(script: str, folder: Path, python: str = sys.executable) -> Any:
    print(f"--- {script}", flush=True)
    target = folder / f"{script}.json"
    environment = {**os.environ, "ARENA_DRIVER": "sim"}
    subprocess.run([python, ROOT / "benchmarks" / f"{script}.py", "--json", target], env=environment, check=False)
    return json.loads(target.read_text()) if target.exists() else None


def commit() -> str:
    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()

    changed = " and changes" if git("status", "--porcelain", "--untracked-files=no") else ""
    return (git("rev-parse", "--short", "HEAD") or "no commit") + changed


def processor() -> str:
    names = [
        line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line
    ]
    return f"{names[0]}, {len(names)} of its cores" if names else platform.machine()


def table(titles: list[str], rows: list[list[str]]) -> Iterator[str]:
    yield "| " + " | ".join(titles) + " |"
    yield "|---" + "|--:" * (len(titles) - 1) + "|"
    for row in rows:
        yield "| " + " | ".join(row) + " |"
    yield ""


def verdict(kept: bool) -> str:
    return "kept" if kept else "**missed**"


def through_cupy(found: dict[str, Any] | None) -> Iterator[str]:
    yield "## Through CuPy\n"
    if found is None or cupy_malloc.OWN not in next(iter(found["malloc"].values())):
        yield "CuPy's own pool could not run: it needs a CUDA runtime. `python benchmarks/cupy_malloc.py` explains.\n"
        return
    yield "Nanoseconds to allocate and free a block, with CuPy's `MemoryPool` in the same run. The runtime was one"
    yield "that runs on the host: this measures the bookkeeping of both, not a GPU. `benchmarks/cupy_malloc.py`\n"
    rows = []
    for what, cases in found.items():
        for case, row in cases.items():
            own, ours = row[cupy_malloc.OWN], row["Arena"]
            bound = cupy_malloc.bound_of(what, case)
            shown = "" if bound is None else f"≤ {bound:g}, {verdict(ours / own <= bound)}"
            rows.append(
                [f"`{cupy_malloc.TITLES[what]}`, {case}", f"{own:.0f}", f"{ours:.0f}", f"{ours / own:.2f}", shown]
            )
    yield from table(["", "CuPy's", "arena", "ratio", "bound"], rows)


def in_the_core(rows: core.Rows) -> Iterator[str]:
    yield "## Without Python\n"
    yield "Pairs of allocate and free in C++, on the simulated driver. `benchmarks/core.py`.\n"
    found = [[what, f"{figure:.2f}", bound, verdict(kept)] for what, figure, bound, kept in core.bounds(rows)]
    yield from table(["", "", "bound", ""], found)
    mixed = [[f"{row['alive']:,}", f"{row['ns']:.0f}"] for row in rows if row["question"] == "mixed"]
    yield "Sizes that rarely repeat, so that each request searches the gaps:\n"
    yield from table(["live blocks", "ns a pair"], mixed)
    yield "![Time for a pair against live blocks, holes and streams](benchmarks/growth.svg)\n"
    yield "Time for a hot pair against the number of other live blocks, of free holes, and of streams used in turn.\n"


def without_gil(found: dict[str, Any] | None) -> Iterator[str]:
    if found is None:
        return
    yield "## Python threads\n"
    yield f"Pairs of `allocate` and `free` a second on Python {found['python']}, "
    yield f"{'with a GIL' if found['gil'] else 'free-threaded'}, on one arena. `benchmarks/threads.py`.\n"
    rows = []
    for way, row in found["ways"].items():
        ratio = row["two"] / row["one"]
        bound = "" if found["gil"] else f"≥ {threads.BOUND}, {verdict(ratio >= threads.BOUND)}"
        rows.append([f"`{way}`", f"{row['one']:,.0f}", f"{row['two']:,.0f}", f"{ratio:.2f}", bound])
    yield from table(["", "one thread", "two, on two streams", "ratio", "bound"], rows)


def of_traces(results: list[dict[str, Any]]) -> Iterator[str]:
    yield "## Real programs\n"
    yield "The smallest cap that works ÷ the peak of live bytes, and the price of the driver calls at 1.2 × that peak,"
    yield "on [recorded programs](../benchmarks/traces/README.md). `benchmarks/traces.py`.\n"
    yield "Where other threads launch work, as in many services, live data is never moved; in single-threaded"
    yield "programs it is, when nothing else makes room.\n"
    modes = [{result["trace"]: result for result in results if result["moving"] is moving} for moving in (False, True)]
    rows = []
    for name, (best, pytorch) in traces.BASELINES.items():
        still, moving = (mode[name] for mode in modes)
        caps = [f"{mode['smallest_cap']:.3f}" for mode in (still, moving)]
        times = [f"{mode['priced_ms']:.1f}" for mode in (still, moving)]
        rows.append([name, *caps, f"{best:.3f}", *times, "does not fit" if pytorch is None else f"{pytorch:.1f}"])
    titles = ["cap without moving", "moving", "best of the others", "ms without moving", "moving"]
    yield from table(["", *titles, "PyTorch's expandable segments, ms"], rows)


def of_streams(found: dict[str, Any] | None) -> Iterator[str]:
    if found is None:
        return
    yield "## Streams\n"
    yield "`benchmarks/streams.py`. Two independent streams with work in flight, far below the cap: how many of"
    yield f"{streams.ALLOCATIONS:,} allocations waited for the other, and what that costs. Seed {found['seed']}.\n"
    builds = {"arena": "", "against": ", before"}
    rows = [
        [f"passed as {kind}s{suffix}", f"{row['waits']:,}", f"{row['reserved']:.2f}", f"{row['driver_calls']:,}"]
        for build, suffix in builds.items()
        for kind, row in found.get(build, {"waits": {}})["waits"].items()
    ]
    yield from table(["", "waits", "reserved ÷ live, peaks", "driver calls"], rows)
    yield f"A request that needs new memory, with 1 and with {streams.MANY:,} known streams. `pending`: other memory is"
    yield "free, but a stream still works on it.\n"
    rows = []
    for build, suffix in builds.items():
        for what, row in found.get(build, {"grow": {}})["grow"].items():
            one, many, ratio = row["1"], row[str(streams.MANY)], streams.ratio_of(row)
            bound = "" if suffix else f"≤ {streams.BOUND:g}, {verdict(ratio <= streams.BOUND)}"
            calls = f"{one['calls']:,.0f}, {many['calls']:,.0f}"
            rows.append([f"{what}{suffix}", f"{one['us']:.1f}", f"{many['us']:.1f}", f"{ratio:.2f}", bound, calls])
    yield from table(["", "1, us", f"{streams.MANY:,}, us", "ratio", "bound", "driver calls"], rows)
    yield "A hit, through Python: `allocate()` and `free()`.\n"
    rows = [
        [f"{what}{suffix}", f"{ns:.0f}", f"{ns / found[build]['hit']['default stream']:.2f}"]
        for build, suffix in builds.items()
        for what, ns in found.get(build, {"hit": {}})["hit"].items()
    ]
    yield from table(["", "ns", "× the default stream"], rows)


def of_looking(figures: list[tuple[str, float, str]]) -> Iterator[str]:
    yield "## Inspection, recording, replay\n"
    yield "`benchmarks/inspection.py`, through Python.\n"
    yield from table(["", ""], [[what, f"{value:,.1f} {unit}".strip()] for what, value, unit in figures])


def draw(rows: core.Rows, path: Path) -> None:
    mpl.rcParams.update({"svg.hashsalt": "arena", "font.size": 9})
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.2), sharey=True)
    for what in ("live", "holes"):
        points = [(max(1, row["count"]), row["ns"]) for row in rows if row.get("what") == what]
        axes[0].plot(*zip(*points, strict=True), marker="o", label={"live": "live blocks", "holes": "free holes"}[what])
    points = [(row["count"], row["ns"]) for row in rows if row["question"] == "streams"]
    axes[1].plot(*zip(*points, strict=True), marker="o", label="streams")
    for axis in axes:
        axis.set_xscale("log")
        axis.set_ylim(0, max(60.0, 1.2 * max(row["ns"] for row in rows if row["question"] in ("crowded", "streams"))))
        axis.grid(alpha=0.3)
        axis.legend()
    axes[0].set_ylabel("ns for a pair")
    figure.tight_layout()
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, metadata={"Date": None})


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cupy-python", default=sys.executable, help="a Python whose CuPy has a CUDA runtime")
    parser.add_argument("--free-threaded-python", help="a Python without a GIL that has arena")
    parser.add_argument("--out", type=Path, default=ROOT / "docs", help="where benchmarks.md goes")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rows = run("core", folder)
        cupy = run("cupy_malloc", folder, options.cupy_python)
        free = run("threads", folder, options.free_threaded_python) if options.free_threaded_python else None
        programs, figures, of_several = run("traces", folder), run("inspection", folder), run("streams", folder)
        run("driver_calls", folder)
    today = datetime.datetime.now(datetime.timezone.utc).date()
    versions = f"arena {arena.__version__}, Python {platform.python_version()}"
    text = [
        "# Benchmarks\n",
        f"Written by `make bench` on {today}, at {commit()}: {versions},",
        f"{processor()}, {platform.system()}. No GPU: everything ran on the simulated driver.",
        "Times are the best of several rounds on a shared machine; ratios are from one run. Figures that miss their",
        "bound say so.\n",
        *through_cupy(cupy),
        *in_the_core(rows),
        *without_gil(free),
        *of_streams(of_several),
        *of_traces(programs),
        *of_looking(figures),
    ]
    draw(rows, options.out / "benchmarks/growth.svg")
    (options.out / "benchmarks.md").write_text("\n".join(text).rstrip() + "\n")
    print(f"wrote {options.out / 'benchmarks.md'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
